"""Tails of the privacy loss: inversion, recursion and lattices against closed forms and each other, and rare losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special
from scipy.special import log_ndtr

from leakcore import accounting
from leakcore.numerics import blow_up, gaussian_pair, recursion
from leakcore.numerics import profile as _profile
from leakcore.numerics.arithmetic import AccuracyError
from leakcore.numerics.fourier import TiltedLaw
from leakcore.numerics.loss import PrivacyLoss, StepGroup
from leakcore.numerics.moments import log_tail_bound


def _loss(sigma: object, rate: object, steps: int) -> PrivacyLoss:
    return PrivacyLoss.of_steps(np.asarray(sigma, dtype=float), np.asarray(rate, dtype=float), steps)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(sigma=st.floats(0.05, 1e4), rate=st.floats(1e-9, 1.0 - 1e-9), z=st.floats(-30.0, 30.0))
def test_term_accuracy(sigma: float, rate: float, z: float) -> None:
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
def test_cumulants(sigma: float, rate: float, theta: float) -> None:
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


def test_cumulants_of_many_steps() -> None:
    # K(0) = K(1) = 0 exactly: both laws have mass 1.
    loss = _loss(20.0, 1e-3, 100_000)
    assert abs(loss.cumulants(0.0).value) < 1e-12
    assert abs(loss.cumulants(1.0).value) < 1e-10


@pytest.mark.parametrize("sigma", [0.5, 1.0, 7.0])
@pytest.mark.parametrize("log_kappa", [-1e-4, -0.7, -2.3, -30.0, -1000.0])
def test_inversion_of_full_batches(sigma: float, log_kappa: float) -> None:
    # A Gaussian part alone, forced through the Fourier series: 10 steps at q = 1 split into one that is a mixture with
    # q = 1 − 1e-15 and nine that are Gaussian.
    loss = PrivacyLoss((StepGroup(sigma, 1.0 - 1e-15, 1),), 9.0 / sigma**2)
    result = blow_up.log_blow_up_exact(loss, np.array([log_kappa]), force_numerical=True)
    exact = gaussian_pair.log_blow_up(np.array([log_kappa]), math.sqrt(10.0) / sigma)
    assert result.log_value[0] == pytest.approx(exact[0], rel=1e-11, abs=1e-12)
    assert result.log_low[0] - 1e-12 <= exact[0] <= result.log_high[0] + 1e-12


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.9])
def test_inversion_of_one_step(sigma: float, rate: float) -> None:
    log_kappa = np.log([0.999, 0.5, 0.1, 1e-3, 1e-6])
    loss = _loss(sigma, rate, 1)
    result = blow_up.log_blow_up_exact(loss, log_kappa, force_numerical=True)
    exact = blow_up.log_blow_up_exact(loss, log_kappa)
    np.testing.assert_allclose(result.log_value, exact.log_value, rtol=0, atol=1e-9)
    assert (result.log_high >= exact.log_value - 1e-9).all()


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(0.59, 0.01, 100), (1.0, 0.1, 20), (0.8, 0.02, 400), (1.5, 0.3, 12)]
)
def test_inversion_against_recursion(sigma: float, rate: float, steps: int) -> None:
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


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "kappa"), [(1.0, 0.1, 30, 0.1), (2.0, 0.5, 20, 0.01), (0.8, 0.2, 10, 0.5)]
)
def test_exact_between_lattices(sigma: float, rate: float, steps: int, kappa: float) -> None:
    low, high = _lattice_blow_up(sigma, rate, steps, kappa)
    value = math.exp(blow_up.log_blow_up_exact(_loss(sigma, rate, steps), np.array([math.log(kappa)])).log_value[0])
    assert low - 1e-7 <= value <= high + 1e-7
    assert high - low < 0.02


def test_curve_against_single_calls() -> None:
    loss = _loss(1.2, 0.05, 300)
    log_kappa = np.concatenate(
        (np.log1p(-np.geomspace(0.4, 1e-4, 7)), np.log(np.geomspace(0.6, 1e-200, 40)), [0.0, -5000.0])
    )
    curve = blow_up.log_blow_up_exact(loss, log_kappa)
    single = [blow_up.log_blow_up_exact(loss, np.array([k])).log_value[0] for k in log_kappa]
    np.testing.assert_allclose(curve.log_value, single, rtol=1e-12, atol=1e-12)
    order = np.argsort(log_kappa)
    assert (np.diff(curve.log_value[order]) >= 0.0).all()


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(1.0, 0.1, 50), (0.6, 0.01, 100), (0.35, 0.01, 30), (10.0, 0.01, 1000)]
)
def test_profile_inverse(sigma: float, rate: float, steps: int, direction: str) -> None:
    for delta in (1e-2, 1e-5, 1e-7):
        low, high = _profile.epsilon_for(_loss(sigma, rate, steps), math.log(delta), direction)
        assert low <= high <= low + 2e-6 * (1.0 + abs(low))
        result = _profile.log_delta(_loss(sigma, rate, steps), 0.5 * (low + high), direction)
        slack = 1e-6 + 1e3 * (high - low)
        assert result[0] - slack <= math.log(delta) <= result[1] + slack


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.4, 0.01), (3.0, 0.7)])
@pytest.mark.parametrize("epsilon", [-0.05, 0.01, 0.5])
def test_recursion_by_quadrature(sigma: float, rate: float, epsilon: float) -> None:
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


def test_unresolved_loss() -> None:
    loss = PrivacyLoss((StepGroup(0.3, 0.01, 3),), 1e-14)
    with pytest.raises(AccuracyError):
        blow_up.log_blow_up_exact(loss, np.log([0.1]))


def test_two_tilts() -> None:
    loss = _loss(1.0, 0.02, 1000)
    t = np.array([3.0])
    tails = [TiltedLaw(loss, theta).log_upper(t, 0.0)[0] for theta in (3.0, 4.0, 5.5)]
    assert max(tails) - min(tails) < 1e-11


def test_lost_grid() -> None:
    # A nearly Gaussian sum with a strong tilt: the recursion is not made for it, and must say so or be right.
    loss = _loss(18.0, 0.01, 100)
    expected = _profile.epsilon_for(_loss(18.0, 0.01, 100), math.log(1e-5), "remove")
    try:
        low, high = recursion.epsilon(loss, math.log(1e-5), "remove")
    except AccuracyError:
        return
    assert low - 1e-6 <= expected[0]
    assert expected[1] <= high + 1e-6


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [(1.223, 0.00041, 1742), (2.191, 0.0003, 8193), (12.55, 0.00012, 2019), (24.5, 0.005, 40), (1.51, 0.00025, 29356)],
)
def test_rare_and_common_losses(sigma: float, rate: float, steps: int) -> None:
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


def _log_above(c: np.ndarray, sigma: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """log μ(ℓ > c), log ν(ℓ > c) of one step."""
    with np.errstate(invalid="ignore", divide="ignore"):
        inside = (np.expm1(c) + rate) / rate
        x = np.where(inside > 0, sigma**2 * np.log(np.maximum(inside, 1e-300)) + 0.5, -np.inf)
    without, joined = log_ndtr(-x / sigma), log_ndtr(-(x - 1) / sigma)
    return np.logaddexp(math.log1p(-rate) + without, math.log(rate) + joined), without


@pytest.mark.full
def test_capped_moments() -> None:
    """30 configurations, a third of them schedules of two σ and q, some of full batches as well."""
    rng = np.random.default_rng(0)
    compared, near = 0, 0
    for _ in range(30):
        rate, sigma = float(np.exp(rng.uniform(math.log(1e-5), math.log(0.5)))), float(np.exp(rng.uniform(-0.9, 3)))
        steps, epsilon = int(np.exp(rng.uniform(0, 6))), float(np.exp(rng.uniform(math.log(0.01), 3)))
        loss = _loss(sigma, rate, steps)
        if rng.random() < 1 / 3:
            loss = _loss([sigma, 1.3 * sigma] * steps, [rate, min(2 * rate, 1.0)] * steps, 2 * steps)
        try:
            low, _ = _profile.log_delta(loss, epsilon, "remove")
        except AccuracyError:
            continue
        if math.isfinite(low):
            bound = log_tail_bound(loss, epsilon)
            assert bound >= min(low, 0.0)
            compared, near = compared + 1, near + (bound < 0.7 * low)
    assert compared > 12
    assert near > 3, "of use: within a power of 0.7 of δ"


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-12, 1e3, 1e6])
def test_capped_moments_any_epsilon(epsilon: float) -> None:
    for sigma, rate in ((1e-3, 0.5), (0.05, 1e-9), (1e4, 1 - 1e-9), (1.0, 1e-300)):
        bound = log_tail_bound(_loss(sigma, rate, 1000), epsilon)
        assert -math.inf <= bound <= 0.0
        assert epsilon > 0 or bound == 0.0


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "epsilon"),
    [
        (3.5688121406715676, 0.00011150298626945492, 4, 5.6756383055493975),
        (2.849002496559377, 0.00036754682588493364, 355, 0.05689659755811992),
        (3.7110426347579852, 0.0003409868234200053, 866, 0.13706359909059462),
        (1.214150098785385, 4.000362262375862e-06, 7050, 0.16872724675968387),
        (1.297555565778367, 2.4201521067856968e-05, 6809, 1.7845631286484211),
        (1.5814218020826474, 0.0010891156587653026, 8851, 1.0047508887216094),
    ],
)
def test_useless_delta(sigma: float, rate: float, steps: int, epsilon: float) -> None:
    """Chernoff's bound is up to 1 there; δ is at least that of one step, the others being postprocessing."""
    result = accounting.delta(sigma, rate, steps, epsilon=epsilon)
    one = _profile.log_delta(_loss(sigma, rate, 1), epsilon, "remove")[0]
    assert 0.0 <= result.interval[0] <= result.value == result.interval[1]
    assert one <= result.log_value < math.log(1e-18)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("sigma", "rate", "delta"),
    [
        (0.9169040182944564, 2.9677062314040375e-06, 3.6490963798215347e-09),
        (0.46897555071352554, 1.9849712714104744e-06, 1.278939359691365e-07),
        (0.7769408922016667, 1.1411925203640002e-05, 8.017418938216673e-07),
    ],
)
def test_two_rare_steps(sigma: float, rate: float, delta: float) -> None:
    """δ₂(ε) = ∫ μ(x)·δ₁(ε − ℓ(x)) dx, with δ₁(e) = μ(ℓ > e) − e^e·ν(ℓ > e) of the other step."""
    result = accounting.epsilon(sigma, rate, 2, delta=delta)
    assert result.interval[1] - result.interval[0] < 1e-9
    x = np.linspace(-40 * sigma, 1 + 40 * sigma, 400_001)
    shift = (2 * x - 1) / (2 * sigma**2)
    loss = np.where(shift < 30, np.log1p(rate * np.expm1(np.minimum(shift, 30))), shift + math.log(rate))
    density = ((1 - rate) * np.exp(-0.5 * (x / sigma) ** 2) + rate * np.exp(-0.5 * ((x - 1) / sigma) ** 2)) / (
        sigma * math.sqrt(2 * math.pi)
    )
    for end, sign in zip(result.interval, (1, -1), strict=True):
        rest = end - loss
        joined, without = _log_above(rest, sigma, rate)
        other = np.exp(joined) * -np.expm1(np.minimum(rest + without - joined, 0.0))
        direct = float(np.sum(density * other) * (x[1] - x[0]))
        assert sign * (direct / delta - 1) > -1e-7
