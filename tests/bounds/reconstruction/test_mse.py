"""The bound of the squared error of unbiased reconstructions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from leakcore import bounds


def test_squared_error() -> None:
    bound = bounds.mse_lower_bound(2.0, 1.0, 3, diameters=[1.0, 2.0], adjacency="replace")
    epsilon = 3 * 4.0 / 4.0
    assert bound.epsilon == pytest.approx(epsilon)
    assert bound.value == pytest.approx(5.0 / (4 * 2 * math.expm1(epsilon)), rel=1e-12)
    assert not bound.warnings
    # D₂ of the pair N(±1/σ, 1), α·Δ²/2 with Δ = 2/σ, by quadrature.
    x = np.linspace(-30, 30, 60_001)
    first, second = (np.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi) for m in (0.5, -0.5))
    assert math.log((first**2 / second).sum() * (x[1] - x[0])) * 3 == pytest.approx(epsilon, rel=1e-9)
    # Subsampled, replacement: above the pair that moves both ways, itself found by quadrature.
    q, sigma = 0.2, 1.0
    base, up, down = (np.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi) for m in (0.0, 1 / sigma, -1 / sigma))
    p, r = (1 - q) * base + q * up, (1 - q) * base + q * down
    direct = math.log((p**2 / r).sum() * (x[1] - x[0]))
    assert bounds.mse_lower_bound(sigma, q, 1, diameters=[1.0], adjacency="replace").epsilon >= direct
    quiet = bounds.mse_lower_bound(50.0, 1.0, 1, diameters=np.ones(4), adjacency="replace")
    assert quiet.value > quiet.constant_guess == 0.25
    assert "constant guess" in quiet.warnings[0]
    assert bounds.mse_lower_bound(0.0, 0.5, 1, diameters=[1.0], adjacency="replace").value == 0.0
    assert bounds.mse_lower_bound(1.0, 0.0, 1, diameters=[1.0], adjacency="replace").value == math.inf


def test_the_mean_squared_error_of_add_remove_is_not_a_bound() -> None:
    """z in {0, 1}, clipped gradients −C and C: (r − 1)/(e⁴ − 1), r = dN(1, 1)/dN(−1, 1), errs less without a bias."""
    x = np.linspace(-12.0, 14.0, 400_001)
    density = np.exp(-0.5 * (x + 1.0) ** 2) / math.sqrt(2 * math.pi)
    guess = np.expm1(2.0 * x) / math.expm1(4.0)
    width = x[1] - x[0]
    error = float((density * guess**2).sum() * width)
    assert float((density * guess).sum() * width) == pytest.approx(0.0, abs=1e-12)
    proved = bounds.mse_lower_bound(1.0, 1.0, 1, diameters=[1.0], adjacency="replace")
    assert proved.kind == "lower"
    assert proved.value <= error
    plugged = bounds.mse_lower_bound(1.0, 1.0, 1, diameters=[1.0], adjacency="add-remove")
    assert plugged.value > error
    assert plugged.kind == "estimate"
    assert any("no lower bound" in note for note in plugged.assumptions.notes)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_mean_squared_error_at_tiny_sampling_rates(adjacency: str) -> None:
    """The divergence is q²·T·(e^{1/σ²} − 1) at first order (replacement: at most 4.5 as much, (K₃ + K₄)/2)."""
    at = [bounds.mse_lower_bound(1.0, q, 100, diameters=[2.0], adjacency=adjacency) for q in (1e-5, 1e-6, 1e-8, 1e-20)]
    scaled = [b.value * q * q for b, q in zip(at, (1e-5, 1e-6, 1e-8, 1e-20), strict=True)]
    if adjacency == "add-remove":
        np.testing.assert_allclose(scaled, 1.0 / (100 * math.expm1(1.0)), rtol=1e-4)
    else:
        # Where rounding would tell, the bound is a looser one, and still a bound.
        assert scaled[1] <= scaled[0] * (1 + 1e-4)
        np.testing.assert_allclose(scaled[2:], 1.0 / (100 * 4.5 * math.expm1(1.0)), rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=[0.0], adjacency="replace"),
            r"`diameters\[0\]` must be in \(0, 1e150\), got 0.0",
        ),
        (
            lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=1.0, adjacency="replace"),
            r"`diameters` must be one-dimensional and not empty, got shape \(\)",
        ),
        (
            lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=[1.0], adjacency="swap"),
            "`adjacency` must be 'add-remove' or 'replace', got 'swap'",
        ),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_adjacency_must_be_said() -> None:
    with pytest.raises(TypeError, match="`adjacency` must be given to mse_lower_bound"):
        bounds.mse_lower_bound(1.0, 0.5, 2, diameters=[1.0])  # type: ignore[call-arg]
