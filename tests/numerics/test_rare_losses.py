"""Steps so rarely large that moments say nothing of them: the bound by counting, and ε and δ that rest on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import log_ndtr

from leakcore import accounting
from leakcore.numerics.privacy_loss.loss import AccuracyError, PrivacyLoss
from leakcore.numerics.privacy_loss.rare_losses import log_tail_bound
from leakcore.numerics.profile import profile as _profile


def _loss(sigma: Any, rate: Any, steps: int) -> PrivacyLoss:
    return PrivacyLoss.of_steps(np.asarray(sigma, dtype=float), np.asarray(rate, dtype=float), steps)


def _log_above(c: np.ndarray, sigma: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """log μ(ℓ > c), log ν(ℓ > c) of one step."""
    with np.errstate(invalid="ignore", divide="ignore"):
        inside = (np.expm1(c) + rate) / rate
        x = np.where(inside > 0, sigma**2 * np.log(np.maximum(inside, 1e-300)) + 0.5, -np.inf)
    without, joined = log_ndtr(-x / sigma), log_ndtr(-(x - 1) / sigma)
    return np.logaddexp(math.log1p(-rate) + without, math.log(rate) + joined), without


def test_the_bound_is_above_the_profile() -> None:
    """30 configurations, a third of them schedules of two σ and q, some of full batches as well."""
    rng = np.random.default_rng(0)
    compared, near = 0, 0
    for _ in range(30):
        rate, sigma = float(np.exp(rng.uniform(math.log(1e-5), math.log(0.5)))), float(np.exp(rng.uniform(-0.9, 3)))
        steps, epsilon = int(np.exp(rng.uniform(0, 6))), float(np.exp(rng.uniform(math.log(0.01), 3)))
        loss = _loss(sigma, rate, steps)
        if rng.random() < 1 / 3:
            loss = _loss([sigma, 1.3 * sigma] * steps, [rate, min(2 * rate, 1.0)] * steps, 2 * steps)
        try:
            low, _ = _profile.log_delta(loss, epsilon, "remove")
        except AccuracyError:
            continue
        if math.isfinite(low):
            bound = log_tail_bound(loss, epsilon)
            assert bound >= min(low, 0.0)
            compared, near = compared + 1, near + (bound < 0.7 * low)
    assert compared > 12
    assert near > 3, "of use: within a power of 0.7 of δ"


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-12, 1e3, 1e6])
def test_any_epsilon_has_a_bound(epsilon: float) -> None:
    for sigma, rate in ((1e-3, 0.5), (0.05, 1e-9), (1e4, 1 - 1e-9), (1.0, 1e-300)):
        bound = log_tail_bound(_loss(sigma, rate, 1000), epsilon)
        assert -math.inf <= bound <= 0.0
        assert epsilon > 0 or bound == 0.0


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "epsilon"),
    [
        (3.5688121406715676, 0.00011150298626945492, 4, 5.6756383055493975),
        (2.849002496559377, 0.00036754682588493364, 355, 0.05689659755811992),
        (3.7110426347579852, 0.0003409868234200053, 866, 0.13706359909059462),
        (1.214150098785385, 4.000362262375862e-06, 7050, 0.16872724675968387),
        (1.297555565778367, 2.4201521067856968e-05, 6809, 1.7845631286484211),
        (1.5814218020826474, 0.0010891156587653026, 8851, 1.0047508887216094),
    ],
)
def test_a_delta_below_all_use_is_bounded(sigma: float, rate: float, steps: int, epsilon: float) -> None:
    """Chernoff's bound is up to 1 there; δ is at least that of one step, the others being postprocessing."""
    result = accounting.delta(sigma, rate, steps, epsilon=epsilon)
    one = _profile.log_delta(_loss(sigma, rate, 1), epsilon, "remove")[0]
    assert 0.0 <= result.interval[0] <= result.value == result.interval[1]
    assert one <= result.log_value < math.log(1e-18)


@pytest.mark.parametrize(
    ("sigma", "rate", "delta"),
    [
        (0.9169040182944564, 2.9677062314040375e-06, 3.6490963798215347e-09),
        (0.46897555071352554, 1.9849712714104744e-06, 1.278939359691365e-07),
        (0.7769408922016667, 1.1411925203640002e-05, 8.017418938216673e-07),
    ],
)
def test_epsilon_of_two_rare_steps_by_direct_integration(sigma: float, rate: float, delta: float) -> None:
    """δ₂(ε) = ∫ μ(x)·δ₁(ε − ℓ(x)) dx, with δ₁(e) = μ(ℓ > e) − e^e·ν(ℓ > e) of the other step."""
    result = accounting.epsilon(sigma, rate, 2, delta=delta)
    assert result.interval[1] - result.interval[0] < 1e-9
    x = np.linspace(-40 * sigma, 1 + 40 * sigma, 400_001)
    shift = (2 * x - 1) / (2 * sigma**2)
    loss = np.where(shift < 30, np.log1p(rate * np.expm1(np.minimum(shift, 30))), shift + math.log(rate))
    density = ((1 - rate) * np.exp(-0.5 * (x / sigma) ** 2) + rate * np.exp(-0.5 * ((x - 1) / sigma) ** 2)) / (
        sigma * math.sqrt(2 * math.pi)
    )
    for end, sign in zip(result.interval, (1, -1), strict=True):
        rest = end - loss
        joined, without = _log_above(rest, sigma, rate)
        other = np.exp(joined) * -np.expm1(np.minimum(rest + without - joined, 0.0))
        direct = float(np.sum(density * other) * (x[1] - x[0]))
        assert sign * (direct / delta - 1) > -1e-7
