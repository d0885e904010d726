"""ε from guesses at membership: right where coins were tossed, an estimate where none were."""

import math

import numpy as np
import pytest

from leakcore import bounds


def test_accuracy_as_the_text_has_it() -> None:
    result = bounds.epsilon_from_membership(750, 1000)
    assert result.value == pytest.approx(math.log(3))
    assert (result.kind, result.confidence, result.accuracy) == ("estimate", None, 0.75)
    assert bounds.epsilon_from_membership(400, 1000).value == 0
    assert bounds.epsilon_from_membership(5, 5).value == math.inf


def test_coins_make_it_a_bound() -> None:
    models = bounds.epsilon_from_membership(750, 1000, coins="models", confidence=0.95)
    rows = bounds.epsilon_from_membership(750, 1000, coins="rows", confidence=0.95)
    assert models.kind == rows.kind == "lower"
    assert 0.9 * math.log(3) > rows.value > 0.8 * math.log(3)
    # Without δ both are the same binomial tail.
    assert models.value == pytest.approx(rows.value, rel=1e-9)
    wide = bounds.epsilon_from_membership(750, 1000, coins="rows", rows=5000, confidence=0.95, delta=1e-3)
    assert 0 <= wide.value < rows.value
    assert bounds.epsilon_from_membership(750, 1000, coins="models", confidence=0.95, delta=0.01).value < models.value


@pytest.mark.parametrize("coins", ["models", "rows"])
def test_null_audits_are_rarely_positive(coins: str) -> None:
    """5,000 null audits at 95%: more than 290 positive ones have probability below 1e-3 if the level is kept."""
    hits = np.random.default_rng(5).binomial(400, 0.5, size=5000)
    values = {
        int(h): float(bounds.epsilon_from_membership(int(h), 400, coins=coins, confidence=0.95).value)
        for h in np.unique(hits)
    }
    assert sum(values[int(h)] > 0 for h in hits) <= 297


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("coins", ["models", "rows"])
def test_coverage_on_randomised_response(epsilon: float, coins: str) -> None:
    hits = np.random.default_rng(6).binomial(300, 1 / (1 + math.exp(-epsilon)), size=3000)
    above = {
        int(h): bounds.epsilon_from_membership(int(h), 300, coins=coins, confidence=0.95).value > epsilon
        for h in np.unique(hits)
    }
    # P(Bin(3000, .05) > 188) < 1e-3.
    assert sum(above[int(h)] for h in hits) <= 188


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="`coins` must be 'models', 'rows' or 'none', got 'some'"):
        bounds.epsilon_from_membership(1, 2, coins="some")
    with pytest.raises(ValueError, match=r"`correct` must be in \[0, 2\], got 3"):
        bounds.epsilon_from_membership(3, 2)
    with pytest.raises(ValueError, match="`rows` must be None with coins='none', got 5"):
        bounds.epsilon_from_membership(1, 2, rows=5)
    with pytest.raises(ValueError, match="`guesses` must be at least 1, got 0"):
        bounds.epsilon_from_membership(0, 0)
