"""ε of a Gaussian pair: against the printed profile, its defining integral, and known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from leakcore.numerics import gaussian_pair_epsilon


def _epsilon(separation: object, delta: float) -> float | np.ndarray:
    return gaussian_pair_epsilon(separation, delta=delta)


def _profile(epsilon: float, m: float) -> float:
    return float(stats.norm.cdf(m / 2 - epsilon / m) - math.exp(epsilon) * stats.norm.cdf(-m / 2 - epsilon / m))


def test_known_answers() -> None:
    # One step of the Gaussian mechanism at noise multiplier 1, δ = 1e-5: replacement (m = 2) and add/remove (m = 1).
    assert _epsilon(2.0, 1e-5) == pytest.approx(9.997, abs=5e-4)
    assert _epsilon(1.0, 1e-5) == pytest.approx(4.38, abs=5e-3)


@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.01, 0.5])
def test_inverts_the_printed_profile(delta: float) -> None:
    for m in np.geomspace(0.01, 20, 30):
        if _profile(0.0, m) > delta:
            oracle = optimize.brentq(lambda e, m=m: _profile(e, m) - delta, 0, m * m + 10 * m, xtol=1e-14, rtol=1e-14)
            assert _epsilon(m, delta) == pytest.approx(oracle, rel=1e-11, abs=1e-14)
        else:
            assert _epsilon(m, delta) == 0.0


@pytest.mark.parametrize(
    ("m", "delta"), [(1e-3, 1e-5), (0.0999, 1e-12), (0.1001, 1e-12), (50.0, 1e-300), (200.0, 1e-5)]
)
def test_satisfies_its_definition_where_the_printed_form_cancels(m: float, delta: float) -> None:
    # δ(ε) = ∫ φ(x − m)(1 − e^{−(mx − m²/2 − ε)})₊ dx, by quadrature of the positive part, scaled by its largest value.
    epsilon = _epsilon(m, delta)
    start = m / 2 + epsilon / m - m

    def integrand(u: float) -> float:
        return math.exp(-start * u - u * u / 2) * -math.expm1(-m * u)

    value, _ = integrate.quad(integrand, 0, 40 if start > -30 else 40 - start, epsabs=0, epsrel=1e-12, limit=400)
    log_delta = math.log(value) - start * start / 2 - 0.5 * math.log(2 * math.pi)
    assert log_delta == pytest.approx(math.log(delta), rel=1e-9)


@pytest.mark.parametrize("m", [20.0, 45.0, 300.0])
def test_delta_close_to_one(m: float) -> None:
    # 1 − δ = Φ(ε/m − m/2) + e^ε Φ(−m/2 − ε/m), which has no digits left in the profile itself.
    gap = 2.0**-40
    epsilon = _epsilon(m, 1 - gap)
    both = special.ndtr(epsilon / m - m / 2) + math.exp(epsilon + special.log_ndtr(-m / 2 - epsilon / m))
    assert both == pytest.approx(gap, rel=1e-8)


def test_limit_cases() -> None:
    np.testing.assert_array_equal(_epsilon([0.0, 1e-9, 3.0, math.inf], 0.0), [0.0, math.inf, math.inf, math.inf])
    np.testing.assert_array_equal(_epsilon([0.0, math.inf], 0.5), [0.0, math.inf])
    total_variation = special.erf(1.0 / math.sqrt(8))
    assert _epsilon(1.0, total_variation + 1e-15) == 0.0
    assert 0 < _epsilon(1.0, total_variation - 1e-6) < 1e-5
    assert _epsilon(np.zeros(0), 1e-5).shape == (0,)
    assert isinstance(_epsilon(1, 1e-5), float)


def test_monotone() -> None:
    values = _epsilon(np.geomspace(1e-6, 1e4, 300), 1e-5)
    assert (np.diff(values) >= 0).all()
    # No jump where the two forms of the profile meet.
    low, high = _epsilon([np.nextafter(0.1, 0), 0.1], 1e-5)
    assert high == pytest.approx(low, rel=1e-12)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"`separation\[1\]` must be at least 0, got -1.0"):
        _epsilon([0.0, -1.0], 0.1)
    with pytest.raises(ValueError, match=r"`delta` must be in \[0, 1\), got 1"):
        _epsilon(1.0, 1)


@pytest.mark.parametrize(("m", "delta"), [(6.0, 0.9), (4.0, 0.6), (8.0, 0.999)])
def test_most_of_the_mass_beyond_delta(m: float, delta: float) -> None:
    """δ above a half, where the profile is taken from its complement: checked by the integral that defines it."""
    epsilon = gaussian_pair_epsilon(m, delta=delta)
    cut = epsilon / m + m / 2

    def excess(x: float) -> float:
        return float(stats.norm.pdf(x - m) - math.exp(epsilon) * stats.norm.pdf(x))

    assert integrate.quad(excess, cut, m + 12, epsabs=0, epsrel=1e-12, limit=200)[0] == pytest.approx(delta, rel=1e-10)
