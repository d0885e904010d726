"""The Gaussian pair in log space against 50-digit arithmetic, and its inverses."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcore import bounds
from leakcore.numerics import gaussian_pair_epsilon
from leakcore.numerics.gaussian import gaussian_pair


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


def test_agrees_with_the_vectorised_inverse() -> None:
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
def test_far_quantiles_lose_nothing_and_the_interval_holds_the_truth(
    log_kappa: float, separation: float, log_b: str
) -> None:
    truth = Decimal(log_b)
    bound = bounds.reconstruction(1 / separation, 1.0, 1, log_kappa=log_kappa)
    low, high = (Decimal(float(end)) for end in bound.log_interval)
    assert low <= truth <= high
    assert float(high - low) < 1e-14 * abs(log_kappa) + 1e-13
    assert abs(Decimal(float(bound.log_value)) - truth) <= (high - low) / 2


def test_at_the_ends_nothing_is_rounded_and_nothing_warns() -> None:
    """Warnings are errors in the test suite."""
    log_kappa = np.array([-np.inf, -1e8, -1e-300, 0.0])
    for separation in (0.0, 1e-9, 1.0, 40.0, 1e9, math.inf):
        error = gaussian_pair.log_blow_up_error(log_kappa, separation)
        assert np.isfinite(error).all()
        assert (error >= 0).all()
        assert error[[0, 3]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("separation", [1.1e10, 1e12, 1e20, 1e100])
@pytest.mark.parametrize("log_delta", [-700.0, math.log(1e-5), math.log(0.9)])
def test_limits_of_epsilon_hold_the_truth_where_its_terms_cancel(separation: float, log_delta: float) -> None:
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
