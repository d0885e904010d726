"""The optimal attack's success among symmetric candidates: quadrature, simulation, and the bound it meets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, special

from leakcore import bounds


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("separation", [0.1, 1.0, 4.0])
def test_orthogonal_is_its_integral(n: int, separation: float) -> None:
    def density(z: float) -> float:
        return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * float(special.ndtr(z + separation)) ** (n - 1)

    expected = integrate.quad(density, -12.0, 12.0, epsabs=1e-13, limit=300)[0]
    assert bounds.orthogonal_success(1.0 / separation, 1, n).value == pytest.approx(expected, abs=1e-11)


def test_orthogonal_attack_simulated() -> None:
    # The maximum-likelihood choice among n orthogonal signals of length √T/σ in unit noise; 5 standard errors.
    rng = np.random.default_rng(11)
    n, separation, trials = 10, 2.0, 200_000
    noise = rng.standard_normal((trials, n))
    noise[:, 0] += separation
    share = (noise.argmax(axis=1) == 0).mean()
    bound = bounds.orthogonal_success(5.0, 100, n)
    assert abs(bound.value - share) < 5.0 * math.sqrt(0.25 / trials)
    assert bound.kind == "estimate"


def test_figures_of_the_trial() -> None:
    # ε = 1, 4, 10 at T = 100, δ = 1e-5, n = 10.
    for sigma, orthogonal, bound in [(37.30635919, 0.148, 0.155), (10.8, 0.318, 0.361), (4.998886302, 0.674, 0.764)]:
        assert bounds.orthogonal_success(sigma, 100, 10).value == pytest.approx(orthogonal, abs=2e-3)
        assert bounds.reconstruction(sigma, 1.0, 100, kappa=0.1).value == pytest.approx(bound, abs=2e-3)


def test_antipodal_pair_meets_the_bound() -> None:
    bound = bounds.orthogonal_success(3.0, 7, 2, geometry="simplex").value
    assert bound == pytest.approx(special.ndtr(math.sqrt(7.0) / 3.0), rel=1e-12)
    assert bound == pytest.approx(bounds.reconstruction(3.0, 1.0, 7, kappa=0.5).value, rel=1e-12)


def test_orthogonal_limits_and_errors() -> None:
    assert bounds.orthogonal_success(1.0, 0, 4).value == 0.25
    assert bounds.orthogonal_success(0.0, 3, 4).value == 1.0
    assert bounds.orthogonal_success(1.0, 3, 1).value == 1.0
    assert bounds.orthogonal_success(math.inf, 3, 4).value == 0.25
    for changes, message in [
        ({"noise_multiplier": -1.0}, r"`noise_multiplier` must be at least 0, got -1.0"),
        ({"num_candidates": 0}, "`num_candidates` must be at least 1, got 0"),
        ({"geometry": "cube"}, "`geometry` must be 'orthogonal' or 'simplex', got 'cube'"),
        ({"steps": -2}, "`steps` must be at least 0, got -2"),
    ]:
        with pytest.raises(ValueError, match=message):
            bounds.orthogonal_success(**({"noise_multiplier": 1.0, "steps": 1, "num_candidates": 3} | changes))
