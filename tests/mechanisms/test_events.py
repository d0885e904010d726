"""Events of dp-accounting, and the conversions of zero-concentrated privacy."""

import math

import numpy as np
import pytest

from leakcore import accounting, bounds, mechanisms


def test_events_become_mechanisms():
    dp = pytest.importorskip("dp_accounting")
    step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
    assert mechanisms.from_event(dp.SelfComposedDpEvent(step, 1000)) == mechanisms.Poisson(1.0, 0.01, 1000)
    fixed = dp.SampledWithoutReplacementDpEvent(1000, 10, dp.GaussianDpEvent(1.0))
    assert mechanisms.from_event(dp.SelfComposedDpEvent(fixed, 5)) == mechanisms.FixedSize(1.0, 10, 1000, 5)
    assert mechanisms.from_event(dp.NoOpDpEvent()) == mechanisms.GDP(0.0)
    assert mechanisms.from_event(dp.ZCDpEvent(0.5)) == mechanisms.ZCDP(0.5, claimed_under="add-remove")
    both = mechanisms.from_event(dp.ComposedDpEvent([dp.SelfComposedDpEvent(step, 100), dp.GaussianDpEvent(5.0)]))
    assert both == mechanisms.Poisson(1.0, 0.01, 100) @ mechanisms.FullBatch(5.0, 1)


def test_events_agree_with_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    step = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.2)), 200)
    event = dp.ComposedDpEvent([step, dp.GaussianDpEvent(4.0)])
    theirs = dp.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    ours = accounting.epsilon(mechanisms.from_event(event), delta=1e-5)
    assert ours.interval[0] <= theirs <= ours.value * 1.001


def test_other_events_are_refused_by_name():
    dp = pytest.importorskip("dp_accounting")
    for event in (dp.NonPrivateDpEvent(), dp.SampledWithReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)), 3):
        with pytest.raises(ValueError, match="`event` must be an event"):
            mechanisms.from_event(event)


@pytest.mark.parametrize(("rho", "delta"), [(0.01, 1e-5), (0.5, 1e-5), (3.0, 1e-8)])
def test_zcdp_is_no_tighter_than_the_gaussian_and_tighter_than_its_first_conversion(rho, delta):
    """A Gaussian of μ²/2 = ρ is ρ-zCDP; Bun and Steinke's ε = ρ + 2√(ρ·log(1/δ)) is looser."""
    spent = accounting.epsilon(mechanisms.ZCDP(rho), delta=delta).value
    assert accounting.epsilon(mechanisms.GDP(math.sqrt(2.0 * rho)), delta=delta).value < spent
    assert spent < rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))
    assert accounting.delta(mechanisms.ZCDP(rho), epsilon=spent).value == pytest.approx(delta, rel=1e-3)


def test_zcdp_composes_with_others_from_above():
    both = accounting.epsilon(mechanisms.ZCDP(0.5) @ mechanisms.GDP(1.0), delta=1e-5).value
    assert accounting.epsilon(mechanisms.GDP(math.sqrt(2.0)), delta=1e-5).value < both
    assert both < accounting.epsilon(mechanisms.ZCDP(1.0), delta=1e-5).value * 1.01


def test_reconstruction_under_zcdp_lies_above_the_gaussian():
    kappa = np.array([0.01, 0.1, 0.5])
    claimed = bounds.reconstruction(mechanisms.ZCDP(0.5), kappa=kappa).value
    assert (bounds.reconstruction(mechanisms.GDP(1.0), kappa=kappa).value < claimed).all()
    assert (claimed < 1.0).all()
