"""Grey images: MNIST and Fashion-MNIST from their canonical files; uniform noise at the distances of a set.

Pixels are divided by 255, so features lie in [0, 1]; rows keep the file's order and are flattened channels first, so
`features.reshape(len(data), *data.shape)` is what a convolution takes. float32. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
from pathlib import Path

import numpy as np

from leakcore import kernels
from leakcore._base import memory_limit, validate
from leakcore._base.archives import read_gzip
from leakcore._base.text import printable
from leakcore.datasets.dataset import Dataset, RemoteFile, find

Folder = str | os.PathLike[str]

_MNIST_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_IDX = {"train": "train", "test": "t10k"}
_SHA256 = {
    ("mnist", "train", "images"): "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ("mnist", "train", "labels"): "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ("mnist", "test", "images"): "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ("mnist", "test", "labels"): "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ("fashion_mnist", "train", "images"): "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ("fashion_mnist", "train", "labels"): "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ("fashion_mnist", "train01", "images"): "6333d7f972a8a0d0cda323f63851836f5db0e8c9a53b63ffdb1b3e64f9edee38",
    ("fashion_mnist", "train01", "labels"): "c42364df1f8d260e4f1fcb3a647c848b14f4076c993dc80ac2efb4f60b7c3ad1",
    ("fashion_mnist", "test", "images"): "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ("fashion_mnist", "test", "labels"): "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_PIXELS = "pixels 0..255 divided by 255"


def mnist(split: str = "test", *, path: Folder | None = None, download: bool = True) -> Dataset:
    """MNIST: handwritten digits of 28×28 grey pixels, ten classes.

    Pixels are divided by 255, so features lie in [0, 1]; rows keep the order of the canonical files.

    Args:
        split: "train" for 60,000 rows, or "test" for 10,000 rows.
        path: a folder that holds the four canonical gzipped idx files, directly or in its subfolder `mnist`. None
            searches LEAKCORE_DATA, then the user's cache, then the mirrors.
        download: whether the mirrors may be asked when `path` is None.

    Returns:
        A `Dataset` of (rows, 784) float32 features, with `shape` (1, 28, 28).

    Raises:
        FileNotFoundError: says where the files were looked for.
        ValueError: if the SHA-256 of a file is not the canonical one, or for another `split`.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.mnist("test", path=folder)
        Traceback (most recent call last):
        FileNotFoundError: t10k-images-idx3-ubyte.gz of mnist was not found; ...
    """
    return _idx(
        "mnist",
        validate.one_of("train", "test", split=split),
        path,
        download,
        mirrors=_MNIST_MIRRORS,
        source="Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998",
        licence="CC BY-SA 3.0",
    )


def fashion_mnist(
    split: str = "test", *, part: str = "all", path: Folder | None = None, download: bool = True
) -> Dataset:
    """Fashion-MNIST: pictures of clothes of 28×28 grey pixels, ten classes.

    Pixels are divided by 255, so features lie in [0, 1]; rows keep the order of the canonical files.

    Args:
        split: "train" for 60,000 rows, or "test" for 10,000 rows.
        part: "all", or "classes-0-1" for T-shirts and trousers only: 1,000 test rows of each from the canonical files,
            or the first 3,000 train rows of each from a local extract (train01-images-idx3-ubyte.gz and
            train01-labels-idx1-ubyte.gz), which cannot be downloaded.
        path: a folder that holds the files, directly or in its subfolder `fashion_mnist`. None searches LEAKCORE_DATA,
            then the user's cache, then the mirrors.
        download: whether the mirrors may be asked when `path` is None.

    Returns:
        A `Dataset` of (rows, 784) float32 features, with `shape` (1, 28, 28).

    Raises:
        FileNotFoundError: says where the files were looked for.
        ValueError: if the SHA-256 of a file is not the canonical one, or for another `split` or `part`.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.fashion_mnist("train", part="classes-0-1", path=folder)
        Traceback (most recent call last):
        FileNotFoundError: train01-images-idx3-ubyte.gz of fashion_mnist was not found; ...
    """
    two = validate.one_of("all", "classes-0-1", part=part) != "all"
    validate.one_of("train", "test", split=split)
    data = _idx(
        "fashion_mnist",
        "train01" if two and split == "train" else split,
        path,
        download,
        mirrors=_FASHION_MIRRORS,
        source="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
        licence="MIT",
    )
    if not two:
        return data
    chosen = data.labels < 2
    return dataclasses.replace(
        data,
        features=data.features[chosen],
        labels=data.labels[chosen],
        num_classes=2,
        name=f"fashion_mnist {split} (classes 0 and 1)",
    )


def uniform_noise(like: Dataset, rows: int, *, seed: int) -> Dataset:
    """Uniform noise with uniform labels, at the same distances as a data set (Hayes et al. 2023, Figure 9).

    Features are independent and uniform in [0, a]. The mean squared distance of two rows is d·a²/6; a is chosen so that
    it equals the mean squared distance of two rows of `like`.

    Args:
        like: the data set whose distances, dimensions, type, classes and `shape` the result has.
        rows: number of rows, at least 1.
        seed: 64-bit seed of the noise and the labels. Philox (stream UNIFORM_NOISE) makes them the same on every
            machine.

    Returns:
        A `Dataset` of (rows, d) features.

    Raises:
        ValueError: if `rows` is below 1.
        TypeError: if `like` is not a `Dataset`.

    Example:
        >>> from leakcore import datasets
        >>> digits = datasets.digits()
        >>> noise = datasets.uniform_noise(digits, 2000, seed=0)
        >>> ratio = noise.features.var(axis=0).sum() / digits.features.var(axis=0).sum()
        >>> noise.features.shape, f"{ratio:.1f}"
        ((2000, 64), '1.0')
    """
    count = validate.integer(1, None, rows=rows)
    validate.instance(Dataset, like=like)
    dims = like.features.shape[1]
    memory_limit.require(2 * 8 * count * (dims + 1), rows=count)
    # E‖x − y‖² of two independent draws is twice the total variance.
    scale = math.sqrt(6 * 2 * float(like.features.var(axis=0, dtype=np.float64).sum()) / dims)
    draws = kernels.uniform((count, dims + 1), seed=validate.seed(seed=seed), purpose=kernels.Stream.UNIFORM_NOISE)
    return Dataset(
        features=(scale * draws[:, :dims]).astype(like.features.dtype),
        labels=np.minimum((draws[:, dims] * like.num_classes).astype(np.int64), like.num_classes - 1),
        num_classes=like.num_classes,
        name=f"uniform noise like {like.name}",
        scaling=f"uniform in [0, {scale:.4g}]",
        source="generated",
        licence="CC0",
        shape=like.shape,
    )


def _idx(
    folder: str, split: str, path: Folder | None, download: bool, *, mirrors: tuple[str, ...], source: str, licence: str
) -> Dataset:
    which = split if split == "train01" else validate.one_of("train", "test", split=split)
    arrays = {}
    for kind, dims in (("images", 3), ("labels", 1)):
        name = f"{_IDX.get(which, which)}-{kind}-idx{dims}-ubyte.gz"
        urls = () if which == "train01" else tuple(m + name for m in mirrors)
        file = RemoteFile(folder, name, _SHA256[folder, which, kind], urls)
        arrays[kind] = _read_idx(find(file, path, download), dims)
    images = arrays["images"]
    return Dataset(
        features=np.divide(images.reshape(len(images), -1), np.float32(255), dtype=np.float32),
        labels=arrays["labels"].astype(np.int64),
        num_classes=10,
        name=f"{folder} {which}",
        scaling=_PIXELS,
        source=source,
        licence=licence,
        shape=(1, *images.shape[1:]),
    )


def _read_idx(path: Path, dims: int) -> np.ndarray:
    raw = read_gzip(path)
    head = 4 * (dims + 1)
    shape: list[int] = []
    if len(raw) >= head:
        magic, *shape = struct.unpack_from(f">{dims + 1}I", raw)
    if len(raw) < head or magic != 0x800 + dims or len(raw) != head + math.prod(shape):
        raise ValueError(f"{printable(path)}: not an idx file of bytes in {dims} dimensions")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)
