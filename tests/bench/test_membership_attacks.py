"""What is kept of the membership attacks' powers, and what the docs say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.attacks import membership_attacks as bench
from leakcore.attacks import membership
from tests.bench.pages import require_shown, stored_by

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "attacks.md"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return stored_by(bench)


def test_the_page_says_what_the_kept_result_says(stored: dict[str, Any]) -> None:
    require_shown(bench, stored, PAGE)


def test_no_attack_on_private_models_is_above_the_bound(stored: dict[str, Any]) -> None:
    private = [row for row in stored["rows"] if row["training"] != "without noise"]
    assert len(private) == len(bench.ATTACKS)
    assert all(row["tpr"] < stored["bound"] for row in private)


def test_the_best_attack_is_named_by_its_rate(stored: dict[str, Any]) -> None:
    rows = [{**row, "tpr": 0.9 if row["attack"] == "quantile" else row["tpr"]} for row in stored["rows"]]
    assert 'The training without noise: `"quantile"` with 0 references has the highest rate.' in bench.text(
        {**stored, "rows": rows}
    )


def test_the_measures_are_the_usual_ones() -> None:
    from scipy import stats

    rng = np.random.default_rng(0)
    included = rng.random((4, 500)) < 0.5
    scores = np.round(rng.normal(size=(4, 500)) + included, 1)
    inside, outside = scores[included], scores[~included]
    wanted = stats.mannwhitneyu(inside, outside).statistic / (len(inside) * len(outside))
    assert bench.area(scores, included) == pytest.approx(wanted, rel=1e-12)
    level = np.sort(outside)[::-1][int(0.01 * len(outside))]
    assert (outside > level).mean() <= 0.01
    assert bench.true_positives(scores, included) == (inside > level).mean()


def test_kept_areas_are_of_the_attacks_of_today(stored: dict[str, Any]) -> None:
    """The first 4 of 64 models again: their area lies where 64 say, within 5 standard deviations."""
    x, y = bench.data(stored["seed"])
    target = membership.play(bench.ensemble(0.0, stored["seed"]), x[: bench.ROWS], y[: bench.ROWS], runs=4)
    row = next(r for r in stored["rows"] if r["attack"] == "loss")
    area = bench.area(membership.scores("loss", target), target.included)
    assert abs(area - row["area"]) <= 5 * row["area_error"] * np.sqrt(stored["targets"] / 4)
