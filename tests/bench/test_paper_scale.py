"""What the page says that the paper's scale takes is computed from the measured steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import kept_page
from bench.clusters import paper_scale

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "bench" / "results" / "paper-scale.json").read_text(encoding="utf-8"))


def test_the_page_shows_what_was_measured() -> None:
    page = (ROOT / "docs" / "papers" / "reconstruction.md").read_text(encoding="utf-8")
    again = kept_page.between(page, paper_scale.MARKS, paper_scale.text(KEPT))
    assert again == page, "run python -m bench.clusters.paper_scale --show JSON --page PAGE"


def test_operations_of_the_parts_are_in_proportion() -> None:
    """A training step runs forwards once and backwards twice; an attack's step needs the input's derivative alone."""
    train, read, invert, _ = (row["operations"] for row in KEPT["parts"])
    assert train / read == pytest.approx(3.0, rel=0.01)
    assert 4 * invert / read == pytest.approx(2.0, rel=0.01)  # four images are read at a time, and one is attacked


def test_twice_the_time_is_twice_the_sum() -> None:
    slower = {**KEPT, "parts": [{**row, "seconds": 2 * row["seconds"]} for row in KEPT["parts"]]}
    assert paper_scale.text(slower) != paper_scale.text(KEPT)
    assert [paper_scale.duration(s) for s in (1.5, 90, 5400, 2 * 86_400)] == ["1.5 s", "1.5 min", "1.5 hours", "2 days"]
