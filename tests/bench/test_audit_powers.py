"""What is kept of the audits' powers, and what the docs say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.audits import audit_powers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "audit-power.md"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(audit_powers.KEPT.read_text(encoding="utf-8"))
    return result


def test_the_page_says_what_the_kept_result_says(stored: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in audit_powers.MARKS)
    assert audit_powers.rewritten(page, stored) == page, (
        "run python -m bench.audits.audit_powers --show JSON --page PAGE"
    )


def test_a_method_that_errs_too_often_is_named(stored: dict[str, Any]) -> None:
    wrong = {**stored["rows"][0], "above": stored["repetitions"]}
    assert wrong["method"].startswith("leakcore")
    said = [
        audit_powers.text({**stored, "rows": [row, *stored["rows"][1:]]}).split("repetitions: ")[-1]
        for row in (stored["rows"][0], wrong)
    ]
    assert "leakcore" not in said[0]
    assert wrong["method"] in said[1]


def test_kept_means_are_of_the_methods_of_today(stored: dict[str, Any]) -> None:
    # The first two repetitions again, for our methods: they lie where 200 say, within 5 standard deviations.
    count = stored["repetitions"]
    assert count >= 200
    for mu, name, method in ((1.0, "leakcore, Gaussian", audit_powers.by_coins("gdp")),):
        row = next(r for r in stored["rows"] if (r["mu"], r["method"]) == (mu, name))
        rng = np.random.default_rng(stored["seed"])
        for _ in range(2):
            value = method(*audit_powers.scores("one run", mu, rng))
            assert abs(value - row["mean"]) <= 5 * row["error"] * np.sqrt(count)
