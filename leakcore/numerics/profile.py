"""The privacy profile δ(ε) of a composition of sampled Gaussian steps, and its inverse, in both directions.

Direction "remove": δ(ε) = sup_E μ(E) − e^ε ν(E) = E_μ(1 − e^{ε−L})_+, with the record against without.
Direction "add": δ(ε) = sup_E ν(E) − e^ε μ(E) = E_ν(1 − e^{ε+L})_+. ε may be any real number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np

from leakcore._base.process_wide import one_thread
from leakcore.numerics import gaussian_pair, lattice_profile, one_step, recursion
from leakcore.numerics.arithmetic import AccuracyError, log1mexp
from leakcore.numerics.fourier import TiltedLaw
from leakcore.numerics.loss import LEAST_SIGMA, PrivacyLoss
from leakcore.numerics.moments import epsilon_from_below, log_tail_bound
from leakcore.numerics.step_laws import dominating_laws

_FLOOR = 4e-15
_MOST_GROUPS = 64
"""Largest number of different steps for Fourier inversion."""
_MANY = 1 << 20
"""Steps beyond which a rough lattice is too rough to search with; Fourier inversion is as quick."""
MIN_LOG_DELTA = -41.0
"""log δ below which an upper bound is the answer: 1.6e-18."""
_PROMISE = 1e-6
"""Largest relative error of δ that is accepted: about 1e-7 in ε."""

_EPSILON_PROMISE = 2e-7
"""Largest accepted error of ε where the error of δ exceeds its promise, but not `_COARSE`."""
_COARSE = 1e-3
_EFFORT = 10.0
"""Work of Fourier inversion, relative to the usual, where the recursion does not apply."""
_NARROW = 0.5
"""Relative width of limits of ε between which δ is computed again."""


@dataclasses.dataclass(frozen=True)
class Precision:
    """How precise an answer has to be; the default is as precise as can be, other values are for searches.

    Attributes:
        bits: a lattice of 2^bits points from above and nothing else, so that the low limit may be −∞; 0: all routes.
        sharp: whether ε comes from Fourier inversion or the recursion alone, AccuracyError where neither serves.
    """

    bits: int = 0
    sharp: bool = False


BEST = Precision()


def log_delta(loss: PrivacyLoss, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
    """(low, high) of log δ(ε), −inf where δ = 0 exactly.

    They agree to 1e-6 where Fourier inversion serves, else as well as the lattice laws do. Where δ is below 1e-18, or
    no float holds the loss, low may be −inf and high a bound by moments or by full batches.
    """
    if loss.log_no_escape == 0.0:
        return _inner_log_delta(loss, epsilon, direction, precision)
    if math.isinf(loss.log_no_escape):
        return 0.0, 0.0
    if direction == "add":
        # Off the escape, μ is ν's partner scaled by s = Π(1 − q): the loss is shifted by log s.
        return _inner_log_delta(loss, epsilon + loss.log_no_escape, direction, precision)
    inner = _inner_log_delta(loss, epsilon - loss.log_no_escape, direction, precision)
    escaped = float(log1mexp(np.array(loss.log_no_escape)))
    low, high = (min(float(np.logaddexp(escaped, loss.log_no_escape + part)), 0.0) for part in inner)
    return low, high


@one_thread()
def _inner_log_delta(loss: PrivacyLoss, epsilon: float, direction: str, precision: Precision) -> tuple[float, float]:
    if not loss.groups:
        return gaussian_pair.log_profile_limits(epsilon, math.sqrt(loss.gaussian_variance))
    threshold = epsilon if direction == "remove" else -epsilon
    if threshold <= loss.minimum:
        return one_step.beyond_the_minimum(epsilon, direction)
    if one_step.is_one_step(loss):
        return one_step.log_delta(loss.groups[0], epsilon, direction)
    power, sign = _side(direction)
    if min(group.sigma for group in loss.groups) < LEAST_SIGMA:
        return -math.inf, 0.0
    question = lattice_profile.ProfileQuestion(epsilon=epsilon)
    with contextlib.suppress(AccuracyError):
        if precision.bits and loss.num_mixture_steps <= _MANY:
            return -math.inf, lattice_profile.upper_limit(dominating_laws(loss), question, direction, precision.bits)
        if len(loss.groups) <= _MOST_GROUPS:
            return _log_delta_by_inversion(loss, epsilon, direction)
    most = gaussian_pair.log_profile_limits(epsilon, loss.full_batch_separation())[1]
    with contextlib.suppress(AccuracyError):
        most = min(most, _chernoff_log_delta(loss, threshold, power, sign))
    if most >= MIN_LOG_DELTA and direction == "remove":
        most = min(most, log_tail_bound(loss, epsilon))
    if most < MIN_LOG_DELTA:
        return -math.inf, most
    with contextlib.suppress(AccuracyError):
        return _around(*_agreed(*recursion.log_delta(loss, epsilon, direction)))
    try:
        low, high = lattice_profile.limits(dominating_laws(loss), question, direction)
    except AccuracyError:
        return -math.inf, most
    return low, min(high, most)


def _log_delta_by_inversion(loss: PrivacyLoss, epsilon: float, direction: str) -> tuple[float, float]:
    power, sign = _side(direction)
    threshold = epsilon if direction == "remove" else -epsilon
    theta = loss.tilt_with_mean(threshold, power, sign)
    # How small δ is decides how far the loss must be known; a guess from below suffices.
    limited = loss.limited(min(2.0 * loss.cumulants(theta).value - 2.0 * (theta - power) * threshold, 0.0) - 10.0)
    gap = limited.tilt_with_mean(threshold, power, sign) - power
    value, error = _agreeing_log_delta(limited, epsilon, direction, (gap, 0.6 * gap, 0.35 * gap))
    return _around(value, error + abs(gap) * limited.rounding(power))


def _agreeing_log_delta(
    loss: PrivacyLoss, epsilon: float, direction: str, gaps: tuple[float, ...]
) -> tuple[float, float]:
    """(log δ, error) from the first tilt power + gap on which two discretisations agree."""
    power, _ = _side(direction)
    for gap in gaps:
        try:
            law = TiltedLaw(loss, power + gap)
            laws = law, law.checked_by(loss, power)
            return _agreed(*(float(_log_delta_near(one, np.array([epsilon]), direction)[0]) for one in laws))
        except AccuracyError:
            continue
    raise AccuracyError("Fourier inversion of the privacy profile was not accurate")


def _around(value: float, error: float) -> tuple[float, float]:
    return value - error, min(value + error, 0.0)


def chernoff_log_delta(loss: PrivacyLoss, epsilon: float, direction: str, *, enough: float = -math.inf) -> float:
    """An upper bound of log δ(ε), cheap and never inaccurate; its search ends below `enough`."""
    power, sign = _side(direction)
    return _chernoff_log_delta(loss, epsilon if direction == "remove" else -epsilon, power, sign, enough)


def _chernoff_log_delta(
    loss: PrivacyLoss, threshold: float, power: float, sign: float, enough: float = -math.inf
) -> float:
    """log of inf over s ≥ 0 of E[e^{s·|L − threshold| outward}] ≥ δ: K(θ) − (θ − power)·threshold, θ = power ± s."""

    off = loss.rounding(power)

    def bound(s: float) -> float:
        try:
            return loss.cumulants(power + sign * s).value - sign * s * threshold + s * off
        except AccuracyError:
            return math.inf

    centre = loss.cumulants(power)
    if sign * (threshold - centre.mean) <= 0.0:
        return 0.0
    step, best = 0.1 / math.sqrt(centre.variance), 0.0
    for _ in range(100):  # rare large losses weigh more than the variance knows of
        if bound(step) < 0.0:
            break
        step *= 0.5
    for _ in range(200):
        value = bound(step)
        if value > best + 1.0 or value < enough:
            best = min(best, value)
            break
        best, step = min(best, value), 1.1 * step
    return best


@one_thread()
def epsilon_for(
    loss: PrivacyLoss, log_target: float, direction: str, *, precision: Precision = BEST
) -> tuple[float, float]:
    """(low, high) of the real ε, of either sign, with log δ(ε) = log_target < 0; ∓inf where there is none. They differ
    by about 1e-6 at most where Fourier inversion serves, else by what the lattice laws leave between them or, where
    those fail too, low = −inf and high is the full batches' ε."""
    if loss.log_no_escape != 0.0:
        if direction == "add":
            low, high = epsilon_for(_without_escape(loss), log_target, direction, precision=precision)
            return low - loss.log_no_escape, high - loss.log_no_escape
        escaped = float(log1mexp(np.array(loss.log_no_escape)))
        if log_target <= escaped:
            return math.inf, math.inf
        rest = log_target + float(log1mexp(np.array(escaped - log_target))) - loss.log_no_escape
        if rest >= 0.0:
            return -math.inf, -math.inf
        low, high = epsilon_for(_without_escape(loss), rest, direction, precision=precision)
        return low + loss.log_no_escape, high + loss.log_no_escape
    if not loss.groups:
        return gaussian_pair.epsilon_limits(log_target, math.sqrt(loss.gaussian_variance))
    if one_step.is_one_step(loss):
        return one_step.epsilon(loss.groups[0], log_target, direction)
    least = -math.inf
    if min(group.sigma for group in loss.groups) < LEAST_SIGMA:
        return least, -loss.minimum if direction == "add" else math.inf
    if direction == "add":
        least = epsilon_from_below(loss, log_target)
        if least > -math.inf and -loss.minimum - least <= _EPSILON_PROMISE * (1.0 + abs(least)):
            return least, -loss.minimum
    if len(loss.groups) <= _MOST_GROUPS and (not precision.bits or loss.num_mixture_steps > _MANY):
        with contextlib.suppress(AccuracyError):
            value, error = _epsilon_by_inversion(loss, log_target, direction)
            return value - error, value + error
    if precision.sharp:
        return recursion.epsilon(loss, log_target, direction)
    most = gaussian_pair.epsilon_limits(log_target, loss.full_batch_separation())[1]
    if direction == "add":
        most = min(most, -loss.minimum)
    question = lattice_profile.ProfileQuestion(log_delta=log_target)
    try:
        if precision.bits:
            return least, min(
                lattice_profile.upper_limit(dominating_laws(loss), question, direction, precision.bits), most
            )
        low, high = lattice_profile.limits(dominating_laws(loss), question, direction, lattice_profile.SECOND_BITS)
        if high - low > _EPSILON_PROMISE * (1.0 + abs(high)):
            with contextlib.suppress(AccuracyError):
                return _sharp_epsilon(loss, log_target, direction)
            low, high = lattice_profile.limits(dominating_laws(loss), question, direction)
    except AccuracyError:
        return least, most
    low, high = max(low, least), min(high, most)
    if _EPSILON_PROMISE * high < high - low < _NARROW * high and len(loss.groups) <= _MOST_GROUPS:
        with contextlib.suppress(AccuracyError):
            return _epsilon_by_profile(loss, log_target, direction, low, high)
    return low, high


