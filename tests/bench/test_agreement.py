"""What is kept of the comparison with other packages, and what the docs say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import agreement
from leakcore import accounting, mechanisms

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "numbers.md"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(agreement.KEPT.read_text(encoding="utf-8"))
    return result


def test_the_page_says_what_the_kept_result_says(stored: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in agreement.MARKS)
    assert agreement.rewritten(page, stored) == page, "run python -m bench.agreement --show JSON --page PAGE"


def test_every_kept_comparison_agrees(stored: dict[str, Any]) -> None:
    rows, balls = stored["dp_accounting"], stored["jax_privacy"]
    assert agreement.summarise(rows, balls) == stored["summary"]
    assert stored["summary"]["epsilon"]["meet"] == len(rows)
    assert stored["summary"]["balls"]["meet"] == len(balls)
    for row in rows + balls:
        assert agreement._meets(row["ours"], row["theirs"])
    assert {row["adjacency"] for row in rows} == {"add-remove", "replace"}
    assert {row["bands"] > 1 for row in balls} == {False, True}
    # 12 tests of one law at the level of 99.9% together, with the kept seed.
    assert stored["summary"]["balls"]["same_law"] > 1e-3


def test_the_kept_configurations_are_the_random_ones_and_are_answered_as_kept(stored: dict[str, Any]) -> None:
    rows = stored["dp_accounting"]
    expected = agreement.configurations(len(rows), stored["seed"])
    for row, at in zip(rows, expected, strict=True):
        for name, value in at.items():
            assert row[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value)
    for row in rows[1:8:2]:
        pytest.importorskip("dp_accounting")
        now = accounting.epsilon(
            mechanisms.from_event(agreement.event(row)), delta=row["delta"], adjacency=row["adjacency"]
        )
        assert now.interval is not None
        slack = 1e-9 * (1.0 + row["ours"][1])
        assert row["ours"][0] - slack <= now.interval[1]
        assert now.interval[0] <= row["ours"][1] + slack


def test_intervals_that_are_apart_do_not_meet() -> None:
    assert agreement._meets((1.0, 2.0), (2.0, 3.0))
    assert not agreement._meets((1.0, 2.0), (2.1, 3.0))
    assert not agreement._meets((2.1, 3.0), (1.0, 2.0))
