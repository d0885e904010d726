"""What says who was trained on, or holds what was recovered of a row, is readable by its owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from leakcore import attacks, dpsgd
from leakcore._base.run_folder import seal
from leakcore._base.writing import write_atomically
from leakcore.dpsgd.trace.file import TraceFile


@pytest.fixture(autouse=True)
def _usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _trace() -> dpsgd.Trace:
    z, zz = np.zeros(2), np.zeros((2, 2))
    return dpsgd.Trace(
        noise_multiplier=np.ones(5), max_grad_norm=np.ones(5), batch_rows=np.full(5, 9), sample_rate=0.1,
        expected_batch_size=9.0, members=np.array([True, False]), members_given=True, times_seen=z, clipped_share=z,
        membership_sum=z, membership_likelihood=z, pair_sum=zz, pair_likelihood=zz,
    )  # fmt: skip


def _canary_trace() -> dpsgd.CanaryTrace:
    return dpsgd.CanaryTrace(
        noise_multiplier=np.ones(5), max_grad_norm=np.ones(5), sample_rate=0.1, rows=90, parameters=50,
        coins=np.arange(20) < 9, times_seen=np.zeros(20), scores=np.zeros(50), release_scores=np.zeros(50),
        noise_ratio=1.0, common_noise=0.5, repeated_noise=0.5, interference=0.2,
    )  # fmt: skip


def _reconstructor() -> attacks.Reconstructor:
    return attacks.Reconstructor(
        layers=(3, 2, 4), mean=np.zeros(3), basis=None, columns=None, units=0, scale=np.ones(3),
        weights=np.zeros(20, np.float32), low=0.0, high=1.0, losses=np.zeros(2), held_out=0.5,
    )  # fmt: skip


WRITERS: dict[str, Callable[[Path], object]] = {
    "trace": lambda path: _trace().save(path),
    "canary trace": lambda path: _canary_trace().save(path),
    "recording": lambda path: TraceFile(path).save(_trace()),
    "reconstructor": lambda path: _reconstructor().save(path),
    "piece": lambda path: seal(path.parent, path.stem, {"scores": np.zeros(3)}),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("reserved", [False, True])
def test_it_is_private(name: str, reserved: bool, tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    if reserved:
        path.touch()
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    WRITERS[name](path)
    assert path.stat().st_size > 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_permissions_that_somebody_gave_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    _trace().save(path)
    path.chmod(0o640)
    _trace().save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_reports_follow_the_mask(tmp_path: Path) -> None:
    write_atomically(tmp_path / "report.json", "{}")
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == 0o644
