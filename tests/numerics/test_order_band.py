"""Limits that hold at every point at once: their coverage by iterated integrals and by simulation, at every size."""

import math

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from scipy import special, stats

from leakcore import numerics
from leakcore.numerics.limits.order_band import _ranks, coverage


def _exact(limits: np.ndarray) -> float:
    """n! times the volume of limits[i] ≤ u_i, u_1 ≤ … ≤ u_n ≤ 1, by one integral after the other."""
    volume = Polynomial([1.0])
    for low in limits:
        volume = volume.integ(lbnd=low)
    return math.factorial(len(limits)) * float(volume(1.0))


@pytest.mark.parametrize(("n", "confidence"), [(1, 0.9), (2, 0.5), (7, 0.95), (12, 0.6)])
def test_the_coverage_is_that_of_iterated_integrals(n: int, confidence: float) -> None:
    limits = numerics.simultaneous_lower_limits(n, confidence=confidence)[1:]
    value = coverage(np.arange(1, n + 1), limits, n)
    assert value == pytest.approx(_exact(limits), rel=1e-8)
    assert confidence - 2e-9 <= value < confidence + 1e-3 * (1 - confidence)


@pytest.mark.parametrize(("n", "confidence"), [(60, 0.8), (500, 0.9), (1500, 0.7), (6000, 0.9)])
def test_the_band_covers_as_often_as_it_says(n: int, confidence: float) -> None:
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


def test_fewer_ranks_cost_little() -> None:
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


def test_transforms_and_direct_products_give_one_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 200_000
    ranks = _ranks(n, 4.0)
    limits = np.asarray(special.betaincinv(ranks, n - ranks + 1.0, 1e-4))
    fast = coverage(ranks, limits, n)
    monkeypatch.setattr("leakcore.numerics.limits.order_band._DIRECT", 1 << 62)
    assert 0.9 < fast <= coverage(ranks, limits, n) + 1e-8
    assert fast == pytest.approx(coverage(ranks, limits, n), rel=1e-7)


def test_impossible_limits_cover_nothing_and_no_limits_everything() -> None:
    assert coverage(np.array([1, 2]), np.array([0.999999, 0.9999999]), 2) < 1e-6
    assert coverage(np.array([1]), np.array([0.0]), 5) == pytest.approx(1.0, abs=1e-8)


def test_more_trials_than_it_takes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`trials` must be in \[1, 16777216\], got 16777217"):
        numerics.simultaneous_lower_limits((1 << 24) + 1, confidence=0.9)
