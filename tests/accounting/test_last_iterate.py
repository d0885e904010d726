"""ε of the final model of a linear loss: against closed forms, dp-accounting, and trainings of such a loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from leakcore import accounting


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_full_batches(sigma):
    last = accounting.last_iterate_epsilon(sigma, 1.0, 9, delta=1e-5)
    assert float(last) == float(accounting.epsilon(sigma, 1.0, 9, delta=1e-5))
    assert (last.kind, last.adjacency, last.delta) == ("estimate", "add-remove", 1e-5)
    assert "final model alone" in last.assumptions.attacker


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.02), (0.4, 0.3), (5.0, 0.5)])
def test_one_step(sigma, rate):
    last = accounting.last_iterate_epsilon(sigma, rate, 1, delta=1e-6)
    assert float(last) == pytest.approx(float(accounting.epsilon(sigma, rate, 1, delta=1e-6)), rel=1e-8)


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.1, 5), (3.0, 0.5, 8)])
def test_mixture_of_gaussians(sigma, rate, steps):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    count = np.arange(steps + 1)
    oracle = pld.from_mixture_gaussian_mechanism(
        standard_deviation=math.sqrt(steps) * sigma,
        sensitivities=count.tolist(),
        sampling_probs=stats.binom.pmf(count, steps, rate).tolist(),
        value_discretization_interval=1e-2,
    ).get_epsilon_for_delta(1e-5)
    last = float(accounting.last_iterate_epsilon(sigma, rate, steps, delta=1e-5))
    assert oracle - 0.02 <= last <= oracle + 1e-6  # the oracle rounds up, by its interval


def test_quadrature():
    sigma, rate, steps, delta = 0.8, 0.1, 40, 1e-4
    epsilon = float(accounting.last_iterate_epsilon(sigma, rate, steps, delta=delta))
    count, spread = np.arange(steps + 1), math.sqrt(steps) * sigma
    weight = stats.binom.pmf(count, steps, rate)

    def difference(x: float, sign: int) -> float:
        with_row = float((weight * stats.norm.pdf(x, count, spread)).sum())
        pair = (with_row, stats.norm.pdf(x, 0, spread))[::sign]
        return max(0.0, pair[0] - math.exp(epsilon) * pair[1])

    deltas = [
        integrate.quad(difference, -12 * spread, 12 * spread + steps, args=(sign,), limit=500, epsabs=1e-9)[0]
        for sign in (1, -1)
    ]
    assert max(deltas) == pytest.approx(delta, rel=1e-3)


@pytest.mark.full(keep=6)
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_below_all_releases(sigma, rate):
    """The final model of a linear loss is a function of all releases."""
    every = accounting.epsilon(sigma, rate, 100, delta=1e-5)
    assert float(accounting.last_iterate_epsilon(sigma, rate, 100, delta=1e-5)) <= float(every) * (1 + 1e-9)


def test_edges():
    assert float(accounting.last_iterate_epsilon(1.0, 0.1, 0, delta=1e-5)) == 0.0
    assert float(accounting.last_iterate_epsilon(1.0, 0.0, 10, delta=1e-5)) == 0.0
    assert float(accounting.last_iterate_epsilon(1e4, 0.1, 10, delta=1e-2)) == 0.0
    assert float(accounting.last_iterate_epsilon(0.02, 0.5, 100, delta=1e-5)) > 1000


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"noise_multiplier": 0}, "`noise_multiplier` must be above 0"),
        ({"sample_rate": 1.5}, r"`sample_rate` must be in \[0, 1\], got 1.5"),
        ({"steps": -1}, "`steps` must be at least 0, got -1"),
        ({"delta": 0}, r"`delta` must be in \(0, 1\), got 0"),
    ],
)
def test_bad_arguments(more, message):
    with pytest.raises(ValueError, match=message):
        accounting.last_iterate_epsilon(
            **{"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5} | more
        )
