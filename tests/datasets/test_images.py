"""Image loaders on files made here, in the canonical formats, and on the canonical files where they exist."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import datasets
from leakcore.datasets import dataset
from leakcore.datasets import images as _images
from tests.datasets.archives import archive, put

RNG = np.random.default_rng(0)
LOCAL = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")
needs_local = pytest.mark.skipif(not (LOCAL / "mnist").is_dir(), reason="no folder of data sets: set LEAKCORE_DATA")


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path) -> None:
    """No variable of the user's, an empty cache, no network."""
    monkeypatch.delenv("LEAKCORE_DATA", raising=False)
    monkeypatch.setenv("LEAKCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_images, "_MNIST_MIRRORS", ((tmp_path / "mirror").as_uri() + "/",))


def _canonical(monkeypatch, folder: str, split: str, kind: str, content: bytes) -> None:
    monkeypatch.setitem(_images._SHA256, (folder, split, kind), hashlib.sha256(content).hexdigest())


def _write_mnist(monkeypatch, folder: Path, rows: int = 5) -> tuple[np.ndarray, np.ndarray]:
    images, labels = RNG.integers(0, 256, (rows, 28, 28), np.uint8), RNG.integers(0, 10, rows).astype(np.uint8)
    folder.mkdir(parents=True)
    for kind, dims, array in (("images", 3, images), ("labels", 1, labels)):
        content = gzip.compress(struct.pack(f">{dims + 1}I", 0x800 + dims, *array.shape) + array.tobytes())
        (folder / f"t10k-{kind}-idx{dims}-ubyte.gz").write_bytes(content)
        _canonical(monkeypatch, "mnist", "test", kind, content)
    return images, labels


@pytest.mark.parametrize("where", ["folder", "parent", "variable", "cache", "mirror"])
def test_mnist_is_found_wherever_it_may_be(monkeypatch, tmp_path, where) -> None:
    root = {"cache": tmp_path / "cache", "mirror": tmp_path}.get(where, tmp_path / "data")
    folder = tmp_path / "mirror" if where == "mirror" else root / "mnist"
    images, labels = _write_mnist(monkeypatch, folder)
    if where == "variable":
        monkeypatch.setenv("LEAKCORE_DATA", str(root))
    path = {"folder": folder, "parent": root}.get(where)
    data = datasets.mnist("test", path=path)
    assert (data.features == (images.reshape(5, 784) / np.float32(255))).all()
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == labels.tolist()
    assert data.shape == (1, 28, 28)
    assert data.images().shape == (5, 1, 28, 28)
    if where == "mirror":
        assert (tmp_path / "cache" / "mnist" / "t10k-images-idx3-ubyte.gz").is_file()
        assert len(list((tmp_path / "cache" / "mnist").iterdir())) == 2, "no half-written files"


def test_offline_the_error_says_where_and_how(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)looked for.*no mirror sent it.*set LEAKCORE_DATA to a folder"):
        datasets.mnist("train")
    with pytest.raises(FileNotFoundError, match=r"(?s)t10k-images.*pass path= \(.*--data; download file:"):
        datasets.mnist(path=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"(?s)not found; looked for.*pass path="):
        datasets.mnist(download=False)
    with pytest.raises(FileNotFoundError, match="it has no public address"):
        datasets.cifar10(part="airplane-automobile")


def test_other_bytes_are_refused(monkeypatch, tmp_path) -> None:
    _write_mnist(monkeypatch, tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"other")
    with pytest.raises(
        ValueError, match=r"t10k-labels-idx1-ubyte.gz: its SHA-256 is d9298a10.*the canonical file's is"
    ):
        datasets.mnist(path=tmp_path)
    # A mirror that gives other bytes leaves nothing behind.
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "t10k-images-idx3-ubyte.gz").write_bytes(b"other")
    with pytest.raises(FileNotFoundError, match="its SHA-256 is"):
        datasets.mnist()
    assert list((tmp_path / "cache" / "mnist").iterdir()) == []


def _python_archive(batches: dict[str, Any], protocol: int) -> bytes:
    """As the authors wrote it: pickled dictionaries."""
    return archive({name: pickle.dumps(batch, protocol) for name, batch in batches.items()})


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_python_version_gives_the_same_rows(monkeypatch, tmp_path, protocol: int) -> None:
    pixels = RNG.integers(0, 256, (4, 3072), np.uint8)
    batches = {f"data_batch_{i}": {"data": pixels + np.uint8(i), "labels": [i, 1, 2, 9]} for i in range(1, 6)}
    batches["test_batch"] = {"batch_label": "testing", "data": pixels[:2], "labels": [3, 4], "filenames": ["a", "b"]}
    put(monkeypatch, tmp_path, ("cifar10", "python"), _python_archive(batches, protocol))
    train = datasets.cifar10("train", path=tmp_path)
    assert train.labels.tolist() == [label for i in range(1, 6) for label in (i, 1, 2, 9)]
    assert (train.features[4:8] == (pixels + np.uint8(2)).astype(np.float32) / np.float32(255)).all()
    assert datasets.cifar10("test", path=tmp_path).labels.tolist() == [3, 4]
    hundred = {"data": pixels, "fine_labels": [99, 7, 0, 1], "coarse_labels": [19, 3, 4, 5]}
    put(monkeypatch, tmp_path, ("cifar100", "python"), _python_archive({"train": hundred, "test": hundred}, protocol))
    assert datasets.cifar100("test", path=tmp_path).labels.tolist() == [99, 7, 0, 1]
    assert datasets.cifar100("test", labels="coarse", path=tmp_path).labels.tolist() == [19, 3, 4, 5]


