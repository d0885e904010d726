"""Fano's bound: Table 2, the optimal attack, limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from leakcore import bounds

SIGMAS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)

TABLE_2 = {
    ("analytic", 10): (0.976, 0.593, 0.380, 0.274, 0.213, 0.174),
    ("analytic", 100): (0.861, 0.346, 0.195, 0.131, 0.097, 0.076),
    ("monte-carlo", 10): (0.7708, 0.3987, 0.2548, 0.1848, 0.1444, 0.1182),
    ("monte-carlo", 100): (0.5470, 0.2114, 0.1206, 0.0819, 0.0611, 0.0484),
}


@pytest.mark.parametrize("n", [10, 100])
def test_table_2_analytic(n: int) -> None:
    bound = [bounds.fano_advantage(s, num_candidates=n, information="analytic").value for s in SIGMAS]
    np.testing.assert_allclose(bound, TABLE_2["analytic", n], atol=5.01e-4)


@pytest.mark.parametrize("n", [10, 100])
def test_table_2_monte_carlo(n: int) -> None:
    for sigma, printed in zip(SIGMAS, TABLE_2["monte-carlo", n], strict=True):
        bound = bounds.fano_advantage(
            sigma, num_candidates=n, information=bounds.SampledInformation(num_samples=40_000, seed=3)
        )
        assert bound.standard_error is not None
        # dt/dI is about 1/log(n−1)+: four standard errors of I in the advantage, and the printed digits.
        assert bound.value == pytest.approx(printed, abs=6.0 * bound.standard_error + 2e-3)
        assert bound.kind == "estimate"


def test_fano_against_the_best_attack() -> None:
    for sigma in SIGMAS:
        for n in (2, 10, 100):
            exact = bounds.reconstruction(sigma, 1.0, 1, kappa=1.0 / n).advantage
            one_hot = bounds.orthogonal_success(sigma, 1, n).value
            for information in ("rdp", "analytic"):
                bound = bounds.fano_advantage(sigma, num_candidates=n, information=information)
                assert bound.success >= one_hot
                assert bound.kind == "upper"
            if n == 10:
                assert bounds.fano_advantage(sigma, num_candidates=n).value >= exact


def test_fano_limits() -> None:
    assert bounds.fano_advantage(0.0, num_candidates=7).value == 1.0
    assert bounds.fano_advantage(0.0, num_candidates=7, information="analytic").value == 1.0
    assert bounds.fano_advantage(1.0, num_candidates=1).value == 0.0
    assert bounds.fano_advantage(math.inf, num_candidates=7).value == pytest.approx(0.0, abs=1e-6)
    assert bounds.fano_advantage(1.0, 0.1, 0, num_candidates=7).value == pytest.approx(0.0, abs=1e-6)
    weighted = bounds.fano_advantage(2.0, 0.1, 5, prior=[0.5, 0.25, 0.25, 0.0])
    assert weighted.num_candidates == 3
    assert weighted.success >= bounds.discrete_prior(2.0, 0.1, 5, prior=[0.5, 0.25, 0.25]).value
    # I by the dominating pair is KL = E_μ[log r], T/(2σ²) at q = 1.
    assert bounds.fano_advantage(2.0, 1.0, 3, num_candidates=9).mutual_information == pytest.approx(3 / 8, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.fano_advantage(1.0), "exactly one"),
        (lambda: bounds.fano_advantage(1.0, num_candidates=0), r"`num_candidates` must be in \[1,.*, got 0"),
        (
            lambda: bounds.fano_advantage(1.0, 0.5, 2, num_candidates=3, information="analytic"),
            "must be 'rdp' for sample_rate < 1",
        ),
        (
            lambda: bounds.fano_advantage(1.0, num_candidates=3, information="guess"),
            r"`information` must be 'rdp', 'analytic'.*, got 'guess'",
        ),
        (lambda: bounds.AnalyticInformation(separation=3.0), r"`separation` must be in \(0, 2\], got 3\.0"),
        (lambda: bounds.SampledInformation(num_samples=1), "`num_samples` must be at least 2, got 1"),
        (lambda: bounds.SampledInformation(seed=-1), r"`seed` must be in \[0, 18446744073709551615\], got -1"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_information_by_name_and_object() -> None:
    for name, information in (
        ("rdp", bounds.RenyiInformation()),
        ("analytic", bounds.AnalyticInformation()),
        ("monte-carlo", bounds.SampledInformation()),
    ):
        by_name = bounds.fano_advantage(2.0, 1.0, 3, num_candidates=5, information=name)
        assert (
            by_name.to_dict() == bounds.fano_advantage(2.0, 1.0, 3, num_candidates=5, information=information).to_dict()
        )
    near = bounds.fano_advantage(2.0, num_candidates=5, information=bounds.AnalyticInformation(separation=0.5))
    assert near.value < bounds.fano_advantage(2.0, num_candidates=5, information="analytic").value
    with pytest.raises(ValueError, match="`information` must be 'rdp' for sample_rate < 1, got 'analytic'"):
        bounds.fano_advantage(2.0, 0.5, 3, num_candidates=5, information=bounds.AnalyticInformation())
