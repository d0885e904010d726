"""The privacy profile δ(ε) of a composition of sampled Gaussian steps, and its inverse, in both directions.

Direction "remove": δ(ε) = sup_E μ(E) − e^ε ν(E) = E_μ(1 − e^{ε−L})_+, with the record against without.
Direction "add": δ(ε) = sup_E ν(E) − e^ε μ(E) = E_ν(1 − e^{ε+L})_+. ε may be any real number.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
from scipy.optimize import brentq

from leakcore._one_thread import one_thread
from leakcore.numerics import _gaussian
from leakcore.numerics._blow_up import log1mexp
from leakcore.numerics._inversion import TiltedLaw
from leakcore.numerics._loss import AccuracyError, PrivacyLoss, StepGroup
from leakcore.numerics._rare_losses import log_tail_bound
from leakcore.numerics._recursion import MANY_PANELS, Profile, profile_pair

_FLOOR = 4e-15
_LEAST_ADD = math.log(1e-8)
"""Below this the recursion, which gets δ_add as a difference of numbers near 1, cannot promise its digits."""
_HOPELESS = -41.0
"""log δ below which an upper bound is the answer: 1.6e-18."""
_LEAST_EPSILON = 1e-9
"""Least ε that is looked for in the profile."""
_PROMISE = 1e-6
"""Largest relative error of δ that is accepted: about 1e-7 in ε."""

_EPSILON_PROMISE = 2e-7
"""Largest error of ε that is accepted though δ's is above its promise, which must then be below `_COARSE`."""
_COARSE = 1e-3
_FINER = (1.0, 1.6, 2.2)
"""Refinements of the recursion, tried until two grids agree."""
_EFFORT = 10.0
"""Of Fourier inversion where the recursion's first grids do not."""


def log_delta(loss: PrivacyLoss, epsilon: float, direction: str) -> tuple[float, float]:
    """(low, high) of log δ(ε), −inf where δ = 0 exactly.

    They agree to 1e-6, but below δ = 1e-18 low may be −inf and high a bound by moments. AccuracyError otherwise.
    """
    if loss.log_no_escape == 0.0:
        return _inner_log_delta(loss, epsilon, direction)
    if math.isinf(loss.log_no_escape):
        return 0.0, 0.0
    if direction == "add":
        # Off the escape, μ is ν's partner scaled by s = Π(1 − q): the loss is shifted by log s.
        return _inner_log_delta(loss, epsilon + loss.log_no_escape, direction)
    inner = _inner_log_delta(loss, epsilon - loss.log_no_escape, direction)
    escaped = float(log1mexp(np.array(loss.log_no_escape)))
    low, high = (min(float(np.logaddexp(escaped, loss.log_no_escape + part)), 0.0) for part in inner)
    return low, high


@one_thread()
def _inner_log_delta(loss: PrivacyLoss, epsilon: float, direction: str) -> tuple[float, float]:
    if not loss.groups:
        return _gaussian.log_profile_limits(epsilon, math.sqrt(loss.gaussian_variance))
    threshold = epsilon if direction == "remove" else -epsilon
    if threshold <= loss.minimum:
        # L > threshold always: nothing is gained for "add", everything for "remove".
        return _around(
            float(log1mexp(np.array(epsilon))) if direction == "remove" and epsilon < 0.0 else -math.inf, _FLOOR
        )
    if _is_one_step(loss):
        return _one_step_log_delta(loss.groups[0], epsilon, direction)
    power, sign = _side(direction)
    try:
        theta = loss.tilt_with_mean(threshold, power, sign)
        # How small δ is decides how far the loss must be known; a guess from below suffices.
        limited = loss.limited(min(2.0 * loss.cumulants(theta).value - 2.0 * (theta - power) * threshold, 0.0) - 10.0)
        gap = limited.tilt_with_mean(threshold, power, sign) - power
        return _around(*_agreeing_log_delta(limited, epsilon, direction, (gap, 0.6 * gap, 0.35 * gap)))
    except AccuracyError:
        bound = _chernoff_log_delta(loss, threshold, power, sign)
        if bound >= _HOPELESS and direction == "remove":
            bound = log_tail_bound(loss, epsilon)
        if bound < _HOPELESS:
            return -math.inf, bound
        theta = loss.tilt_with_mean(threshold, power, sign)  # or, where no tilt reaches so far out, its AccuracyError
        return _log_delta_by_recursion(loss, epsilon, direction, theta)


