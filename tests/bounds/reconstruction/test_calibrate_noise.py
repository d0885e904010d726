"""Noise for a wanted limit is the bound's inverse, next to the noise that ε takes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import special

from leakcore import accounting, bounds, numerics


@pytest.mark.parametrize(
    ("rate", "steps", "kappa", "goal"),
    [(0.02, 100, 0.1, 0.2), (1.0, 100, 0.01, 0.3), pytest.param(0.3, 5, 1e-6, 1e-3, marks=pytest.mark.slow)],
)
def test_inverse_of_the_bound(rate: float, steps: int, kappa: float, goal: float) -> None:
    bound = bounds.calibrate_noise(goal, kappa=kappa, sample_rate=rate, steps=steps)
    sigma = float(bound.value)
    assert bounds.reconstruction(sigma, rate, steps, kappa=kappa).value <= goal * (1 + 1e-12)
    assert bounds.reconstruction(sigma * (1 - 1e-7), rate, steps, kappa=kappa).value > goal
    assert bound.success <= goal
    # ε-calibration promises the same and needs more noise.
    assert bound.epsilon_noise_multiplier > sigma
    epsilon = accounting.epsilon(bound.epsilon_noise_multiplier, rate, steps, delta=1e-5).value
    assert min(kappa * math.exp(epsilon) + 1e-5, 1 - math.exp(-epsilon) * (1 - 1e-5 - kappa)) <= goal * (1 + 1e-6)


def test_calibration_in_closed_form_and_limits() -> None:
    # Φ(Φ⁻¹(κ) + √T/σ) = γ
    expected = 10.0 / (special.ndtri(0.5) - special.ndtri(0.1))
    bound = bounds.calibrate_noise(0.5, kappa=0.1, sample_rate=1.0, steps=100)
    assert bound.value == pytest.approx(expected, rel=1e-8)
    assert bound.value >= expected * (1 - 1e-12)
    assert bounds.calibrate_noise(1.0, kappa=0.1, sample_rate=0.5, steps=3).value == 0.0
    assert bounds.calibrate_noise(0.1, kappa=0.1, sample_rate=0.0, steps=3).value == 0.0
    # σ = 0: 1 − .9(1 − .1) = .19 already suffices.
    assert bounds.calibrate_noise(0.2, kappa=0.1, sample_rate=0.1, steps=1).value == 0.0
    weighted = bounds.calibrate_noise(0.5, prior=[0.1] * 10, sample_rate=1.0, steps=100)
    assert weighted.value == pytest.approx(bound.value, rel=1e-8)
    tiny = bounds.calibrate_noise(1e-100, log_kappa=-784 * math.log(4), sample_rate=1.0, steps=10)
    assert tiny.success == pytest.approx(1e-100, rel=1e-6)
    with pytest.raises(ValueError, match=r"`target_success` must be above kappa=0\.1, .*, got 0\.05"):
        bounds.calibrate_noise(0.05, kappa=0.1, sample_rate=0.5, steps=3)
    with pytest.raises(ValueError, match=r"`target_success` must be above log_kappa=0, .*, got 0\.5"):
        bounds.calibrate_noise(0.5, log_kappa=0.0, sample_rate=0.5, steps=3)
    with pytest.raises(ValueError, match="`kappa` must be a number"):
        bounds.calibrate_noise(0.5, kappa=[0.1, 0.2], sample_rate=0.5, steps=3)


@pytest.mark.parametrize("log_kappa", [-700.0, -746.0, -1086.9])
def test_calibration_at_tiny_kappa(log_kappa: float) -> None:
    bound = bounds.calibrate_noise(0.5, log_kappa=log_kappa, sample_rate=1.0, steps=100)
    assert bound.epsilon == pytest.approx(math.log(0.5 - 1e-5) - log_kappa)
    assert bound.epsilon_noise_multiplier > bound.value
    assert 1 < bound.savings < 2


@pytest.mark.full
def test_setting_with_less_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny κ the exact bound reaches little noise only so far; the answer suffices all the same."""

    def beyond(*_: object, **__: object) -> None:
        raise numerics.AccuracyError("too wide a range")

    monkeypatch.setattr(accounting, "noise_multiplier", beyond)
    bound = bounds.calibrate_noise(0.2, log_kappa=-1086.9, sample_rate=0.1, steps=100)
    assert bound.success <= 0.2
    assert math.isnan(bound.epsilon_noise_multiplier)
    assert [note.partition(":")[0] for note in bound.assumptions.notes[:3]] == [
        "this much noise suffices",
        "less noise may do",
        "the noise that calibrating epsilon takes",
    ]
    sure = bounds.calibrate_noise(0.5, kappa=0.1, sample_rate=0.1, steps=100)
    assert sure.assumptions.notes[0] == "this much noise suffices"
    assert not any("less noise" in note for note in sure.assumptions.notes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bounds.calibrate_noise(1.5, kappa=0.1, sample_rate=0.5, steps=2),
            r"`target_success` must be in \[0, 1\], got 1.5",
        ),
        (lambda: bounds.calibrate_noise(0.5, kappa=0.1, prior=[1.0], sample_rate=0.5, steps=2), "exactly one"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
