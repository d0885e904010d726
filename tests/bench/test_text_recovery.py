"""What is kept of the recovered sentences, and what the docs say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bench.attacks import text_recovery as bench
from tests.bench.pages import require_shown, stored_by

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "attacks.md"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return stored_by(bench)


def test_the_page_says_what_the_kept_result_says(stored: dict[str, Any]) -> None:
    require_shown(bench, stored, PAGE)


def test_batches_of_one_to_eight_sentences_are_recovered(stored: dict[str, Any]) -> None:
    rows = [row for row in stored["rows"] if row["size"] <= 8]
    assert {row["size"] for row in rows} == set(range(1, 9))
    assert {row["weights"] for row in rows} == {"random", "trained"}
    assert all(row["exact"] >= 0.95 * row["sequences"] for row in rows)


def test_no_determined_sentence_is_wrong(stored: dict[str, Any]) -> None:
    assert all(row["wrong"] == 0 for row in stored["rows"] + stored["noise"])


def test_no_attack_is_above_its_bound(stored: dict[str, Any]) -> None:
    """So many hits or more have a probability of at least 1e-3 at the bound."""
    for row in stored["candidates"]:
        assert stats.binom.sf(row["hits"] - 1, row["draws"], row["bound"]) >= 1e-3
        assert row["bound"] == pytest.approx(bench.bound_at(row["sigma"]), rel=1e-9)


def test_kept_recoveries_are_of_the_attack_of_today() -> None:
    pytest.importorskip("transformers")
    corpus = bench.prose()
    rows = bench.sentences(corpus, bench.encoder(corpus))
    assert len(rows) > 200
    net = bench.model(1, width=64)
    batch = [rows[i] for i in np.random.default_rng(0).choice(len(rows), 2, replace=False)]
    result = bench.attacked(net, batch, bench.gradient_of(net, batch))
    assert result["exact"] == result["determined"] == 2
    assert result["wrong"] == 0
