"""`bench.clusters.throughput` on a few trainings, and the page that shows the kept result of many."""

from __future__ import annotations

import copy
import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from bench import kept_page
from bench.clusters import shard_times, throughput
from leakcore.bounds.methods import certified
from leakcore.dpsgd.ensemble import workers

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "bench/results/cluster-throughput.json").read_text(encoding="utf-8"))


def test_the_page_shows_the_kept_result() -> None:
    page = (ROOT / "docs/how-to/clusters.md").read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in throughput.MARKS)
    again = "run python -m bench.clusters.throughput --show JSON --page PAGE"
    assert kept_page.between(page, throughput.MARKS, throughput.text(KEPT)) == page, again
    for job, one in KEPT["jobs"].items():
        assert one["size"] >= throughput.SIZES[job]
        assert one["equal"]
        assert one["recomputed"] >= 1


def test_what_is_said_follows_the_numbers() -> None:
    other = copy.deepcopy(KEPT)
    assert "The bits are the same everywhere" in throughput.text(KEPT)
    for one in other["jobs"].values():
        one["rows"][1]["on_shards"], one["rows"][2]["on_shards"] = 0.971, 0.969
        one["turns"]["one"] = [1.02 * seconds for seconds in one["turns"]["here"]]
    assert "at least 97% of the time in 3 of 6 cases" in throughput.text(other)
    assert "beyond the interval, in 0 of 3 jobs" in throughput.text(other)
    other["jobs"]["trainings"]["rows"][1]["seconds"] = other["jobs"]["trainings"]["size"] * 3600e-6
    assert "| 1e+06 trainings | 1.0 | 0.12 h | 0.08 min |" in throughput.text(other), "5 s, and not 1 h / 1000"
    other["jobs"]["models"]["equal"] = False
    other["jobs"]["models"]["turns"]["one"] = [1.04 * seconds for seconds in other["jobs"]["models"]["turns"]["here"]]
    assert "beyond the interval, in 1 of 3 jobs" in throughput.text(other)
    assert "The bits differ" in throughput.text(other)


def test_the_plan_cuts_jobs_as_leakcore_does() -> None:
    assert throughput._MOST_SHARDS == certified._MOST_SHARDS
    assert throughput._SHARD_SECONDS == workers._SECONDS


def test_ratio_of_turns() -> None:
    """Of log-ratios with mean log 1.1 and a known spread."""
    taken = {"here": [1.0, 2.0, 4.0, 8.0], "one": [1.0, 2.42, 4.0, 9.68]}
    value, low, high = shard_times.ratio(taken, "one")
    error = 1.96 * math.log(1.1) * math.sqrt(4 / 3) / 2
    assert value == pytest.approx(1.1)
    assert (low, high) == pytest.approx((1.1 * math.exp(-error), 1.1 * math.exp(error)))


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
