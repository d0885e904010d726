"""What is kept of the rows that an imprint reads, and what the docs say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bench.attacks import imprint_rows as bench
from leakcore.attacks import imprint
from tests.bench.pages import require_shown, stored_by

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "federated.md"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return stored_by(bench)


def test_the_page_says_what_the_kept_result_says(stored: dict[str, Any]) -> None:
    require_shown(bench, stored, PAGE)


def test_no_attack_is_above_its_bound(stored: dict[str, Any]) -> None:
    """So many hits or more have a probability of at least 1e-3 at the bound."""
    assert any(row["draws"] for row in stored["rows"])
    for row in stored["rows"]:
        assert row["bound"] == pytest.approx(bench.bound_at(row["sigma"]), rel=1e-9)
        if row["draws"]:
            assert stats.binom.sf(row["hits"] - 1, row["draws"], row["bound"]) >= 1e-3


def test_without_noise_every_determined_row_is_right(stored: dict[str, Any]) -> None:
    exact = next(row for row in stored["rows"] if row["sigma"] == 0)
    assert exact["determined"] == exact["right"] > 0.8 * exact["rows"]


def test_kept_shares_are_of_the_attack_of_today(stored: dict[str, Any]) -> None:
    net, x, y = bench.planted(stored["seed"])
    own = np.random.default_rng(stored["seed"]).choice(len(x), bench.BATCH, replace=False)
    released = bench.clipped_rows(net, x[own], y[own]).sum(0)
    recovery = imprint.read(net, released, batch_size=bench.BATCH, accuracy=bench.CLOSE)
    assert recovery.value >= 0.6
