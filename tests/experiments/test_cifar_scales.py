"""CIFAR-10 as the paper has it (ten classes, WRN-28-10) where the authors' archives are, and two classes without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leakcore import models
from leakcore._base.run_folder.partial_results import PartialResults
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import data
from tests.datasets.archives import archive, put

ROWS = 12


@pytest.fixture
def archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Archives of the authors' form with a dozen images each."""
    rng = np.random.default_rng(0)
    ten = {f"data_batch_{i}.bin": rng.integers(0, 10, (ROWS, 3073), np.uint8) for i in range(1, 6)}
    hundred = {"train.bin": rng.integers(0, 20, (ROWS, 3074), np.uint8)}
    for name, members in (("cifar10", ten), ("cifar100", hundred)):
        whole = archive({member: records.tobytes() for member, records in members.items()})
        put(monkeypatch, tmp_path, (name, "all"), whole)
    monkeypatch.setenv("LEAKCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LEAKCORE_DATA", raising=False)
    return tmp_path


def _context(folder: Path, scale: str) -> Context:
    return Context(scale=scale, seed=0, data=folder, pieces=PartialResults(None, ""), progress=lambda *_: None)


def test_the_papers_scale_reads_ten_classes_as_features_of_the_wide_network(
    archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is of the same kind and narrower: 36.5 million parameters would take hours here."""
    monkeypatch.setattr(models, "wrn_28_10", lambda classes: models.wide_resnet(10, 1, num_classes=classes))
    monkeypatch.setattr(Context, "pick", lambda self, what="", *, quick, paper, tiny=None: tiny or quick)
    split = data.cifar10(_context(archives, "paper"), 20)
    assert split.classes == 10
    assert split.known_features.shape == (20, 64)
    assert split.pool_features.shape == (5 * ROWS - 20, 64)
    assert "all ten classes (60 training images" in split.described
    assert "WRN-28-10 that we trained on 12 images of CIFAR-100" in split.described
    assert "% of the others" in split.described


def test_without_the_archives_the_papers_scale_says_which_file_it_wants(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)cifar-10-binary\.tar\.gz.*cifar-10-python\.tar\.gz, is read as"):
        data.cifar10(_context(tmp_path, "paper"), 20)


def test_a_linear_classifier_reads_what_is_there() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 300)
    rows = np.eye(3)[labels] + 0.1 * rng.normal(size=(300, 3))
    order = rng.permutation(300)
    assert data._read_linearly(rows.astype(np.float32), labels, 3, order) > 0.99
    blind = data._read_linearly(rng.normal(size=(300, 3)).astype(np.float32), labels, 3, order)
    assert blind < 0.5  # chance: a third; P(Bin(150, 1/3) > 75) = 1e-5
