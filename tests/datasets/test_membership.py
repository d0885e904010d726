"""The membership benchmarks: rows, classes, and what is refused."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from leakcore import datasets

DATA = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")


def _archive(path: Path, text: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("table")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return path


@pytest.mark.skipif(not (DATA / "location30").is_dir(), reason="no folder location30: set LEAKCORE_DATA")
def test_location30() -> None:
    data = datasets.location30(path=DATA)
    assert data.features.shape == (5010, 446)
    assert data.features.dtype == np.float32
    assert np.unique(data.features).tolist() == [0, 1]
    assert np.unique(data.labels).tolist() == list(range(30))
    assert data.labels[0] == 12


def test_purchase100_is_a_users_own_copy(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 2, size=(4, 600))
    text = "".join(f'"{c}",' + ",".join(map(str, r)) + "\n" for c, r in zip((1, 100, 7, 7), rows, strict=True))
    _archive(tmp_path / "dataset_purchase.tgz", text.encode())
    data = datasets.purchase100(tmp_path)
    np.testing.assert_array_equal(data.features, rows)
    assert data.labels.tolist() == [0, 99, 6, 6]
    with pytest.raises(FileNotFoundError, match=r"dataset_purchase.tgz was not found"):
        datasets.purchase100(tmp_path / "none")
    _archive(tmp_path / "dataset_purchase.tgz", text.replace(",1,", ",2,", 1).encode())
    with pytest.raises(ValueError, match="features must be 0 or 1"):
        datasets.purchase100(tmp_path)
    _archive(tmp_path / "dataset_purchase.tgz", b'"1",0,1\n')
    with pytest.raises(ValueError, match="its rows must have 601 entries each, got 3 in 1 rows"):
        datasets.purchase100(tmp_path)


@pytest.mark.skipif(not (DATA / "fashion_mnist").is_dir(), reason="no folder fashion_mnist: set LEAKCORE_DATA")
def test_the_extract_of_two_classes_of_fashion_mnist() -> None:
    data = datasets.fashion_mnist("train", part="classes-0-1", path=DATA)
    assert data.features.shape == (6000, 784)
    assert np.bincount(data.labels).tolist() == [3000, 3000]
    assert data.num_classes == 2
    test = datasets.fashion_mnist("test", part="classes-0-1", path=DATA)
    assert np.bincount(test.labels).tolist() == [1000, 1000]
    with pytest.raises(ValueError, match=r"`part` must be .*, got 'two'"):
        datasets.fashion_mnist("train", part="two", path=DATA)
