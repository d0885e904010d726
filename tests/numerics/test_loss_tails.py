"""Inversion against recursion, against closed forms and against a plain lattice: each number by two independent
routes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from leakcore.numerics.gaussian import gaussian_pair
from leakcore.numerics.privacy_loss import blow_up
from leakcore.numerics.privacy_loss.fourier_inversion import TiltedLaw
from leakcore.numerics.privacy_loss.loss import AccuracyError, PrivacyLoss, StepGroup
from leakcore.numerics.profile import profile as _profile
from leakcore.numerics.recursion import recursion_profile


def _loss(sigma: object, rate: object, steps: int) -> PrivacyLoss:
    return PrivacyLoss.of_steps(np.asarray(sigma, dtype=float), np.asarray(rate, dtype=float), steps)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(sigma=st.floats(0.05, 1e4), rate=st.floats(1e-9, 1.0 - 1e-9), z=st.floats(-30.0, 30.0))
def test_one_steps_loss_has_full_relative_accuracy(sigma: float, rate: float, z: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        s, q = mpmath.mpf(sigma), mpmath.mpf(rate)
        exact = mpmath.log(1 - q + q * mpmath.exp(mpmath.mpf(z) / s - 1 / (2 * s * s)))
        # The loss inherits the rounding of its exponent, which matters where exponent and result are far apart in size.
        shift = abs(mpmath.mpf(z) / s) + 1 / (2 * s * s)
        result = float(StepGroup(sigma, rate, 1).term(np.array([z]))[0])
        slope = q * mpmath.exp(mpmath.mpf(z) / s - 1 / (2 * s * s)) / mpmath.exp(exact)
        assert abs(result - exact) <= 2e-15 * abs(exact) + 4e-16 * shift * slope + 1e-300


@pytest.mark.parametrize(
    ("sigma", "rate", "theta"), [(1.0, 0.1, 2.0), (0.3, 0.01, 1.5), (5.0, 0.9, -3.0), (0.7, 0.5, 0.0)]
)
def test_cumulants_match_the_tilted_law(sigma: float, rate: float, theta: float) -> None:
    group = StepGroup(sigma, rate, 1)

    def moment(power: int) -> float:
        def f(z: float) -> float:
            value = float(group.term(np.array([z]))[0])
            return value**power * math.exp(theta * value - 0.5 * z * z) / math.sqrt(2.0 * math.pi)

        return integrate.quad(
            f, -15.0, 15.0 + max(theta, 0.0) / sigma, epsabs=1e-13, limit=400, points=[0.0, 1.0 / sigma]
        )[0]

    at = _loss(sigma, rate, 7).cumulants(theta)
    m0, m1, m2 = moment(0), moment(1), moment(2)
    assert at.value == pytest.approx(7.0 * math.log(m0), abs=1e-10)
    assert at.mean == pytest.approx(7.0 * m1 / m0, abs=1e-10)
    assert at.variance == pytest.approx(7.0 * (m2 / m0 - (m1 / m0) ** 2), rel=1e-8)


def test_cumulants_keep_tiny_moments_in_the_sum_of_many_steps() -> None:
    # K(0) = K(1) = 0 exactly: both laws have mass 1.
    loss = _loss(20.0, 1e-3, 100_000)
    assert abs(loss.cumulants(0.0).value) < 1e-12
    assert abs(loss.cumulants(1.0).value) < 1e-10


@pytest.mark.parametrize("sigma", [0.5, 1.0, 7.0])
@pytest.mark.parametrize("log_kappa", [-1e-4, -0.7, -2.3, -30.0, -1000.0])
def test_inversion_of_full_batch_steps_written_as_mixtures_is_the_closed_form(sigma: float, log_kappa: float) -> None:
    # A Gaussian part alone, forced through the Fourier series: 10 steps at q = 1 split into one that is a mixture with
    # q = 1 − 1e-15 and nine that are Gaussian.
    loss = PrivacyLoss((StepGroup(sigma, 1.0 - 1e-15, 1),), 9.0 / sigma**2)
    result = blow_up.log_blow_up_exact(loss, np.array([log_kappa]), force_numerical=True)
    exact = gaussian_pair.log_blow_up(np.array([log_kappa]), math.sqrt(10.0) / sigma)
    assert result.log_value[0] == pytest.approx(exact[0], rel=1e-11, abs=1e-12)
    assert result.log_low[0] - 1e-12 <= exact[0] <= result.log_high[0] + 1e-12


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.9])
def test_numerical_route_of_one_step_is_its_closed_form(sigma: float, rate: float) -> None:
    log_kappa = np.log([0.999, 0.5, 0.1, 1e-3, 1e-6])
    loss = _loss(sigma, rate, 1)
    result = blow_up.log_blow_up_exact(loss, log_kappa, force_numerical=True)
    exact = blow_up.log_blow_up_exact(loss, log_kappa)
    np.testing.assert_allclose(result.log_value, exact.log_value, rtol=0, atol=1e-9)
    assert (result.log_high >= exact.log_value - 1e-9).all()


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(0.59, 0.01, 100), (1.0, 0.1, 20), (0.8, 0.02, 400), (1.5, 0.3, 12)]
)
def test_inversion_and_recursion_agree(sigma: float, rate: float, steps: int) -> None:
    log_kappa = np.log([0.5, 0.1, 1e-3, 1e-6, 1e-12])
    first, first_error = blow_up.by_inversion(_loss(sigma, rate, steps), log_kappa)
    second, second_error = blow_up.by_recursion(_loss(sigma, rate, steps), log_kappa)
    assert (np.abs(first - second) <= first_error + second_error + 1e-12).all()


def _lattice_blow_up(sigma: float, rate: float, steps: int, kappa: float) -> tuple[float, float]:
    """B_κ between two lattice discretisations of the loss (rounded down and up), by direct convolution with FFT."""
    size, width = 1 << 18, 60.0
    h = 2.0 * width / size
    z = np.linspace(-12.0, 12.0 + 1.0 / sigma, 4_000_001)
    values = StepGroup(sigma, rate, 1).term(z)
    edges = special.ndtr(z)
    shifted = special.ndtr(z - 1.0 / sigma)
    mass = np.diff((1.0 - rate) * edges + rate * shifted)
    answers = []
    for rounding in (np.floor, np.ceil):
        cell = rounding(0.5 * (values[1:] + values[:-1]) / h).astype(np.int64) % size
        law = np.bincount(cell, mass, minlength=size)
        total = np.maximum(np.fft.irfft(np.fft.rfft(law) ** steps, size), 0.0)
        loss = np.fft.fftshift(np.fft.fftfreq(size)) * size * h
        total = np.fft.fftshift(total)
        keep = loss > -8.0
        loss, total = loss[keep], total[keep]
        above = np.cumsum(total[::-1])[::-1]
        nu = np.cumsum((total * np.exp(-loss))[::-1])[::-1]
        answers.append(float(np.min(above + np.exp(loss) * (kappa - nu))))
    return answers[0], answers[1]


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "kappa"), [(1.0, 0.1, 30, 0.1), (2.0, 0.5, 20, 0.01), (0.8, 0.2, 10, 0.5)]
)
def test_exact_lies_between_two_lattices(sigma: float, rate: float, steps: int, kappa: float) -> None:
    low, high = _lattice_blow_up(sigma, rate, steps, kappa)
    value = math.exp(blow_up.log_blow_up_exact(_loss(sigma, rate, steps), np.array([math.log(kappa)])).log_value[0])
    assert low - 1e-7 <= value <= high + 1e-7
    assert high - low < 0.02


def test_curve_equals_single_calls() -> None:
    loss = _loss(1.2, 0.05, 300)
    log_kappa = np.concatenate(
        (np.log1p(-np.geomspace(0.4, 1e-4, 7)), np.log(np.geomspace(0.6, 1e-200, 40)), [0.0, -5000.0])
    )
    curve = blow_up.log_blow_up_exact(loss, log_kappa)
    single = [blow_up.log_blow_up_exact(loss, np.array([k])).log_value[0] for k in log_kappa]
    np.testing.assert_allclose(curve.log_value, single, rtol=1e-12, atol=1e-12)
    order = np.argsort(log_kappa)
    assert (np.diff(curve.log_value[order]) >= 0.0).all()


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(1.0, 0.1, 50), (0.6, 0.01, 100), (0.35, 0.01, 30), (10.0, 0.01, 1000)]
)
def test_profile_and_epsilon_are_inverse(sigma: float, rate: float, steps: int, direction: str) -> None:
    for delta in (1e-2, 1e-5, 1e-7):
        low, high = _profile.epsilon_for(_loss(sigma, rate, steps), math.log(delta), direction)
        assert low <= high <= low + 2e-6 * (1.0 + abs(low))
        result = _profile.log_delta(_loss(sigma, rate, steps), 0.5 * (low + high), direction)
        slack = 1e-6 + 1e3 * (high - low)
        assert result[0] - slack <= math.log(delta) <= result[1] + slack


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.4, 0.01), (3.0, 0.7)])
@pytest.mark.parametrize("epsilon", [-0.05, 0.01, 0.5])
def test_profile_by_recursion_and_parity_is_one_steps_integral(sigma: float, rate: float, epsilon: float) -> None:
    # δ_remove(ε) = ∫ (μ − e^ε ν)_+ over x above the crossing of r(x) = e^ε.
    loss = _loss(sigma, rate, 2)
    x = np.linspace(-14.0 * sigma, 1.0 + 14.0 * sigma, 2401)
    ratio = StepGroup(sigma, rate, 1).term(x / sigma)
    nu = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2.0 * math.pi)) * (x[1] - x[0])
    total = ratio[:, None] + ratio[None, :]
    pair = nu[:, None] * nu[None, :]
    remove = float((pair * np.maximum(np.exp(total) - math.exp(epsilon), 0.0)).sum())
    add = float((pair * np.maximum(1.0 - np.exp(epsilon + total), 0.0)).sum())
    for direction, expected in (("remove", remove), ("add", add)):
        low, high = _profile.log_delta(loss, epsilon, direction)
        assert math.exp(low) - 2e-5 * expected - 1e-7 <= expected <= math.exp(high) + 2e-5 * expected + 1e-7


def test_a_loss_that_cannot_be_resolved_raises_instead_of_answering() -> None:
    loss = PrivacyLoss((StepGroup(0.3, 0.01, 3),), 1e-14)
    with pytest.raises(AccuracyError):
        blow_up.log_blow_up_exact(loss, np.log([0.1]))


def test_two_tilts_of_one_law_give_the_same_tail() -> None:
    loss = _loss(1.0, 0.02, 1000)
    t = np.array([3.0])
    tails = [TiltedLaw(loss, theta).log_upper(t, 0.0)[0] for theta in (3.0, 4.0, 5.5)]
    assert max(tails) - min(tails) < 1e-11


def test_recursion_that_loses_its_grid_raises() -> None:
    # A nearly Gaussian sum with a strong tilt: the recursion is not made for it, and must say so or be right.
    loss = _loss(18.0, 0.01, 100)
    expected = _profile.epsilon_for(_loss(18.0, 0.01, 100), math.log(1e-5), "remove")
    try:
        low, high = recursion_profile.epsilon(loss, math.log(1e-5), "remove")
    except AccuracyError:
        return
    assert low - 1e-6 <= expected[0]
    assert expected[1] <= high + 1e-6


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [(1.223, 0.00041, 1742), (2.191, 0.0003, 8193), (12.55, 0.00012, 2019), (24.5, 0.005, 40), (1.51, 0.00025, 29356)],
)
def test_rare_large_losses_do_not_hide_the_common_ones(sigma: float, rate: float, steps: int) -> None:
    # Here the moments are dominated by jumps far too rare to matter. Second route: the dual over draws of ν.
    log_kappa = np.log([0.5, 0.1, 0.01])
    result = blow_up.log_blow_up_exact(_loss(sigma, rate, steps), log_kappa)
    assert (result.log_high - result.log_low < 1e-8).all()
    rng = np.random.default_rng(77)
    group = StepGroup(sigma, rate, 1)
    total = np.zeros(20_000)
    if steps <= 3000:
        for _ in range(steps):
            z = rng.standard_normal(len(total))
            total += group.term(z)
        dual = [
            min(
                kappa * math.exp(t) + float(np.maximum(np.exp(total) - math.exp(t), 0.0).mean())
                for t in np.quantile(total, grid)
            )
            for kappa, grid in ((k, np.linspace(1.0 - 1.5 * k, 1.0 - 0.5 * k, 101)) for k in np.exp(log_kappa))
        ]
        spread = [float(np.maximum(np.exp(total) - 1.0, 0.0).std()) / math.sqrt(len(total))] * 3
        assert (np.abs(np.exp(result.log_value) - dual) < 5.0 * np.array(spread) + 1e-9).all()
