"""σ for an (ε, δ): the least, by every route, and where rare large losses decide."""

from __future__ import annotations

from typing import Any

import pytest

from leakcore import accounting
from tests.accounting.calibration import CALIBRATION


def test_four_under_add_remove_is_nine_under_replacement() -> None:
    sigma = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=1.0, steps=1).value
    assert accounting.epsilon(sigma, 1.0, 1, delta=1e-5, adjacency="replace").value == pytest.approx(9.08, abs=5e-3)


@pytest.mark.parametrize(("steps", "rate", "epsilon", "sigma", "sigma_rdp"), CALIBRATION)
def test_calibration(steps: int, rate: float, epsilon: float, sigma: float, sigma_rdp: float) -> None:
    # A relative 1e-4 in σ; PLD's own discretisation makes its σ a little larger than the exact one.
    assert accounting.epsilon(sigma, rate, steps, delta=1e-5).value == pytest.approx(epsilon, abs=1e-4)
    if rate < 0.02 and epsilon > 10:
        return  # some seconds; the slow test below has it
    result = accounting.noise_multiplier(epsilon=epsilon, delta=1e-5, sample_rate=rate, steps=steps)
    assert result.value == pytest.approx(sigma, rel=1e-4)
    assert accounting.epsilon(result.value, rate, steps, delta=1e-5).value <= epsilon * (1.0 + 1e-12)
    assert accounting.epsilon(result.value * (1.0 - 1e-6), rate, steps, delta=1e-5).value > epsilon


@pytest.mark.slow
def test_calibration_of_the_roughest_setting() -> None:
    result = accounting.noise_multiplier(epsilon=32.0, delta=1e-5, sample_rate=0.01, steps=100)
    assert result.value == pytest.approx(0.2806531318, rel=1e-4)


def test_noise_by_rdp_and_pld() -> None:
    pytest.importorskip("dp_accounting")
    result = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=0.1, steps=100, method="rdp")
    assert result.value == pytest.approx(1.48153, abs=2e-5)
    assert result.method == "rdp"


@pytest.mark.slow
def test_noise_by_pld() -> None:
    pytest.importorskip("dp_accounting")
    result = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=0.1, steps=100, method="pld")
    assert result.value == pytest.approx(1.385994732, rel=1e-5)


def test_no_noise_is_enough_where_delta_allows_every_sample() -> None:
    for adjacency, factor in (("add-remove", 1.0), ("replace", 2.0)):
        same: dict[str, Any] = {"epsilon": 1e-9, "sample_rate": 0.01, "steps": 3, "adjacency": adjacency}
        assert accounting.noise_multiplier(delta=factor * 0.0298, **same).value == 0.0
    assert accounting.noise_multiplier(epsilon=1e-9, delta=0.0296, sample_rate=0.01, steps=3).value > 0.01


@pytest.mark.slow
def test_little_noise_is_found_next_to_noise_that_cannot_be_judged() -> None:
    result = accounting.noise_multiplier(epsilon=300.0, delta=1e-5, sample_rate=0.1, steps=10).value
    assert accounting.epsilon(result, 0.1, 10, delta=1e-5).value <= 300.0
    assert accounting.epsilon(result * (1 - 1e-6), 0.1, 10, delta=1e-5).value > 300.0


def test_bad_targets() -> None:
    with pytest.raises(ValueError, match=r"`epsilon` must be at least 0, got -1.0"):
        accounting.delta(1.0, 1.0, 1, epsilon=-1.0)
    with pytest.raises(ValueError, match=r"`epsilon` must be at least 0, got -1.0"):
        accounting.noise_multiplier(epsilon=-1.0, delta=1e-5, sample_rate=0.1, steps=1)
    with pytest.raises(ValueError, match=r"`sample_rate` must be in \[0, 1\], got 1.5"):
        accounting.noise_multiplier(epsilon=1.0, delta=1e-5, sample_rate=1.5, steps=1)


def test_noise_with_rare_large_losses() -> None:
    result = accounting.noise_multiplier(epsilon=0.01, delta=1e-10, sample_rate=1e-4, steps=500)
    assert accounting.epsilon(result.value, 1e-4, 500, delta=1e-10).value <= 0.01
    # Fourier inversion does not serve here, so the search ends a little above the least noise, and says so.
    assert any("a little less noise may do" in note for note in result.assumptions.notes)
    assert accounting.epsilon(result.value * (1 - 2e-4), 1e-4, 500, delta=1e-10).value > 0.01
