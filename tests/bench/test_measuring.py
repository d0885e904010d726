"""What measures in processes of its own does measure there: jobs, peak memory, clusters that lose a worker."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from bench import fused_memory
from bench.clusters import shard_times, throughput
from bench.jobs import measuring
from leakcore.bounds.methods import certified
from leakcore.dpsgd.ensemble import workers

ROOT = Path(__file__).resolve().parents[2]


def test_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    answer = measuring.in_process("scores", "leakcore", {"a_side": 1000})
    assert answer["seconds"] > 0
    assert answer["processors"] < 1.5, "one thread was asked for"
    assert 0 < answer["answer"][0] < 5
    assert "absent" in measuring.in_process("scores", "leakcore", {})


@pytest.mark.slow
@pytest.mark.parametrize("method", fused_memory.METHODS)
def test_peak_memory(method: str) -> None:
    point = fused_memory.measured(method, 1, "memory")
    assert point["peak_bytes"] > 2 * 4 * point["parameters"]  # parameters and gradients


def test_the_plan_cuts_jobs_as_leakcore_does() -> None:
    assert throughput._MOST_SHARDS == certified._MOST_SHARDS
    assert throughput._SHARD_SECONDS == workers._SECONDS


def test_first_shard_is_a_part_of_the_job() -> None:
    shard = shard_times.first_shard(functools.partial(throughput.train, 2560))
    piece, _ = shard()
    whole = throughput.train(256)
    assert (np.asarray(piece.parameters) == whole[: len(piece.parameters)]).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:distributed")
def test_trainings_outlive_a_worker_with_the_same_bits() -> None:
    """SIGKILL for one of two separate processes amid 2,560 trainings; its shards are trained again, no others."""
    pytest.importorskip("distributed")
    alone = throughput.train(2560)
    outcome = throughput.on_cluster("trainings", 2560, 2, kill_after=1.5)
    starts = outcome.starts
    assert (outcome.answer == alone).all()
    assert len(starts) == 20
    assert sum(starts.values()) > 20, "the worker had something in hand"
    assert max(starts.values()) == 2
    assert sum(starts.values()) < 32, "only its own shards"