class _Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("made by a pickle",)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (_Harmful(), "a batch that cannot be read"),
        ({"data": _Harmful(), "labels": [1]}, "a batch that cannot be read"),
        ({"labels": [1]}, "'data'"),
        ({"data": np.zeros((2, 3072)), "labels": [1, 2]}, "pixels are not bytes"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [1, 2]}, r"pixels of shape \(2, 3071\)"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "one class of 0 to 99 for each of 2 rows"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "one class of 0 to 99"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1.5]}, "the instruction BINFLOAT is not read"),
        ({1, 2}, "the instruction EMPTY_SET is not read"),
    ],
)
def test_a_pickle_is_never_carried_out(monkeypatch, tmp_path, batch: Any, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    put(monkeypatch, tmp_path, ("cifar10", "python"), _python_archive({"test_batch": batch}, 4))
    with pytest.raises(ValueError, match=rf"cifar-10-python.tar.gz: not an archive of CIFAR's batches.*{message}"):
        datasets.cifar10("test", path=tmp_path)
    assert not (tmp_path / "made by a pickle").exists()


def _records_archive(members: dict[str, np.ndarray]) -> bytes:
    return archive({name: records.tobytes() for name, records in members.items()})


def test_cifar_binaries(monkeypatch, tmp_path) -> None:
    records = {f"data_batch_{i}.bin": RNG.integers(0, 10, (4, 3073), np.uint8) for i in range(1, 6)}
    records["test_batch.bin"] = RNG.integers(0, 10, (3, 3073), np.uint8)
    put(monkeypatch, tmp_path, ("cifar10", "all"), _records_archive(records))
    train = datasets.cifar10("train", path=tmp_path)
    every = np.concatenate([records[f"data_batch_{i}.bin"] for i in range(1, 6)])
    assert train.labels.tolist() == every[:, 0].tolist()
    assert (train.features == every[:, 1:].astype(np.float32) / np.float32(255)).all()
    assert len(datasets.cifar10("test", path=tmp_path)) == 3
    hundred = np.zeros((2, 3074), np.uint8)
    hundred[:, 0], hundred[:, 1] = [19, 3], [99, 7]
    put(monkeypatch, tmp_path, ("cifar100", "all"), _records_archive({"test.bin": hundred}))
    assert datasets.cifar100("test", path=tmp_path).labels.tolist() == [99, 7]
    coarse = datasets.cifar100("test", labels="coarse", path=tmp_path)
    assert coarse.labels.tolist() == [19, 3]
    assert coarse.num_classes == 20
    with pytest.raises(ValueError, match=r"holds no train.bin"):
        datasets.cifar100("train", path=tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        lambda: datasets.mnist("validation"),
        lambda: datasets.cifar10(part="half"),
        lambda: datasets.cifar100(labels="medium"),
        lambda: datasets.cifar100(part="half"),
    ],
)
def test_unknown_parts(call) -> None:
    with pytest.raises(ValueError, match=r"`(split|part|labels)` must be '.*' or '.*', got '(validation|half|medium)'"):
        call()


@needs_local
def test_the_canonical_files() -> None:
    digits = datasets.mnist("test", path=LOCAL)
    assert np.bincount(digits.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert digits.features.mean() == pytest.approx(0.1325, abs=1e-4)
    assert np.bincount(datasets.fashion_mnist("test", path=LOCAL).labels).tolist() == [1000] * 10
    pair = datasets.cifar10("train", part="airplane-automobile", path=LOCAL)
    assert np.bincount(pair.labels).tolist() == [1000, 1000]
    assert pair.images().shape == (2000, 3, 32, 32)
    assert "airplane-automobile" in pair.name
    coarse = datasets.cifar100("train", part="subset", labels="coarse", path=LOCAL)
    assert np.bincount(coarse.labels).tolist() == [100] * 20


def test_uniform_noise_keeps_the_distances() -> None:
    like = datasets.digits()
    noise = datasets.uniform_noise(like, 1500, seed=0)

    def spread(x: np.ndarray) -> float:
        return float(np.square(x[:700] - x[700:1400]).sum(axis=1).mean())

    assert spread(noise.features) == pytest.approx(spread(like.features), rel=0.05)
    assert (noise.features == datasets.uniform_noise(like, 1500, seed=0).features).all()
    assert noise.features.shape == (1500, 64)
    assert np.bincount(noise.labels, minlength=10).min() > 100


def test_a_shape_must_fit_and_no_image_is_none() -> None:
    with pytest.raises(ValueError, match="digits: its features are not images"):
        datasets.digits().images()
    with pytest.raises(ValueError, match=r"`shape` must hold the 4 columns of features, got \(1, 3, 3\)"):
        datasets.Dataset(
            features=np.zeros((2, 4)), labels=np.zeros(2, int), num_classes=1, name="", scaling="", source="",
            licence="", shape=(1, 3, 3),
        )  # fmt: skip


def test_the_cache_is_where_the_desktop_standard_has_it(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("LEAKCORE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, folder in (("", ".cache"), ("relative", ".cache"), (str(tmp_path / "other"), "other")):
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
        assert dataset._cache() == tmp_path / folder / "leakcore"
