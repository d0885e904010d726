"""Runs that are killed go on where they were, with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from leakcore import dpsgd
from tests.dpsgd.ensemble import flat_arguments as flat
from tests.tolerances import HANG

FIELDS = ("parameters", "probe_logits", "probe_losses")
_JOB = """
import sys
import numpy as np
from leakcore import dpsgd

rng = np.random.default_rng(0)
JOB = dict(
    features=rng.random((120, 20)), labels=rng.integers(0, 3, 120), extra_features=rng.random((1, 20)),
    extra_labels=[2], probe_features=rng.random((4, 20)), probe_labels=[0, 1, 2, 0], runs=600, first_run=5,
)
ENSEMBLE = dpsgd.Ensemble(
    dpsgd.Network((20, 8, 3), "relu"), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=120,
    sample_rate=dpsgd.ShuffledBatches(30), seed=1
)
if __name__ == "__main__":
    ENSEMBLE.run(
        JOB["features"], JOB["labels"], runs=range(5, 605),
        per_run=dpsgd.PerRun(dpsgd.Rows(JOB["extra_features"], JOB["extra_labels"])),
        probes=dpsgd.Rows(JOB["probe_features"], JOB["probe_labels"]),
        execution=dpsgd.Execution(checkpoint=sys.argv[1], num_threads=1),
    )
"""
_SPACE: dict = {}
exec(_JOB, _SPACE)
ENSEMBLE, JOB = _SPACE["ENSEMBLE"], _SPACE["JOB"]


def _small(checkpoint=None, **change) -> dpsgd.EnsembleRun:
    return flat.run(ENSEMBLE, **JOB | {"runs": 200} | change, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def whole() -> dpsgd.EnsembleRun:
    return _small()


def _files(folder):
    return sorted(folder.glob("*/runs-*.npz"))


def test_kill_9_then_resume_gives_the_same_bits(tmp_path) -> None:
    script, folder = tmp_path / "job.py", tmp_path / "kept"
    script.write_text(_JOB)
    child = subprocess.Popen([sys.executable, str(script), str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + HANG
    while len(_files(folder)) < 2 and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the child was done before it could be killed"
    before = {path: path.read_bytes() for path in _files(folder)}
    assert 2 <= len(before) < 20

    calls: list[tuple[int, int]] = []
    resumed = flat.run(ENSEMBLE, **JOB, checkpoint=folder, progress=lambda *at: calls.append(at))
    assert calls[0][0] == sum(int(p.stem.split("-")[2]) - int(p.stem.split("-")[1]) for p in before)
    assert calls[-1] == (600, 600)
    assert all(path.read_bytes() == content for path, content in before.items()), "a finished piece was written again"
    alone = flat.run(ENSEMBLE, **JOB)
    for field in FIELDS:
        assert (getattr(resumed, field) == getattr(alone, field)).all()


def test_an_interruption_keeps_what_is_finished(tmp_path, whole) -> None:
    def stop(done: int, total: int) -> None:
        if done >= 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flat.run(ENSEMBLE, **JOB | {"runs": 200}, checkpoint=tmp_path, progress=stop)
    before = _files(tmp_path)
    assert before
    resumed = _small(tmp_path)
    for field in FIELDS:
        assert (getattr(resumed, field) == getattr(whole, field)).all()
    assert set(before) < set(_files(tmp_path))


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_executors_keep_their_runs_too(tmp_path, whole, kind) -> None:
    _small(tmp_path, runs=64)
    pool = ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    with pool as executor:
        out = _small(tmp_path, executor=executor)
    again = _small(tmp_path, num_threads=1)
    for field in FIELDS:
        assert (getattr(out, field) == getattr(whole, field)).all()
        assert (getattr(again, field) == getattr(whole, field)).all()


def test_ranges_may_grow_and_overlap(tmp_path, whole) -> None:
    _small(tmp_path, runs=30, first_run=105)
    _small(tmp_path, runs=80, first_run=90)
    files = _files(tmp_path)
    out = _small(tmp_path)
    assert set(files) <= set(_files(tmp_path))
    for field in FIELDS:
        assert (getattr(out, field) == getattr(whole, field)).all()
    calls: list[int] = []
    _small(tmp_path, progress=lambda done, total: calls.append(done))
    assert calls == [200], "a finished range was trained again"


def test_another_job_reads_nothing(tmp_path) -> None:
    _small(tmp_path, runs=8)
    other = dict(ENSEMBLE.settings())
    layers, activation = other.pop("layers"), other.pop("activation")
    for changed in ({"seed": 2}, {"noise_multiplier": 1.5}, {"initialisation": "fixed"}):
        ensemble = flat.ensemble(layers, activation, **other | changed)
        stored = flat.run(ensemble, **JOB | {"runs": 8}, checkpoint=tmp_path)
        assert (stored.parameters == flat.run(ensemble, **JOB | {"runs": 8}).parameters).all()
    for name in ("features", "extra_features", "probe_features"):
        moved = {name: JOB[name] + 0.01}
        stored = _small(tmp_path, runs=8, **moved)
        assert (stored.probe_logits == _small(runs=8, **moved).probe_logits).all()
    assert len(_files(tmp_path)) == 7
    assert _small(tmp_path, runs=8, keep_parameters=False).parameters.shape == (8, 0)
    assert _small(tmp_path, runs=8).parameters.shape[1] > 0


def test_rows_of_each_run_are_part_of_the_identity(tmp_path) -> None:
    rng = np.random.default_rng(3)
    extra = {"extra_features": rng.random((40, 1, 20)), "extra_labels": np.ones((40, 1), int), "runs": 40}
    first = _small(tmp_path, **extra)
    again = _small(tmp_path, **extra)
    assert (first.parameters == again.parameters).all()
    swapped = _small(tmp_path, **extra | {"extra_features": extra["extra_features"][::-1]})
    assert (swapped.parameters != first.parameters).any(axis=1).all()


def test_scorers_and_scores_come_back(tmp_path) -> None:
    from leakcore.attacks.reconstruction.prior_aware import Sum

    settings = {"candidate_features": np.eye(3, 20), "candidate_labels": [0, 1, 2], "scorers": {"sum": Sum(1.0)}}
    one, two = (_small(tmp_path, runs=40, **settings) for _ in range(2))
    assert len(_files(tmp_path)) == 2
    for field in ("dots", "clipped_norms", "clipped"):
        assert (getattr(one, field) == getattr(two, field)).all()
    assert (one.scores["sum"] == two.scores["sum"]).all()


def test_a_strange_file_is_named(tmp_path) -> None:
    _small(tmp_path, runs=1)
    (_files(tmp_path)[0].parent / "runs-a.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"`checkpoint` must hold files of a checkpoint alone, got .*runs-a\.npz"):
        _small(tmp_path, runs=1)


def test_two_threads_may_share_a_checkpoint(tmp_path, whole) -> None:
    """Files are whole or absent, and every writer writes the same."""
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(lambda _: _small(tmp_path, num_threads=1), range(4)))
    for one in [*result, _small(tmp_path)]:
        for field in FIELDS:
            assert (getattr(one, field) == getattr(whole, field)).all()
    assert not list(tmp_path.rglob(".*"))
