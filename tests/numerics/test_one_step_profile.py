"""One subsampled step has a closed-form profile: against quadrature of its definition, and its inverse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakcore.numerics.privacy_loss.loss import PrivacyLoss
from leakcore.numerics.profile import profile as _profile


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "rate"), [(0.3, 0.001), (1.0, 0.02), (1.0, 0.3), (3.0, 0.95)])
def test_closed_form(sigma: float, rate: float, direction: str) -> None:
    loss = PrivacyLoss.of_steps(np.asarray(sigma), np.asarray(rate), 1)
    z = np.linspace(-30.0, 30.0, 600_001)
    base, moved = (np.exp(-0.5 * (z - m) ** 2) / math.sqrt(2.0 * math.pi) for m in (0.0, 1.0 / sigma))
    mixed = (1.0 - rate) * base + rate * moved
    first, second = (mixed, base) if direction == "remove" else (base, mixed)
    for epsilon in (-0.5, -0.01, 0.0, 0.01, 0.3, 2.0):
        # The integrand has a kink: the sum errs by the square of its spacing.
        direct = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum() * (z[1] - z[0]))
        low, high = (math.exp(part) for part in _profile.log_delta(loss, epsilon, direction))
        assert low <= high
        assert high == pytest.approx(direct, rel=1e-6, abs=1e-9)
    for delta in (0.2 * rate, 1e-6, 1e-12):
        low, high = _profile.epsilon_for(loss, math.log(delta), direction)
        assert high - low < 1e-9 * (1.0 + abs(high))
        assert _profile.log_delta(loss, high, direction)[0] <= math.log(delta)
        assert _profile.log_delta(loss, low, direction)[1] >= math.log(delta)
