"""What the page says of audits that stop early is what was measured, and what was measured is what the page is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import kept_page
from bench.audits import claim_audits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "audit-power.md"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(claim_audits.KEPT.read_text(encoding="utf-8"))
    return result


def test_the_page_shows_the_kept_tables(stored: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in claim_audits.MARKS)
    rewritten = kept_page.between(page, claim_audits.MARKS, claim_audits.text(stored))
    assert rewritten == page, "run python -m bench.audits.claim_audits --show JSON --page PAGE"


def test_the_audit_as_it_is_proves_more_and_one_that_stops_early_takes_less(stored: dict[str, Any]) -> None:
    for row in stored["trained"]:
        assert row["all"] >= row["split"]
        if row["noise"] == 1:
            assert max(row["split"], row["all"], row["early"]) <= 4.0
        else:
            assert row["why"] == "refuted"
            assert row["trainings"] <= 600
    assert all(row["fixed"] == row["early"] == 0 for row in stored["simulated"] if row["factor"] == 1)


def test_a_kept_row_is_what_the_script_measures() -> None:
    """One simulated audit of half the noise, again."""
    rng = np.random.default_rng(0)
    scores = {"k = 1": (rng.normal(2 * 0.9302, size=1000), rng.normal(size=1000), 1)}
    claim = claim_audits.claimed(4.0)
    proved, trainings, why = claim_audits.early(scores, claim, 0)
    assert why == "refuted"
    assert trainings < 1000
    assert proved > 4.0
    assert claim_audits.by_all(scores, claim, 0) > claim_audits.by_split(scores, claim, 0) > 4.0
