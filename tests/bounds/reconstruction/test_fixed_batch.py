"""Fixed-size batches: the pair against its profile, against what it must dominate, adjacency, labels, bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from leakcore import bounds, mechanisms


def _pair(sigma: Any, rate: float, steps: int) -> mechanisms.FixedSize:
    return mechanisms.FixedSize(sigma, round(1000 * rate), 1000, steps)


GRID = np.linspace(-30.0, 30.0, 400_001)


def _blow_up(mu: np.ndarray, nu: np.ndarray, kappa: float) -> float:
    """B_κ of two densities on GRID, by sorting their ratio."""
    order = np.argsort(-(np.log(mu + 1e-300) - np.log(nu + 1e-300)), kind="stable")
    step = GRID[1] - GRID[0]
    spent, won = np.cumsum(nu[order]) * step, np.cumsum(mu[order]) * step
    return float(np.interp(kappa, np.concatenate([[0.0], spent]), np.concatenate([[0.0], won])))


def _normal(centre: float, sigma: float) -> np.ndarray:
    return np.asarray(stats.norm.pdf(GRID, centre, sigma))


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (2.0, 0.5), (0.7, 0.02), (1.5, 1.0)])
@pytest.mark.parametrize("under", ["null", "alternative"])
def test_one_step_has_the_stated_profile(sigma: float, rate: float, under: str) -> None:
    count = 400_000
    loss = _pair(sigma, rate, 1).sample_log_ratio(count, under, 5, 0)
    q, p = stats.norm(0.0, sigma), stats.norm(2.0, sigma)

    def hockey(alpha: float) -> float:
        def above(x: float) -> float:
            mixed = (1 - rate) * q.pdf(x) + rate * p.pdf(x)
            return max(mixed - alpha * q.pdf(x), 0.0)

        def below(x: float) -> float:
            mixed = (1 - rate) * p.pdf(x) + rate * q.pdf(x)
            return max(p.pdf(x) - alpha * mixed, 0.0)

        return float(integrate.quad(above if alpha >= 1 else below, -12.0, 16.0, limit=400, points=[0.0, 1.0, 2.0])[0])

    for alpha in (0.3, 0.9, 1.0, 1.3, 3.0):
        # H_α = E_μ(1 − αe^{−L})_+ = E_ν(e^L − α)_+.
        drawn = (
            np.maximum(1 - alpha * np.exp(-loss), 0) if under == "alternative" else np.maximum(np.exp(loss) - alpha, 0)
        )
        error = float(drawn.std()) / math.sqrt(count) + 1e-9
        # 40 comparisons at 4.5 standard errors: p = 3e-4 in all.
        assert abs(float(drawn.mean()) - hockey(alpha)) < 4.5 * error


@pytest.mark.parametrize("kappa", [0.01, 0.1, 0.5, 0.9])
def test_it_dominates_data_sets_of_either_extreme(kappa: float) -> None:
    # Four records, batches of one, all others at −C or all at +C: the two worst data sets for a record's swap.
    sigma, rate = 1.0, 0.25
    low, high = _normal(-1.0, sigma), _normal(1.0, sigma)
    cases = {
        "others opposite": ((1 - rate) * low + rate * high, low),
        "others alike": (high, (1 - rate) * high + rate * low),
        "others silent": (0.75 * _normal(0.0, sigma) + 0.25 * high, 0.75 * _normal(0.0, sigma) + 0.25 * low),
    }
    bound = bounds.reconstruction_of(_pair(sigma, rate, 1), kappa=kappa, num_samples=400_000)
    exact = {name: _blow_up(mu, nu, kappa) for name, (mu, nu) in cases.items()}
    assert bound.value >= max(exact.values())
    # Neither of the two extremes dominates alone, and the pair is hardly above the larger one.
    assert bound.interval[0] <= max(exact.values()) + 0.02


def test_full_batches_are_a_gaussian_pair_of_twice_the_separation() -> None:
    bound = bounds.reconstruction_of(_pair(8.0, 1.0, 4), kappa=[0.01, 0.1], num_samples=200_000)
    truth = bounds.reconstruction(4.0, 1.0, 4, kappa=[0.01, 0.1]).value
    low, high = bound.interval
    assert (low <= truth).all()
    assert (truth <= high).all()


def test_result_carries_replacement_and_its_kind() -> None:
    pair = _pair([1.0, 2.0], 0.1, 2)
    bound = bounds.reconstruction_of(pair, kappa=0.1, num_samples=20_000)
    assert (bound.kind, bound.adjacency) == ("upper", "replace")
    unproved = bounds.StatedPair(pair, dominates=False)
    assert bounds.reconstruction_of(unproved, kappa=0.1, num_samples=20_000).kind == "estimate"
    with pytest.raises(ValueError, match=r"`adjacency` must be None or 'replace'.*, got 'add-remove'"):
        bounds.StatedPair(pair, adjacency="add-remove")


def test_samples_depend_on_their_number_alone_and_none_without_steps() -> None:
    pair = _pair(1.0, 0.3, 5)
    whole = pair.sample_log_ratio(1000, "alternative", 3, 0)
    np.testing.assert_array_equal(whole[400:], pair.sample_log_ratio(600, "alternative", 3, 400))
    assert (whole != pair.sample_log_ratio(1000, "alternative", 4, 0)).any()
    assert (_pair(1.0, 0.3, 0).sample_log_ratio(7, "null", 0, 0) == 0.0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1, 10, 3), r"`noise_multiplier` must be above 0 and finite, got 0\.0"),
        ((math.inf, 1, 10, 3), r"`noise_multiplier` must be above 0 and finite, got inf"),
        ((1.0, 11, 10, 3), r"`batch_size` must be at most dataset_size=10, got 11"),
        ((1.0, 0, 10, 3), "`batch_size` must be at least 1, got 0"),
        (
            ([1.0, 2.0], 1, 10, 3),
            r"`noise_multiplier` must be a number or an array of length steps=3, got shape \(2,\)",
        ),
    ],
)
def test_bad_input_is_named(arguments: tuple[Any, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mechanisms.FixedSize(*arguments)
