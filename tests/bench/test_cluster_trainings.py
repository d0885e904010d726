"""`bench.clusters.cluster_trainings` on a few trainings, and the page that shows the kept result of ten thousand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import kept_page
from bench.clusters import cluster_trainings

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_the_kept_result() -> None:
    stored = json.loads((ROOT / "bench/results/cluster-trainings.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/how-to/clusters.md").read_text(encoding="utf-8")
    assert kept_page.between(page, cluster_trainings.MARKS, cluster_trainings.text(stored)) == page
    assert stored["trainings"] >= 10_000
    assert all(page.count(mark) == 1 for mark in cluster_trainings.MARKS)
    assert stored["equal"]
    assert stored["recomputed"] >= 1


def test_bits_that_differ_are_said() -> None:
    stored = json.loads((ROOT / "bench/results/cluster-trainings.json").read_text(encoding="utf-8"))
    assert "All four have the same bits" in cluster_trainings.text(stored)
    assert "The bits differ" in cluster_trainings.text({**stored, "equal": False})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:distributed")
def test_trainings_outlive_a_worker_with_the_same_bits() -> None:
    """SIGKILL for one of two separate processes at half of 2,560 trainings; its shards are trained again, no others."""
    pytest.importorskip("distributed")
    alone = cluster_trainings.train(2560)
    outcome = cluster_trainings.on_cluster(2560, 2, kill=True)
    starts = outcome.starts
    assert (outcome.parameters == alone).all()
    assert len(starts) == 20
    assert sum(starts.values()) > 20, "the worker had something in hand"
    assert max(starts.values()) == 2
    assert sum(starts.values()) < 32, "only its own shards"
