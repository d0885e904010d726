"""Image sets: MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, from their canonical files, and small parts of the latter.

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
from leakcore._base import validate as check
from leakcore._base.files.gzip_file import read_gzip
from leakcore._base.files.npz_file import read_npz
from leakcore._base.files.tar_file import read_tar
from leakcore._base.printable import printable
from leakcore.datasets.dataset import Dataset
from leakcore.datasets.files import RemoteFile, find

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
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_CIFAR = {
    ("cifar10", "all"): RemoteFile(
        "cifar10",
        "cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        (_CIFAR_URL + "cifar-10-binary.tar.gz",),
    ),
    ("cifar10", "airplane-automobile"): RemoteFile(
        "cifar10",
        "cifar10_airplane_automobile.npz",
        "291409a0649ee187ed09e46dfd19cb9c74479af882d8e6b59fe4face0dba3b99",
    ),
    ("cifar100", "all"): RemoteFile(
        "cifar100",
        "cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        (_CIFAR_URL + "cifar-100-binary.tar.gz",),
    ),
    ("cifar100", "subset"): RemoteFile(
        "cifar100", "cifar100_subset.npz", "67fafe9c5a0f218e260427849a60823ea51f328f002e867acae6327896a3154b"
    ),
}
_SHAPE = (3, 32, 32)
_KRIZHEVSKY = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009"
_PIXELS = "pixels 0..255 divided by 255"


def mnist(split: str = "test", *, path: Folder | None = None, download: bool = True) -> Dataset:
    """Handwritten digits, 28×28 grey pixels, ten classes: 60,000 "train" or 10,000 "test" rows of 784 features.

    path: a folder that holds the canonical gzipped idx files, or a folder mnist of them; None: LEAKCORE_DATA, then the
    user's cache, then (unless download=False) the mirrors. FileNotFoundError says where files were looked for;
    ValueError where a file's SHA-256 is not the canonical one, or split is neither.
    """
    return _idx(
        "mnist",
        check.one_of("train", "test", split=split),
        path,
        download,
        mirrors=_MNIST_MIRRORS,
        source="Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998",
        licence="CC BY-SA 3.0",
    )


def fashion_mnist(
    split: str = "test", *, part: str = "all", path: Folder | None = None, download: bool = True
) -> Dataset:  # fmt: skip
    """Pictures of clothes, 28×28 grey pixels, ten classes; sizes and arguments as in `mnist`, folder fashion_mnist.

    part: "all", or "classes-0-1": T-shirts and trousers only, 3,000 train rows each (a local extract,
    train01-images-idx3-ubyte.gz and train01-labels-idx1-ubyte.gz, the first in canonical order, which is no download)
    or 1,000 test rows each (of the canonical files).
    """
    two = check.one_of("all", "classes-0-1", part=part) != "all"
    check.one_of("train", "test", split=split)
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
    kept = data.labels < 2
    return dataclasses.replace(
        data, features=data.features[kept], labels=data.labels[kept], num_classes=2,
        name=f"fashion_mnist {split} (classes 0 and 1)",
    )  # fmt: skip


def cifar10(split: str = "train", *, part: str = "all", path: Folder | None = None, download: bool = True) -> Dataset:
    """Colour photographs, 3×32×32, ten classes: 50,000 "train" or 10,000 "test" rows of 3,072 features.

    part: "all", or "airplane-automobile": a local extract, cifar10_airplane_automobile.npz, of 2,000 train and 500 test
    rows of these two classes (labels 0 and 1), which is no download and is never taken in place of the whole.
    Other arguments as in `mnist`; the canonical file is cifar-10-binary.tar.gz in a folder cifar10.
    """
    check.one_of("all", "airplane-automobile", part=part)
    return _cifar("cifar10", split, part, path, download, classes=10 if part == "all" else 2)


def cifar100(
    split: str = "train", *, part: str = "all", labels: str = "fine", path: Folder | None = None, download: bool = True
) -> Dataset:
    """Colour photographs, 3×32×32, sizes as in `cifar10`; labels "fine" (100 classes) or "coarse" (20 of them).

    part: "all", or "subset": a local extract, cifar100_subset.npz, of 20 train and 5 test rows per fine class.
    """
    check.one_of("all", "subset", part=part)
    kind = check.one_of("fine", "coarse", labels=labels)
    return _cifar(
        "cifar100", split, part, path, download, classes=100 if kind == "fine" else 20, coarse=kind == "coarse"
    )


def uniform_noise(like: Dataset, rows: int, *, seed: int) -> Dataset:
    """Uniform noise with uniform labels, at the distances of a data set (Hayes et al. 2023, Figure 9).

    Features are uniform in [0, a], independent, with a such that the mean squared distance of two rows is that of two
    rows of `like`: d·a²/6. Philox (stream UNIFORM_NOISE) makes it the same on every machine.
    """
    count = check.integer(1, None, rows=rows)
    check.instance(Dataset, like=like)
    dims = like.features.shape[1]
    # E‖x − y‖² of two independent draws is twice the total variance.
    scale = math.sqrt(6 * 2 * float(like.features.var(axis=0, dtype=np.float64).sum()) / dims)
    draws = kernels.uniform((count, dims + 1), seed=check.seed(seed=seed), purpose=kernels.Stream.UNIFORM_NOISE)
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
    which = split if split == "train01" else check.one_of("train", "test", split=split)
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
        raise ValueError(f"{printable(path)}: no idx file of {dims} dimensions of bytes")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def _cifar(
    name: str, split: str, part: str, path: Folder | None, download: bool, *, classes: int, coarse: bool = False
) -> Dataset:
    which = check.one_of("train", "test", split=split)
    where = find(_CIFAR[name, part], path, download)
    if part == "all":
        images, labels = _read_binary(where, name, which, coarse)
    else:
        kept = read_npz(where, {f"x_{which}", f"y_{which}", "coarse_of_fine"})
        images = kept[f"x_{which}"].transpose(0, 3, 1, 2).reshape(-1, math.prod(_SHAPE))
        labels = kept[f"y_{which}"]
        if coarse:
            labels = kept["coarse_of_fine"][labels]
    return Dataset(
        features=np.divide(images, np.float32(255), dtype=np.float32),
        labels=labels.astype(np.int64),
        num_classes=classes,
        name=f"{name} {which}" + ("" if part == "all" else f" ({part})"),
        scaling=_PIXELS,
        source=_KRIZHEVSKY,
        licence="none stated; research use",
        shape=_SHAPE,
    )


def _read_binary(path: Path, name: str, split: str, coarse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Records of the label bytes (CIFAR-100: coarse, fine) and 3,072 pixels, channels first."""
    if name == "cifar10":
        wanted = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
        heads, label = 1, 0
    else:
        wanted, heads, label = [f"{split}.bin"], 2, 0 if coarse else 1
    size = heads + math.prod(_SHAPE)
    try:
        found = read_tar(path, set(wanted))
        if odd := [base for base in found if len(found[base]) % size]:
            raise ValueError(f"{odd[0]} has {len(found[odd[0]])} bytes: no records of {size}")
    except ValueError as why:
        raise ValueError(f"{printable(path)}: is no archive of CIFAR's records ({why})") from why
    if missing := [base for base in wanted if base not in found]:
        raise ValueError(f"{printable(path)}: holds no {', '.join(missing)}")
    records = np.concatenate([np.frombuffer(found[base], np.uint8).reshape(-1, size) for base in wanted])
    return records[:, heads:], records[:, label]
