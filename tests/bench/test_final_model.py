"""What is kept of attacks on the final model, and what the docs say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import kept_page
from bench.attacks import final_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((ROOT / "bench" / "results" / "final-model.json").read_text(encoding="utf-8"))
    return result


def test_the_page_says_what_the_kept_result_says(stored: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "explanation" / "audit-power.md").read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in final_model.MARKS)
    assert kept_page.between(page, final_model.MARKS, final_model.text(stored)) == page


def test_nothing_is_proved_above_the_claim(stored: dict[str, Any]) -> None:
    assert all(row["proved"] < final_model.CLAIM for row in stored["rows"])


def test_the_sentence_counts_who_proves_the_most(stored: dict[str, Any]) -> None:
    weak = [{**r, "proved": 0.0} if r["attack"] == "crafted-gradient" else {**r, "proved": 1.0} for r in stored["rows"]]
    assert "the most in 0 of 4 rows" in final_model.text({**stored, "rows": weak})