def _sharp_epsilon(loss: PrivacyLoss, log_target: float, direction: str) -> tuple[float, float]:
    """ε by the recursion, or by Fourier inversion with more frequencies than at first; AccuracyError if neither
    serves."""
    try:
        return recursion.epsilon(loss, log_target, direction)
    except AccuracyError:
        if len(loss.groups) > _MOST_GROUPS:
            raise
    value, error = _epsilon_by_inversion(loss, log_target, direction, _EFFORT)
    return value - error, value + error


def _epsilon_by_profile(
    loss: PrivacyLoss, log_target: float, direction: str, low: float, high: float
) -> tuple[float, float]:
    """ε by a search over δ, whose tilts are chosen for each ε in this narrow range and not for the target. It serves
    where small losses and rare large ones lie on either side of the target."""

    def limits(epsilon: float) -> tuple[float, float]:
        try:
            return _log_delta_by_inversion(loss, epsilon, direction)
        except AccuracyError:
            return _around(*_agreed(*recursion.log_delta(loss, epsilon, direction)))

    # The upper limit is the nearer one.
    last, at = high, high * (1.0 - 1e-3)
    value = limits(last)[1]
    for _ in range(8):
        here = limits(at)[1]
        slope = (here - value) / (at - last)
        if not slope < 0.0:
            break
        step = (log_target - here) / slope
        last, value = at, here
        at = min(max(at + step, low), high)
        if at == last or abs(step) < 1e-11 * (1.0 + abs(at)):
            break
    ends = []
    for sign in (-1.0, 1.0):
        step = 1e-10 * at
        while sign * (limits(at + sign * step)[0 if sign < 0.0 else 1] - log_target) > 0.0:
            step *= 8.0
            if step > min(_PROMISE, 0.5 * at):
                raise AccuracyError("the privacy profile is too flat to be inverted")
        ends.append(at + sign * step)
    return max(low, ends[0]), min(high, ends[1])


