"""Confidence limits by betting: coverage, and that a narrower limit would fail the same test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from leakcore.numerics.limits.betting import betting_lower_limit, betting_upper_limit, choose_bet

ALPHA = 0.1
REPEATS = 1000
# P(more misses than this) < 0.1% if each repetition misses with probability ALPHA.
MOST_MISSES = int(stats.binom.ppf(0.999, REPEATS, ALPHA))


@pytest.mark.parametrize(("a", "b"), [(0.5, 2.0), (1.0, 1.0), (3.0, 0.5)])
@pytest.mark.parametrize("side", ["upper", "lower"])
def test_coverage(a: float, b: float, side: str) -> None:
    rng = np.random.default_rng(20240 + int(100 * a))
    truth = a / (a + b)
    pilot = rng.beta(a, b, 50)
    bet = choose_bet(pilot if side == "upper" else 1.0 - pilot, np.ones(50), 200, ALPHA)
    misses = narrow = 0
    for _ in range(REPEATS):
        x, ones = rng.beta(a, b, 200), np.ones(200)
        if side == "upper":
            limit = betting_upper_limit(x, ones, bet, ALPHA, relative_width=1e-6)
            misses += limit < truth
            narrow += x.mean() + 0.25 * (limit - x.mean()) < truth
        else:
            limit = betting_lower_limit(x, ones, bet, ALPHA, relative_width=1e-6)
            misses += limit > truth
            narrow += x.mean() + 0.25 * (limit - x.mean()) > truth
    assert misses <= MOST_MISSES
    # A quarter of the distance to the mean is not a 90% limit: the test would notice.
    assert narrow > MOST_MISSES


def test_counts_are_weights() -> None:
    values, counts = np.array([0.0, 0.25, 1.0]), np.array([700, 200, 100])
    once = betting_upper_limit(np.repeat(values, counts), np.ones(1000), 0.3, 0.01)
    assert betting_upper_limit(values, counts, 0.3, 0.01) == pytest.approx(once, rel=1e-12)


def test_ends() -> None:
    assert betting_upper_limit(np.array([1.0]), np.array([50]), 0.5, 0.01) == 1.0
    assert betting_upper_limit(np.array([0.0]), np.array([2]), 0.5, 1e-9) == 1.0
    zeros = betting_upper_limit(np.array([0.0]), np.array([10_000]), 0.9, 0.01)
    assert 0.0 < zeros < 1e-3
    assert betting_lower_limit(np.array([1.0]), np.array([10_000]), 0.9, 0.01) == pytest.approx(1.0 - zeros, rel=1e-9)
