"""`bench.clusters.throughput` on a few trainings, and the page that shows the kept result of many."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from bench import kept_page
from bench.clusters import throughput

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
        one["rows"][1]["seconds"] = one["rows"][0]["seconds"] / 0.96
    assert "within 3% of one process in 0 of 3 jobs" in throughput.text(other)
    for one in other["jobs"].values():
        one["rows"][1]["seconds"] = one["rows"][0]["seconds"] / 0.98
    other["jobs"]["models"]["equal"] = False
    assert "within 3% of one process in 3 of 3 jobs" in throughput.text(other)
    assert "The bits differ" in throughput.text(other)


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