def _log_delta_by_recursion(loss: PrivacyLoss, epsilon: float, direction: str, theta: float) -> tuple[float, float]:
    top = (epsilon if direction == "remove" else -epsilon) - loss.minimum
    for refine in _FINER:
        try:
            profiles = profile_pair(loss, top, theta, refine, MANY_PANELS)
            first, second = (_recursion_log_delta(one, epsilon, direction) for one in profiles)
            if direction == "add" and first < _LEAST_ADD:
                return -math.inf, _LEAST_ADD
            return _around(*_agreed(first, second))
        except AccuracyError:
            if refine == _FINER[-1]:
                raise
    raise AssertionError


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


def chernoff_log_delta(
    loss: PrivacyLoss, epsilon: float, direction: str, *, enough: float = -math.inf
) -> float:  # fmt: skip
    """An upper bound of log δ(ε), cheap and never inaccurate; its search ends below `enough`."""
    power, sign = _side(direction)
    return _chernoff_log_delta(loss, epsilon if direction == "remove" else -epsilon, power, sign, enough)


def _chernoff_log_delta(
    loss: PrivacyLoss, threshold: float, power: float, sign: float, enough: float = -math.inf
) -> float:
    """log of inf over s ≥ 0 of E[e^{s·|L − threshold| outward}] ≥ δ: K(θ) − (θ − power)·threshold, θ = power ± s."""

    def bound(s: float) -> float:
        try:
            return loss.cumulants(power + sign * s).value - sign * s * threshold
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
def epsilon_for(loss: PrivacyLoss, log_target: float, direction: str) -> tuple[float, float]:
    """(low, high) of the real ε, of either sign, with log δ(ε) = log_target < 0; ∓inf where there is none.

    Raises AccuracyError when they would differ by more than about 1e-6, unless the whole range is that of "add" where δ
    is too small to be resolved; there high = −minimum is where δ becomes 0.
    """
    if loss.log_no_escape != 0.0:
        if direction == "add":
            low, high = epsilon_for(_without_escape(loss), log_target, direction)
            return low - loss.log_no_escape, high - loss.log_no_escape
        escaped = float(log1mexp(np.array(loss.log_no_escape)))
        if log_target <= escaped:
            return math.inf, math.inf
        rest = log_target + float(log1mexp(np.array(escaped - log_target))) - loss.log_no_escape
        if rest >= 0.0:
            return -math.inf, -math.inf
        low, high = epsilon_for(_without_escape(loss), rest, direction)
        return low + loss.log_no_escape, high + loss.log_no_escape
    if not loss.groups:
        return _gaussian.epsilon_limits(log_target, math.sqrt(loss.gaussian_variance))
    if _is_one_step(loss):
        return _one_step_epsilon(loss, log_target, direction)
    # The cheapest first: where one tilt's mass is split between many small losses and a rare large one, Fourier
    # inversion takes many frequencies, and the recursion a fine grid.
    for effort, finer in ((1.0, _FINER[:1]), (_EFFORT, _FINER[1:])):
        with contextlib.suppress(AccuracyError):
            value, error = _epsilon_by_inversion(loss, log_target, direction, effort)
            return value - error, value + error
        try:
            return _epsilon_by_recursion(loss, log_target, direction, finer)
        except AccuracyError as error:
            refused = error
    try:
        return _epsilon_by_profile(loss, log_target, direction)
    except AccuracyError:
        raise refused from None