def _without_escape(loss: PrivacyLoss) -> PrivacyLoss:
    return PrivacyLoss(loss.groups, loss.gaussian_variance)


def _side(direction: str) -> tuple[float, float]:
    """(power, sign): tilts θ with sign·(θ − power) > 0 make the profile's integral converge."""
    return (1.0, 1.0) if direction == "remove" else (0.0, -1.0)


def _agreed(first: float, second: float) -> tuple[float, float]:
    error = abs(first - second) + _FLOOR * (1.0 + abs(first))
    if not error < _PROMISE:
        raise AccuracyError(f"the privacy profile could not be computed to a relative error below {_PROMISE:g}")
    return float(first), float(error)


def _log_delta_near(law: TiltedLaw, epsilon: np.ndarray, direction: str) -> np.ndarray:
    """log[μ(S > ε) − e^ε ν(S > ε)] for θ > 1, log[ν(S ≤ −ε) − e^ε μ(S ≤ −ε)] for θ < 0."""
    if direction == "remove":
        first, second = law.log_upper(epsilon, 1.0), epsilon + law.log_upper(epsilon, 0.0)
    else:
        first, second = law.log_lower(-epsilon, 0.0), epsilon + law.log_lower(-epsilon, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(first + np.log(-np.expm1(np.minimum(second - first, 0.0))))


def _epsilon_by_inversion(
    loss: PrivacyLoss, log_target: float, direction: str, effort: float = 1.0
) -> tuple[float, float]:
    power, sign = _side(direction)
    loss = loss.limited(log_target)

    def estimate(theta: float) -> float:
        try:
            return loss.log_profile_estimate(theta)
        except AccuracyError:  # beyond the tilts that a float can hold
            return -math.inf

    gap = loss.solve_tilt(estimate, log_target, power, sign) - power
    # `blow_up` explains the choice of tilts.
    candidates = [gap, 0.6 * gap, 0.35 * gap]
    retilted = False
    while candidates:
        try:
            law = TiltedLaw(loss, power + candidates.pop(0), effort=effort)
            check = law.checked_by(loss, power)
        except AccuracyError:
            continue
        epsilon, slope = _solve_epsilon(law, log_target, direction)
        first, second = (float(_log_delta_near(one, np.array([epsilon]), direction)[0]) for one in (law, check))
        # The sum over frequencies rounds relative to the tilted law's whole mass, and δ may be a small part of it.
        log_rest = law.log_moment - (law.theta - power) * sign * epsilon - first
        error = abs(first - second) + abs(first - log_target)
        error += _FLOOR * (1.0 + abs(first)) + 2.0**-52 * math.exp(min(log_rest, 700.0))
        # Where δ falls steeply it need not be known as well as that for ε to be.
        if slope < 0.0 and (error < _PROMISE or (error < _COARSE and error < -slope * _EPSILON_PROMISE)):
            return epsilon, error / -slope + 1e-14 * (1.0 + abs(epsilon)) + loss.rounding(power)
        if not retilted:
            retilted = True
            with contextlib.suppress(AccuracyError):
                candidates.insert(0, loss.tilt_with_mean(sign * epsilon, power, sign) - power)
    raise AccuracyError("Fourier inversion of the privacy profile was not accurate")


def _solve_epsilon(law: TiltedLaw, log_target: float, direction: str) -> tuple[float, float]:
    """(ε, d log δ/dε there) with log δ(ε) = log_target on this law: secant steps kept inside a bisection."""
    sign = 1.0 if direction == "remove" else -1.0
    low, high = (law.low, law.high) if sign > 0.0 else (-law.high, -law.low)
    at, slope, step = sign * law.mean, math.nan, 1e-4 * law.std
    for _ in range(80):
        here, near = (float(v) - log_target for v in _log_delta_near(law, np.array([at, at + step]), direction))
        low, high = (at, high) if here > 0.0 else (low, at)
        slope = (near - here) / step
        new = at - here / slope if slope < 0.0 else math.nan
        if not low < new < high:
            new = 0.5 * (low + high)
        moved, at = abs(new - at), new
        if moved < 1e-11 * law.std:
            break
    return at, slope
