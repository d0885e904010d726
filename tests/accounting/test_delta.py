"""δ at an ε: the inverse of ε, direct compositions, tiny values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakcore import accounting
from leakcore.numerics.loss import PrivacyLoss


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 1.0, 3), (1.2, 0.1, 50)])
def test_inverse(sigma: float, rate: float, steps: int, adjacency: str) -> None:
    for delta in (1e-3, 1e-6):
        epsilon = accounting.epsilon(sigma, rate, steps, delta=delta, adjacency=adjacency).value
        back = accounting.delta(sigma, rate, steps, epsilon=epsilon, adjacency=adjacency)
        # Under replacement each is the minimum of a search that stops near its optimum.
        assert back.value == pytest.approx(delta, rel=1e-6 if adjacency == "add-remove" or rate == 1.0 else 2e-2)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"), [(2.0, 0.5, 1000, 1e-3), (1.0, 0.1, 5000, 1e-2), (0.5, 0.1, 10, 0.3)]
)
def test_replacement_inverse(sigma: float, rate: float, steps: int, delta: float) -> None:
    """Where much leaks the split that bounds δ lies far from where both its halves are 1, or outside [0, ε]."""
    epsilon = accounting.epsilon(sigma, rate, steps, delta=delta, adjacency="replace").value
    result = accounting.delta(sigma, rate, steps, epsilon=epsilon, adjacency="replace").value
    assert result == pytest.approx(delta, rel=1e-3)


def test_replacement_against_direct_composition() -> None:
    # One step, D with z and D' with z' whose gradients are opposite: P = (1−q)N(0) + qN(1), Q = (1−q)N(0) + qN(−1). The
    # true profile of that pair, by quadrature, must not exceed the bound.
    sigma, rate = 0.8, 0.3
    x = np.linspace(-12.0, 12.0, 200_001)

    def normal(mean: float) -> np.ndarray:
        return np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * math.sqrt(2.0 * math.pi))

    p = (1.0 - rate) * normal(0.0) + rate * normal(1.0)
    q = (1.0 - rate) * normal(0.0) + rate * normal(-1.0)
    for epsilon in (0.2, 1.0, 2.0):
        direct = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * (x[1] - x[0]))
        assert direct <= accounting.delta(sigma, rate, 1, epsilon=epsilon, adjacency="replace").value


def test_zero_noise() -> None:
    # δ ≥ 1 − (1−q)^T is the chance of being sampled at all; nothing else leaks.
    assert accounting.epsilon(0.0, 0.1, 2, delta=1e-5).value == math.inf
    assert accounting.epsilon(0.0, 0.1, 2, delta=0.2).value == pytest.approx(0.0, abs=1e-12)
    assert accounting.delta(0.0, 0.1, 2, epsilon=3.0).value == pytest.approx(0.19, rel=1e-12)


@pytest.mark.parametrize("setting", [(0.7, 0.3, 1), (1.0, 0.1, 10), (2.0, 0.05, 200), (1.5, 1.0, 3), (0.0, 0.1, 4)])
def test_total_variation(setting: tuple[float, float, int]) -> None:
    loss = PrivacyLoss.of_steps(np.asarray(setting[0]), np.asarray(setting[1]), setting[2])
    exact = accounting.delta(*setting, epsilon=0.0).value
    assert loss.total_variation() >= exact * (1 - 1e-9)
    if setting[2] == 1 or setting[1] == 1.0 or setting[0] == 0.0:
        assert loss.total_variation() == pytest.approx(exact, rel=1e-9)


def test_tiny_deltas() -> None:
    result = accounting.delta(40.0, 0.01, 100, epsilon=4.0)
    assert result.value == 5e-324
    assert -1e9 < result.log_value < -1000.0
    assert accounting.epsilon(1.0, 0.1, 100, delta=1e-200).value > 30.0


def test_underflow() -> None:
    for steps, rate in ((1, 1.0), (100, 0.01)):
        result = accounting.delta(1e3, rate, steps, epsilon=30.0)
        assert result.value == 5e-324
        assert result.interval == (0.0, 5e-324)
        assert -math.inf < result.log_value < -1000.0


@pytest.mark.parametrize(
    ("sigma", "epsilon"),
    [(516.7248090415748, 6.332388232169973e-05), (615.977, 0.0), (1e8, 1.0), (1e7, 1e-3), (1e-3, 5e5), (3.0, 60.0)],
)
def test_full_batch_interval(sigma: float, epsilon: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        s, e = 1 / mpmath.mpf(sigma), mpmath.mpf(epsilon)
        truth = mpmath.erfc((e / s - s / 2) / mpmath.sqrt(2)) / 2
        truth = truth - mpmath.exp(e) * mpmath.erfc((e / s + s / 2) / mpmath.sqrt(2)) / 2
        log_truth = mpmath.log(truth)
        result = accounting.delta(sigma, 1.0, 1, epsilon=epsilon)
        assert log_truth <= result.log_value <= log_truth + mpmath.mpf("4e-12") + mpmath.mpf("4e-15") * abs(log_truth)
        assert result.interval[0] <= truth <= result.interval[1]