def _epsilon_by_profile(loss: PrivacyLoss, log_target: float, direction: str) -> tuple[float, float]:
    """From δ itself, whose tilts are made for each ε > 0 and not for the target: where small losses and rare large ones
    lie on either side of it. Slow."""
    low, high = _LEAST_EPSILON, 1.0
    while log_delta(loss, high, direction)[1] > log_target:
        high *= 4.0
    if log_delta(loss, low, direction)[0] < log_target:
        raise AccuracyError(f"epsilon is below {low:g}")

    def above(log_epsilon: float) -> float:
        return max(log_delta(loss, math.exp(log_epsilon), direction)[1] - log_target, _HOPELESS)

    root = math.exp(brentq(above, math.log(low), math.log(high), xtol=1e-11, disp=False))
    ends = []
    for sign in (-1.0, 1.0):
        step = 1e-10 * root
        while sign * (log_delta(loss, root + sign * step, direction)[0 if sign < 0.0 else 1] - log_target) > 0.0:
            step *= 4.0
            if step > min(_PROMISE, 0.5 * root):
                raise AccuracyError("the privacy profile is too flat to be inverted")
        ends.append(root + sign * step)
    return ends[0], ends[1]


def _is_one_step(loss: PrivacyLoss) -> bool:
    return loss.num_mixture_steps == 1 and loss.gaussian_variance == 0.0


def _one_step_log_delta(group: StepGroup, epsilon: float, direction: str) -> tuple[float, float]:
    """The Gaussian pair's profile, rescaled: μ − e^ε ν = q·(N(1) − e^{ε′} N(0)), e^{ε′} = (e^ε − 1 + q)/q, and in the
    other direction c·(N(0) − e^{ε″} N(1)), c = 1 − e^ε(1 − q), e^{ε″} = q·e^ε/c. For −minimum > ±ε > minimum.
    """
    q = group.rate
    if direction == "remove":
        log_scale, error = math.log(q), 0.0
        if epsilon > 30.0:
            inner = epsilon + math.log1p(-(1.0 - q) * math.exp(-epsilon)) - log_scale
        else:
            inner = math.log1p(max(math.expm1(epsilon) / q, -1.0 + 1e-300))
        shift = abs(epsilon) + abs(log_scale) if epsilon > 30.0 else math.exp(min(max(-inner, 0.0), 690.0))
        shift *= 2.0**-51
    else:
        # 1 − e^ε(1 − q) cancels near its end, ε = −log(1 − q).
        left = epsilon + group.minimum
        log_scale = float(log1mexp(np.array(left)))
        inner = epsilon + math.log(q) - log_scale
        error = 2.0**-52 * (abs(epsilon) - group.minimum) / -left
        shift = error + 2.0**-51 * (abs(epsilon) - math.log(q) - log_scale)
    low, high = _gaussian.log_profile_limits(inner, 1.0 / group.sigma, shift)
    error += 2.0**-51 * (1.0 + abs(log_scale))
    return log_scale + low - error, min(log_scale + high + error, 0.0)


def _one_step_epsilon(loss: PrivacyLoss, log_target: float, direction: str) -> tuple[float, float]:
    """By bisection; the profile falls with ε, and beyond its closed form it is 0 ("add") or 1 − e^ε ("remove")."""
    group = loss.groups[0]
    low, high = -1.0, 1.0
    while _inner_log_delta(loss, low, direction)[0] < log_target:
        low *= 2.0
    while _inner_log_delta(loss, high, direction)[1] > log_target:
        high *= 2.0
    while low < (middle := 0.5 * (low + high)) < high and high - low > 1e-14 * (1.0 + abs(high)):
        above = _inner_log_delta(loss, middle, direction)[1] > log_target
        low, high = (middle, high) if above else (low, middle)
    # δ is known to 1e-12 of itself, and d log δ/dε is at least 1 in size where δ is small.
    slack = 1e-11 * (1.0 + abs(high))
    return low - slack, min(high + slack, -group.minimum) if direction == "add" else high + slack


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
    # The choice of tilts is explained in `_blow_up`.
    candidates = [gap, 0.6 * gap, 0.35 * gap]
    retilted = False
    while candidates:
        try:
            law = TiltedLaw(loss, power + candidates.pop(0), effort=effort)
            check = law.checked_by(loss, power)
        except AccuracyError:
            continue
        found, slope = _solve_epsilon(law, log_target, direction)
        first, second = (float(_log_delta_near(one, np.array([found]), direction)[0]) for one in (law, check))
        # The sum over frequencies rounds relative to the tilted law's whole mass, of which δ may be a small part.
        log_rest = law.log_moment - (law.theta - power) * sign * found - first
        error = abs(first - second) + abs(first - log_target)
        error += _FLOOR * (1.0 + abs(first)) + 2.0**-52 * math.exp(min(log_rest, 700.0))
        # Where δ falls steeply it need not be known as well as that for ε to be.
        if slope < 0.0 and (error < _PROMISE or (error < _COARSE and error < -slope * _EPSILON_PROMISE)):
            return found, error / -slope + 1e-14 * (1.0 + abs(found))
        if not retilted:
            retilted = True
            with contextlib.suppress(AccuracyError):
                candidates.insert(0, loss.tilt_with_mean(sign * found, power, sign) - power)
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


