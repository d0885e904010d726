"""The Gaussian pair and one sampled step: profile, blow-up and their inverses against many digits."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, special, stats

from leakcore import bounds
from leakcore.numerics import gaussian_pair, gaussian_pair_epsilon, profile
from leakcore.numerics.loss import PrivacyLoss


@settings(derandomize=True, deadline=None, max_examples=150)
@given(separation=st.floats(1e-6, 50.0), x=st.floats(-30.0, 30.0))
def test_profile_against_many_digits(separation: float, x: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    epsilon = separation * x
    with mpmath.workdps(80):
        s, e = mpmath.mpf(separation), mpmath.mpf(epsilon)

        def phi(v: object) -> object:
            return mpmath.erfc(-v / mpmath.sqrt(2)) / 2

        exact = mpmath.log(phi(s / 2 - e / s) - mpmath.exp(e) * phi(-s / 2 - e / s))
        # Rounding ε/s to a double moves log δ by its slope times the rounding.
        slack = 4e-16 * (abs(x) + separation) * (abs(x) + separation + 2.0)
        result = float(gaussian_pair.log_profile(np.asarray(epsilon), separation))
        assert abs(result - float(exact)) <= 1e-11 + slack + 1e-14 * abs(float(exact))


@pytest.mark.parametrize("separation", [0.0, 1e-3, 0.5, 4.0, 30.0])
def test_blow_up_against_many_digits(separation: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    for x in (-90.0, -20.0, -3.0, -0.1, 2.0):
        with mpmath.workdps(60):
            log_kappa = float(mpmath.log(mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2))
            exact = float(mpmath.log(mpmath.erfc(-(mpmath.mpf(x) + separation) / mpmath.sqrt(2)) / 2))
        result = float(gaussian_pair.log_blow_up(np.asarray(log_kappa), separation))
        assert result == pytest.approx(exact, rel=2e-14, abs=1e-13)


@pytest.mark.parametrize("separation", [0.01, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("log_delta", [-2000.0, -690.0, -11.5, -3.0, -1e-3])
def test_inverses(separation: float, log_delta: float) -> None:
    epsilon = gaussian_pair.epsilon_of(log_delta, separation)
    assert float(gaussian_pair.log_profile(np.asarray(epsilon), separation)) == pytest.approx(log_delta, rel=1e-9)
    if epsilon >= 0.0 and log_delta > -700.0:
        assert gaussian_pair.gaussian_separation(epsilon, math.exp(log_delta)) == pytest.approx(separation, rel=1e-9)


def test_known_values() -> None:
    assert gaussian_pair.epsilon_of(math.log(1e-5), 1.0) == pytest.approx(4.377178, abs=1e-5)
    assert gaussian_pair.epsilon_of(math.log(1e-5), 2.0) == pytest.approx(9.997256, abs=1e-5)


def test_limits() -> None:
    assert gaussian_pair.epsilon_of(-5.0, math.inf) == math.inf
    # Nothing leaks: δ(ε) = 1 − e^ε for ε < 0.
    assert gaussian_pair.epsilon_of(math.log(0.25), 0.0) == pytest.approx(math.log(0.75))
    assert gaussian_pair.gaussian_separation(1.0, 0.0) == 0.0
    assert float(gaussian_pair.log_blow_up(np.asarray(-3.0), math.inf)) == 0.0
    assert float(gaussian_pair.log_blow_up(np.asarray(0.0), 1.0)) == 0.0


def test_vectorised_inverse() -> None:
    """Two implementations of one inverse, a scalar of either sign and a batch at ε ≥ 0, written apart."""
    separations = np.geomspace(0.05, 40.0, 25)
    for delta in (1e-12, 1e-5, 0.01):
        batch = gaussian_pair_epsilon(separations, delta=delta)
        single = np.array([gaussian_pair.epsilon_of(math.log(delta), float(s)) for s in separations])
        np.testing.assert_allclose(batch, np.maximum(single, 0.0), rtol=1e-11, atol=1e-13)


# (log κ, s, log B) with mpmath at 60 digits: Newton on log(erfc(−x/√2)/2) = log κ, then log(erfc(−(x + s)/√2)/2).
FAR = [
    (-1e3, 1.0, "-955.8616068954167987487707"),
    (-1e4, 1.0, "-9859.113062564494206804214"),
    (-1e5, 1.0, "-99553.29986769351429720466"),
    (-1e6, 1.0, "-998586.291509649899689607"),
    (-1e8, 1.0, "-99985858.36504631051815353"),
    (-1e4, 128.0, "-93.02825516036949571529814"),
    (-1e6, 1414.0, "-0.8729937060032499334235885"),
]


@pytest.mark.parametrize(("log_kappa", "separation", "log_b"), FAR)
def test_far_quantiles(log_kappa: float, separation: float, log_b: str) -> None:
    truth = Decimal(log_b)
    bound = bounds.reconstruction(1 / separation, 1.0, 1, log_kappa=log_kappa)
    low, high = (Decimal(float(end)) for end in bound.log_interval)
    assert low <= truth <= high
    assert float(high - low) < 1e-14 * abs(log_kappa) + 1e-13
    assert abs(Decimal(float(bound.log_value)) - truth) <= (high - low) / 2


def test_ends_of_kappa() -> None:
    """Warnings are errors in the test suite."""
    log_kappa = np.array([-np.inf, -1e8, -1e-300, 0.0])
    for separation in (0.0, 1e-9, 1.0, 40.0, 1e9, math.inf):
        error = gaussian_pair.log_blow_up_error(log_kappa, separation)
        assert np.isfinite(error).all()
        assert (error >= 0).all()
        assert error[[0, 3]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("separation", [1.1e10, 1e12, 1e20, 1e100])
@pytest.mark.parametrize("log_delta", [-700.0, math.log(1e-5), math.log(0.9)])
def test_epsilon_limits_where_terms_cancel(separation: float, log_delta: float) -> None:
    """ε/s − s/2 has no digits of a float left there: δ at each limit, with enough digits, is on its side."""
    mpmath = pytest.importorskip("mpmath")
    low, high = gaussian_pair.epsilon_limits(log_delta, separation)
    with mpmath.workdps(260):
        s = mpmath.mpf(separation)

        def log_profile(epsilon: float) -> object:
            # In Mills' ratios: neither term overflows, whatever s.
            x = mpmath.mpf(epsilon) / s - s / 2
            first = mpmath.erfc(x / mpmath.sqrt(2)) / 2
            # e^ε Φ(−s − x) = φ(x)·R(s + x), R(y) = 1/y·(1 − 1/y² + …); one term is right to s⁻².
            second = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi) / (s + x)
            return mpmath.log(first - second) if first > second else -mpmath.inf

        assert log_profile(high) <= log_delta <= log_profile(low)
    assert high - low <= 1e-14 * high


def _epsilon(separation: object, delta: float) -> float | np.ndarray:
    return gaussian_pair_epsilon(separation, delta=delta)


def _profile(epsilon: float, m: float) -> float:
    return float(stats.norm.cdf(m / 2 - epsilon / m) - math.exp(epsilon) * stats.norm.cdf(-m / 2 - epsilon / m))


@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.01, 0.5])
def test_inverse_of_the_printed_profile(delta: float) -> None:
    for m in np.geomspace(0.01, 20, 30):
        if _profile(0.0, m) > delta:
            oracle = optimize.brentq(lambda e, m=m: _profile(e, m) - delta, 0, m * m + 10 * m, xtol=1e-14, rtol=1e-14)
            assert _epsilon(m, delta) == pytest.approx(oracle, rel=1e-11, abs=1e-14)
        else:
            assert _epsilon(m, delta) == 0.0


@pytest.mark.parametrize(
    ("m", "delta"), [(1e-3, 1e-5), (0.0999, 1e-12), (0.1001, 1e-12), (50.0, 1e-300), (200.0, 1e-5)]
)
def test_definition_where_the_printed_form_cancels(m: float, delta: float) -> None:
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


def test_bad_input() -> None:
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


@pytest.mark.full(keep=5)
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
        low, high = (math.exp(part) for part in profile.log_delta(loss, epsilon, direction))
        assert low <= high
        assert high == pytest.approx(direct, rel=1e-6, abs=1e-9)
    for delta in (0.2 * rate, 1e-6, 1e-12):
        low, high = profile.epsilon_for(loss, math.log(delta), direction)
        assert high - low < 1e-9 * (1.0 + abs(high))
        assert profile.log_delta(loss, high, direction)[0] <= math.log(delta)
        assert profile.log_delta(loss, low, direction)[1] >= math.log(delta)
