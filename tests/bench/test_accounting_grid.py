"""What is kept of the accountant's grid, and what the docs say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import accounting_grid
from bench.cases import accounting as cases
from leakcore import accounting

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "numbers.md"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(cases.KEPT.read_text(encoding="utf-8"))
    return result


def test_the_page_says_what_the_kept_result_says(stored: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in accounting_grid.MARKS)
    assert accounting_grid.text(stored) in page
    assert accounting_grid.rewritten(page, stored) == page, (
        "run python -m bench.accounting_grid --show JSON --page PAGE"
    )


def test_the_page_names_the_ends_of_the_grid() -> None:
    page = PAGE.read_text(encoding="utf-8")
    ends = [(min(axis), max(axis)) for axis in (accounting_grid.SIGMA, accounting_grid.RATE, accounting_grid.DELTA)]
    assert ends == [(0.05, 100.0), (1e-8, 1.0), (1e-12, 0.01)]
    assert (min(accounting_grid.STEPS), max(accounting_grid.STEPS)) == (1, 10**7)
    assert "σ is 0.05 to 100, q 1e-8 to 1, T 1 to 10⁷ and δ 1e-12 to 0.01" in page


def test_the_kept_summary_is_of_the_kept_rows(stored: dict[str, Any]) -> None:
    assert accounting_grid.summarise(stored["rows"], stored["peers"]) == stored["summary"]
    points = [{name: row[name] for name in accounting_grid.NAMES} for row in stored["rows"] + stored["peers"]]
    assert all(point in accounting_grid.grid() for point in points)


def test_the_bench_times_the_ten_slowest_points(stored: dict[str, Any]) -> None:
    slowest = sorted((row["epsilon"]["seconds"] for row in stored["rows"]), reverse=True)[:10]
    assert [row["seconds"] for row in stored["summary"]["slowest_ten"]] == slowest
    assert len(cases.cases(quick=False)) == 10


def test_the_quickest_kept_points_are_answered_as_kept(stored: dict[str, Any]) -> None:
    """A result of an older accountant would be another one: the value itself need not have the same bits."""
    rows = sorted(stored["rows"], key=lambda row: row["epsilon"]["seconds"])[: len(stored["rows"]) // 2 : 10]
    for row in rows:
        now = accounting.epsilon(**{name: row[name] for name in accounting_grid.NAMES})
        low, high = row["epsilon"]["interval"]
        slack = 1e-9 * (1.0 + high)
        assert low - slack <= now.value, row
        assert now.interval is not None
        assert now.interval[0] <= high + slack, row
