"""Discrete priors with unequal weights, and labels."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from scipy import special

from leakcore import accounting, bounds


def test_discrete_prior() -> None:
    equal = bounds.discrete_prior(1.0, 0.1, 20, prior=[0.25] * 4)
    assert equal.value == pytest.approx(bounds.reconstruction(1.0, 0.1, 20, kappa=0.25).value, rel=1e-9)
    # Two candidates at N(±m, 1): the best test of unequal weights, by maximising over its threshold.
    m = 0.8
    x = np.linspace(-9, 9, 400_001)
    best = (0.8 * special.ndtr(m - x) + 0.2 * special.ndtr(m + x)).max()
    bound = bounds.discrete_prior(1.0 / m, 1.0, 1, prior=[0.8, 0.2])
    assert bound.value == pytest.approx(best, rel=1e-7)
    assert bound.value <= bound.blow_up
    assert bound.blow_up == pytest.approx(bounds.reconstruction(1.0 / m, 1.0, 1, kappa=0.8).value, rel=1e-9)
    # max Σ p B(a), Σ a = 1 by brute force over allotments of three.
    p = np.array([0.5, 0.3, 0.2])
    a, b = np.meshgrid(np.linspace(0.01, 0.98, 98), np.linspace(0.01, 0.98, 98))
    keep = a + b < 0.995
    shares = np.stack((a[keep], b[keep], 1 - a[keep] - b[keep]))
    grid = np.linspace(0.004, 0.999, 400)
    curve = np.interp(shares, grid, bounds.reconstruction(1.0, 0.1, 50, kappa=grid).value)
    brute = float((p @ curve).max())
    bound = bounds.discrete_prior(1.0, 0.1, 50, prior=p)
    assert brute - 1e-5 <= bound.value <= brute + 2e-4


@pytest.mark.full
def test_chords_of_many_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = np.arange(1.0, 8.0) / 28.0
    fine = bounds.discrete_prior(1.0, 0.1, 10, prior=prior).value
    monkeypatch.setattr(sys.modules["leakcore.bounds.discrete_prior"], "_NODES", 5)
    coarse = bounds.discrete_prior(1.0, 0.1, 10, prior=prior).value
    assert fine * (1 - 1e-9) <= coarse <= 1.05 * fine


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("exponent", [1.0, 2.0])
@pytest.mark.parametrize("size", [100, 10_000])
@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_chords_of_heavy_tails(exponent: float, size: int, sigma: float) -> None:
    """Against the dual over all weights, with the Gaussian pair's δ in closed form."""
    prior = np.arange(1, size + 1.0) ** -exponent
    prior /= prior.sum()
    m = 1.0 / sigma

    def dual(price: float) -> float:
        epsilon = price - np.log(prior)
        delta = special.ndtr(m / 2 - epsilon / m) - np.exp(epsilon + special.log_ndtr(-m / 2 - epsilon / m))
        return float(np.exp(price) + prior @ delta)

    exact = min(dual(x) for x in np.linspace(-5.0, 1.0, 3001))
    assert exact * (1 - 1e-6) <= bounds.discrete_prior(sigma, 1.0, 1, prior=prior).value <= 1.005 * exact


@pytest.mark.full
def test_discrete_prior_unreachable_tails() -> None:
    """Light weights ask for ε far out: Chernoff's bound does, and whole batches where nothing else does."""
    prior = np.random.default_rng(1).dirichlet(np.ones(30))
    bound = bounds.discrete_prior(2.0, 0.01, 1000, prior=prior)
    assert bound.blind < bound.value < bound.blow_up
    assert bound.blow_up == pytest.approx(bounds.reconstruction(2.0, 0.01, 1000, kappa=prior.max()).value, rel=1e-9)
    two = bounds.discrete_prior(2.0, 0.01, 1000, prior=[prior.max(), 1 - prior.max()]).value
    assert two >= bound.value
    assert bounds.discrete_prior(1.0, 0.5, 10_000, prior=[0.5, 0.3, 0.2]).value <= 1.0


@pytest.mark.full
def test_discrete_prior_with_little_leakage(monkeypatch: pytest.MonkeyPatch) -> None:
    """To first order L is N(0, s²), s = q√T/σ: two candidates that share the largest weight p win 2pφ(0)s."""
    for sigma, q, steps in ((1e4, 0.1, 100), (1e5, 0.1, 100), (3e5, 0.01, 10), (1e6, 0.5, 1000)):
        tied = bounds.discrete_prior(sigma, q, steps, prior=[0.4, 0.4, 0.2])
        s = q * math.sqrt(steps) / sigma
        assert tied.value - 0.4 == pytest.approx(0.8 * s / math.sqrt(2 * math.pi), rel=1e-3)
        apart = bounds.discrete_prior(sigma, q, steps, prior=[0.5, 0.3, 0.2])
        assert 0.5 <= apart.value <= 0.5 + 1e-15 < apart.blow_up
    for sigma in (1e10, 1e12, 1e15):
        for prior in ([0.25] * 4, [0.4, 0.4, 0.1, 0.1], [0.5, 0.3, 0.2]):
            bound = bounds.discrete_prior(sigma, 0.5, 10, prior=prior)
            assert bound.blind <= bound.value <= bound.blind * (1 + 1e-9)
    short = [bounds.discrete_prior(30.0, 0.1, 100, prior=p).value for p in ([0.5, 0.3, 0.2], [0.4, 0.38, 0.22])]
    monkeypatch.setattr(sys.modules["leakcore.bounds.discrete_prior"], "_NEGLIGIBLE", -math.inf)
    whole = [bounds.discrete_prior(30.0, 0.1, 100, prior=p).value for p in ([0.5, 0.3, 0.2], [0.4, 0.38, 0.22])]
    np.testing.assert_allclose(short, whole, rtol=1e-12)


@pytest.mark.full
def test_labels() -> None:
    assert bounds.label_success(10.0, 1.0, 100).value == pytest.approx(special.ndtr(1.0), rel=1e-12)
    bound = bounds.label_success(1.0, 0.1, 20, num_classes=10)
    assert bound.value == pytest.approx(bounds.reconstruction(1.0, 0.1, 20, kappa=0.1).value, rel=1e-12)
    assert bound.adjacency == "replace"
    # Below the replacement profile through two add/remove steps: ½ + ½δ(0) for equal weights.
    through = 0.5 + 0.5 * accounting.delta(1.0, 0.1, 20, epsilon=0.0, adjacency="replace").value
    assert bounds.label_success(1.0, 0.1, 20).value <= through + 1e-9
    assert bounds.label_success(0.0, 1.0, 5).value == 1.0
    assert bounds.label_success(math.inf, 1.0, 5, prior=[0.9, 0.1]).value == pytest.approx(0.9, rel=1e-9)
    assert bounds.label_success(1.0, 0.5, 0, num_classes=3).value == pytest.approx(1 / 3, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.discrete_prior(1.0, 0.5, 2, prior=[0.5, 0.4]), "`prior` must sum to 1, got 0.9"),
        (lambda: bounds.discrete_prior(1.0, 0.5, 2, prior=[1.5, -0.5]), r"`prior\[0\]` must be in \[0, 1\], got 1.5"),
        (
            lambda: bounds.discrete_prior(1.0, 0.5, 2, prior=0.5),
            r"`prior` must be a one-dimensional array of probabilities, got shape \(\)",
        ),
        (lambda: bounds.label_success(1.0, 0.5, 2, num_classes=2, prior=[1.0]), "at most one"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
