"""Confidence limits: coverage, far tails, edges, and that a narrower limit would fail the same test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from scipy import special, stats

from leakcore import numerics
from leakcore.numerics import clopper_pearson
from leakcore.numerics.limits import _ranks, betting_lower_limit, betting_upper_limit, choose_bet, coverage


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99, 1 - 1e-9])
def test_binomtest(confidence: float) -> None:
    for n in (1, 2, 7, 40, 500):
        k = np.arange(n + 1)
        low, high = clopper_pearson(k, n, confidence=confidence)
        oracle = [stats.binomtest(int(i), n).proportion_ci(confidence) for i in k[:: max(1, n // 40)]]
        np.testing.assert_allclose(low[:: max(1, n // 40)], [o.low for o in oracle], rtol=0, atol=2e-12)
        np.testing.assert_allclose(high[:: max(1, n // 40)], [o.high for o in oracle], rtol=0, atol=2e-12)


@pytest.mark.parametrize(("side", "alternative"), [("lower", "greater"), ("upper", "less")])
def test_binomtest_one_sided(side: str, alternative: str) -> None:
    for k, n in [(0, 5), (5, 5), (3, 10), (499, 500), (1, 1000)]:
        oracle = stats.binomtest(k, n, alternative=alternative).proportion_ci(0.99)
        assert clopper_pearson(k, n, confidence=0.99, side=side) == pytest.approx((oracle.low, oracle.high), abs=2e-12)


def test_far_tail() -> None:
    k, n, confidence = 3, 10**6, 1 - 1e-10
    low, high = clopper_pearson(k, n, confidence=confidence)
    assert stats.binom.sf(k - 1, n, low) == pytest.approx((1 - confidence) / 2, rel=1e-6)
    assert stats.binom.cdf(k, n, high) == pytest.approx((1 - confidence) / 2, rel=1e-6)


def test_none_and_all() -> None:
    low, high = clopper_pearson([0, 10], 10, confidence=0.95)
    assert low[0] == 0.0
    assert high[1] == 1.0
    # P(Bin(n, p) = 0) = (1 − p)^n = a.
    assert high[0] == pytest.approx(1 - 0.025 ** (1 / 10), rel=1e-13)
    assert low[1] == pytest.approx(0.025 ** (1 / 10), rel=1e-13)


def test_binomial_coverage() -> None:
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


def test_bad_input() -> None:
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


ALPHA = 0.1
REPEATS = 1000
# P(more misses than this) < 0.1% if each repetition misses with probability ALPHA.
MOST_MISSES = int(stats.binom.ppf(0.999, REPEATS, ALPHA))


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(("a", "b"), [(0.5, 2.0), (1.0, 1.0), (3.0, 0.5)])
@pytest.mark.parametrize("side", ["upper", "lower"])
def test_betting_coverage(a: float, b: float, side: str) -> None:
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


def test_counts() -> None:
    values, counts = np.array([0.0, 0.25, 1.0]), np.array([700, 200, 100])
    once = betting_upper_limit(np.repeat(values, counts), np.ones(1000), 0.3, 0.01)
    assert betting_upper_limit(values, counts, 0.3, 0.01) == pytest.approx(once, rel=1e-12)


def test_betting_ends() -> None:
    assert betting_upper_limit(np.array([1.0]), np.array([50]), 0.5, 0.01) == 1.0
    assert betting_upper_limit(np.array([0.0]), np.array([2]), 0.5, 1e-9) == 1.0
    zeros = betting_upper_limit(np.array([0.0]), np.array([10_000]), 0.9, 0.01)
    assert 0.0 < zeros < 1e-3
    assert betting_lower_limit(np.array([1.0]), np.array([10_000]), 0.9, 0.01) == pytest.approx(1.0 - zeros, rel=1e-9)


def _exact(limits: np.ndarray) -> float:
    """n! times the volume of limits[i] ≤ u_i, u_1 ≤ … ≤ u_n ≤ 1, by one integral after the other."""
    volume = Polynomial([1.0])
    for low in limits:
        volume = volume.integ(lbnd=low)
    return math.factorial(len(limits)) * float(volume(1.0))


@pytest.mark.parametrize(("n", "confidence"), [(1, 0.9), (2, 0.5), (7, 0.95), (12, 0.6)])
def test_band_by_integrals(n: int, confidence: float) -> None:
    limits = numerics.simultaneous_lower_limits(n, confidence=confidence)[1:]
    value = coverage(np.arange(1, n + 1), limits, n)
    assert value == pytest.approx(_exact(limits), rel=1e-8)
    assert confidence - 2e-9 <= value < confidence + 1e-3 * (1 - confidence)


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(("n", "confidence"), [(60, 0.8), (500, 0.9), (1500, 0.7), (6000, 0.9)])
def test_band_coverage(n: int, confidence: float) -> None:
    limits = numerics.simultaneous_lower_limits(n, confidence=confidence)
    assert limits.shape == (n + 1,)
    assert limits[0] == 0
    assert (np.diff(limits) >= 0).all()
    ranks = _ranks(n, 0.5)
    exact = coverage(ranks, limits[ranks], n)
    assert confidence <= exact <= confidence + 4e-3 * (1 - confidence)
    # Draws of n ordered uniforms against the exact coverage; p-value 1e-4, two-sided.
    rng = np.random.default_rng(n)
    draws = 4000
    valid = sum(bool((np.sort(rng.random(n)) >= limits[1:]).all()) for _ in range(draws))
    low, high = stats.binom.ppf([5e-5, 1 - 5e-5], draws, exact)
    assert low <= valid <= high


def test_fewer_ranks() -> None:
    # Limits at every rank of 2,000 trials with one local level: what the band was before it left ranks out.
    n, confidence = 2000, 0.975
    every = np.arange(1, n + 1)
    level = (1 - confidence) / 55.07  # the number that every rank costs, by bisection
    band = np.asarray(special.betaincinv(every, n - every + 1.0, level))
    assert confidence <= coverage(every, band, n) < confidence + 1e-4
    sparse = numerics.simultaneous_lower_limits(n, confidence=confidence)[1:]
    deviations = np.sqrt(every * (n + 1.0 - every)) / n**1.5
    assert (((band - sparse) / deviations)[20:-20] < 0.6).all()
    assert (sparse[_ranks(n, 0.5)[:-1] - 1] > band[_ranks(n, 0.5)[:-1] - 1]).all()


def test_transform_against_product(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 200_000
    ranks = _ranks(n, 4.0)
    limits = np.asarray(special.betaincinv(ranks, n - ranks + 1.0, 1e-4))
    fast = coverage(ranks, limits, n)
    monkeypatch.setattr("leakcore.numerics.limits._DIRECT", 1 << 62)
    assert 0.9 < fast <= coverage(ranks, limits, n) + 1e-8
    assert fast == pytest.approx(coverage(ranks, limits, n), rel=1e-7)


def test_trivial_bands() -> None:
    assert coverage(np.array([1, 2]), np.array([0.999999, 0.9999999]), 2) < 1e-6
    assert coverage(np.array([1]), np.array([0.0]), 5) == pytest.approx(1.0, abs=1e-8)


def test_too_many_trials() -> None:
    with pytest.raises(ValueError, match=r"`trials` must be in \[1, 16777216\], got 16777217"):
        numerics.simultaneous_lower_limits((1 << 24) + 1, confidence=0.9)
