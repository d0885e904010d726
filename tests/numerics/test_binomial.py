"""Clopper–Pearson limits against SciPy's exact test and against their own definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from leakcore.numerics import clopper_pearson


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99, 1 - 1e-9])
def test_agrees_with_binomtest_for_every_count(confidence: float) -> None:
    for n in (1, 2, 7, 40, 500):
        k = np.arange(n + 1)
        low, high = clopper_pearson(k, n, confidence=confidence)
        oracle = [stats.binomtest(int(i), n).proportion_ci(confidence) for i in k[:: max(1, n // 40)]]
        np.testing.assert_allclose(low[:: max(1, n // 40)], [o.low for o in oracle], rtol=0, atol=2e-12)
        np.testing.assert_allclose(high[:: max(1, n // 40)], [o.high for o in oracle], rtol=0, atol=2e-12)


@pytest.mark.parametrize(("side", "alternative"), [("lower", "greater"), ("upper", "less")])
def test_one_sided_agrees_with_binomtest(side: str, alternative: str) -> None:
    for k, n in [(0, 5), (5, 5), (3, 10), (499, 500), (1, 1000)]:
        oracle = stats.binomtest(k, n, alternative=alternative).proportion_ci(0.99)
        assert clopper_pearson(k, n, confidence=0.99, side=side) == pytest.approx((oracle.low, oracle.high), abs=2e-12)


def test_limits_solve_their_defining_equations_in_the_far_tail() -> None:
    k, n, confidence = 3, 10**6, 1 - 1e-10
    low, high = clopper_pearson(k, n, confidence=confidence)
    assert stats.binom.sf(k - 1, n, low) == pytest.approx((1 - confidence) / 2, rel=1e-6)
    assert stats.binom.cdf(k, n, high) == pytest.approx((1 - confidence) / 2, rel=1e-6)


def test_no_successes_and_all_successes_are_exact() -> None:
    low, high = clopper_pearson([0, 10], 10, confidence=0.95)
    assert low[0] == 0.0
    assert high[1] == 1.0
    # P(Bin(n, p) = 0) = (1 − p)^n = a.
    assert high[0] == pytest.approx(1 - 0.025 ** (1 / 10), rel=1e-13)
    assert low[1] == pytest.approx(0.025 ** (1 / 10), rel=1e-13)


def test_coverage_never_falls_below_the_promise() -> None:
    # Exact coverage (a finite sum, no simulation) on a grid of p.
    n, confidence = 30, 0.9
    low, high = clopper_pearson(np.arange(n + 1), n, confidence=confidence)
    for p in np.linspace(0.001, 0.999, 499):
        covered = stats.binom.pmf(np.arange(n + 1), n, p)[(low <= p) & (p <= high)].sum()
        assert covered >= confidence - 1e-12


def test_shapes() -> None:
    assert all(isinstance(v, float) for v in clopper_pearson(3, 10, confidence=0.9))
    low, high = clopper_pearson([[1], [2]], [5, 6, 7], confidence=0.9)
    assert low.shape == high.shape == (2, 3)
    empty = clopper_pearson(np.zeros(0, int), 4, confidence=0.9)
    assert empty[0].shape == (0,)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="`successes` must be at most trials=5, got 6"):
        clopper_pearson(6, 5, confidence=0.9)
    with pytest.raises(ValueError, match="`successes` must be at least 0, got -1"):
        clopper_pearson(-1, 5, confidence=0.9)
    with pytest.raises(ValueError, match="`trials` must be at least 1, got 0"):
        clopper_pearson(0, 0, confidence=0.9)
    with pytest.raises(TypeError, match=r"`successes` must be an integer or an array of integers, got 0\.5"):
        clopper_pearson(0.5, 5, confidence=0.9)
    with pytest.raises(TypeError, match="`trials` must be an integer or an array of integers, got True"):
        clopper_pearson(1, True, confidence=0.9)
    with pytest.raises(ValueError, match=r"`confidence` must be in \(0, 1\), got 1"):
        clopper_pearson(1, 5, confidence=1)
    with pytest.raises(ValueError, match="`side` must be 'two-sided', 'lower' or 'upper', got 'both'"):
        clopper_pearson(1, 5, confidence=0.9, side="both")
    with pytest.raises(ValueError, match="`successes` and `trials` must broadcast"):
        clopper_pearson([1, 2], [3, 4, 5], confidence=0.9)