def _recursion_log_delta(profile: Profile, epsilon: float, direction: str) -> float:
    y = np.array([(epsilon if direction == "remove" else -epsilon) - profile.minimum])
    h = float(profile(y)[0])
    # Put–call parity: E_ν(1 − e^{ε+L})_+ = 1 − e^ε + e^ε·δ_remove(−ε). The difference cancels to about 1e-14.
    value = h if direction == "remove" else -math.expm1(epsilon) + math.exp(epsilon) * h
    return math.log(value) if value > 0.0 else -math.inf


def _epsilon_by_recursion(
    loss: PrivacyLoss, log_target: float, direction: str, finer: tuple[float, ...] = _FINER[:1]
) -> tuple[float, float]:
    if direction == "add":
        low, high = 0.0, -loss.minimum
        if log_target < _LEAST_ADD:
            return low, high
        theta, top = 1.0, -loss.minimum
    else:
        # δ(ε) ≤ inf_s exp(K(1+s) − sε): with s at K′(1+s) = ε this end is feasible.
        theta = loss.solve_tilt(lambda tilt: loss.log_chernoff(tilt) + loss.cumulants(tilt).mean, log_target, 1.0, 1.0)
        low, high = loss.minimum, loss.cumulants(theta).mean
        top = high - loss.minimum
        with contextlib.suppress(AccuracyError):
            coarse = Profile(loss, top, theta, 0.6, MANY_PANELS)
            top = min(top, 1.05 * max(_bisect_epsilon(coarse, log_target, direction, low, high) - loss.minimum, 1e-9))
    refused = None
    for refine in finer:
        try:
            profiles = profile_pair(loss, top, theta, refine, MANY_PANELS)
            found = [_bisect_epsilon(one, log_target, direction, low, high) for one in profiles]
        except AccuracyError as error:
            refused = error
        else:
            gap = abs(found[0] - found[1]) + 1e-13 * (1.0 + abs(found[0]))
            if refine > 1.0:  # grids near the edge of what they resolve may agree by chance
                gap = 10.0 * gap + 1e-8
            if gap <= 1e-6 * (1.0 + abs(found[0])):
                return found[0] - gap, found[0] + gap
            refused = None
        if direction == "remove":
            top = high - loss.minimum
    raise refused or AccuracyError("epsilon could not be computed to 1e-6")


def _bisect_epsilon(profile: Profile, log_target: float, direction: str, low: float, high: float) -> float:
    if direction == "remove":
        high = min(high, profile.minimum + profile.top)
    if not _recursion_log_delta(profile, high, direction) <= log_target:
        raise AccuracyError("the recursion for the privacy loss does not reach the wanted delta")
    start = low
    while low < (middle := 0.5 * (low + high)) < high:
        if _recursion_log_delta(profile, middle, direction) > log_target:
            low = middle
        else:
            high = middle
    if direction == "remove" and low == start:
        raise AccuracyError("the recursion for the privacy loss found no epsilon")
    return high
