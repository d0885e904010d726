"""Blow-up of a composition of sampled Gaussian steps, with an error estimate from two discretisations.

B_κ = min_t [κe^t + E_μ(1 − e^{t−L})_+] (Neyman–Pearson), attained where ν(L > t) = κ. The minimum makes the
answer second order in the error of t, and every t gives an upper bound.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore._base.process_wide import one_thread
from leakcore.numerics import gaussian_pair
from leakcore.numerics.arithmetic import AccuracyError, log1mexp
from leakcore.numerics.fourier import TiltedLaw
from leakcore.numerics.loss import PrivacyLoss
from leakcore.numerics.one_step import is_one_step
from leakcore.numerics.recursion import Profile, profile_pair

_LOG_HALF = math.log(0.5)
_FLOOR = 4e-15
"""Relative rounding that two grids may share: special functions, powers of the characteristic function."""
_PROMISE = 1e-9
"""Relative error of B (or of 1 − B) above which the recursion replaces Fourier inversion."""
_LAST_PROMISE = 1e-6
"""Relative error beyond which AccuracyError is raised."""


@dataclasses.dataclass(frozen=True)
class Tail:
    """log of a probability with log limits (low, high) that hold its numerical error."""

    log_value: np.ndarray
    log_low: np.ndarray
    log_high: np.ndarray

    @classmethod
    def rounded(cls, log_value: np.ndarray, more: np.ndarray) -> Tail:
        """A closed form: wrong by rounding only, a few units in the last place of the logarithm and of the value, and
        what its arguments' rounding does, `more`."""
        slack = 8e-15 + 1e-15 * np.abs(log_value) + more
        return cls(log_value, log_value - slack, np.minimum(log_value + slack, 0.0))


def has_closed_form(loss: PrivacyLoss) -> bool:
    """Whether all steps have q = 1 (or say nothing, or everything), or one step alone is subsampled."""
    return not loss.groups or is_one_step(loss)


def log_blow_up_exact(loss: PrivacyLoss, log_kappa: np.ndarray, *, force_numerical: bool = False) -> Tail:
    """log B_κ for a 1-d array of log κ ≤ 0: closed form where there is one, unless `force_numerical`.

    The error is usually below 1e-12 and reported. Raises AccuracyError where it would exceed 1e-6, relative to B.
    """
    log_kappa = np.asarray(log_kappa, dtype=np.float64)
    if has_closed_form(loss) and (not force_numerical or not loss.groups):
        return _escaping(Tail.rounded(*_closed_form(loss, log_kappa)), loss.log_no_escape)
    quiet = loss.revealed()
    if quiet is None:
        return _escaping(_numerical(loss, log_kappa), loss.log_no_escape)
    louder, log_eta = quiet
    near = math.log(2.0) + log_eta - log_kappa < math.log(_PROMISE)
    parts = []
    if near.any():
        exact = log_blow_up_exact(louder, log_kappa[near], force_numerical=force_numerical)
        slack = -np.log1p(-2.0 * np.exp(log_eta - log_kappa[near]))
        parts.append((near, Tail(exact.log_value, exact.log_low - slack, exact.log_high)))
    if not near.all():
        parts.append((~near, _escaping(_numerical(loss, log_kappa[~near]), loss.log_no_escape)))
    out = Tail(*(np.empty_like(log_kappa) for _ in range(3)))
    for mask, tail in parts:
        out.log_value[mask], out.log_low[mask], out.log_high[mask] = tail.log_value, tail.log_low, tail.log_high
    return out


def _escaping(tail: Tail, log_no_escape: float) -> Tail:
    return Tail(*(with_escape(part, log_no_escape) for part in (tail.log_value, tail.log_low, tail.log_high)))


def _closed_form(loss: PrivacyLoss, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log B and what the rounding of its arguments may have moved it by."""
    separation = 1.0 / loss.groups[0].sigma if loss.groups else math.sqrt(loss.gaussian_variance)
    hit = gaussian_pair.log_blow_up(log_kappa, separation)
    error = gaussian_pair.log_blow_up_error(log_kappa, separation)
    if not loss.groups:
        return hit, error
    group = loss.groups[0]
    mixed = np.logaddexp(math.log1p(-group.rate) + log_kappa, math.log(group.rate) + hit)
    return np.asarray(np.minimum(mixed, 0.0)), error


def with_escape(log_b: np.ndarray, log_no_escape: float) -> np.ndarray:
    """log[1 − Π(1−q)·(1 − B)]: with σ = 0 a sampled record is seen for certain."""
    if log_no_escape == 0.0:
        return log_b
    if math.isinf(log_no_escape):
        return np.zeros_like(log_b)
    escaped = -math.expm1(log_no_escape)
    return np.minimum(np.logaddexp(math.log(escaped), log_no_escape + log_b), 0.0)


@one_thread()
def _numerical(loss: PrivacyLoss, log_kappa: np.ndarray) -> Tail:
    value, error = by_inversion(loss, log_kappa)
    rough = np.isnan(value)
    if rough.any():
        value[rough], error[rough] = by_recursion(loss, log_kappa[rough])
    # An upper bound with a visible error is its upper end.
    value = np.where(error > _PROMISE, value + error, value)
    error = np.where(error > _PROMISE, 2.0 * error, error)
    order = np.argsort(log_kappa, kind="stable")
    value[order] = np.maximum.accumulate(value[order])
    value = np.clip(value, log_kappa, 0.0)
    return Tail(value, np.clip(value - error, log_kappa, 0.0), np.minimum(value + error, 0.0))


def by_inversion(loss: PrivacyLoss, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(log B, log error) by Fourier inversion, NaN where it is not accurate."""
    value, error = np.full_like(log_kappa, np.nan), np.full_like(log_kappa, np.nan)
    value[log_kappa == 0.0] = error[log_kappa == 0.0] = 0.0
    upper = log_kappa < _LOG_HALF
    for side in (True, False):
        pending = np.flatnonzero((upper == side) & (log_kappa < 0.0))
        # Ordered from the far tail inwards; each law answers all κ whose threshold lies near its tilt.
        pending = pending[np.argsort(log_kappa[pending] if side else -log_kappa[pending], kind="stable")]
        failures = 0
        while len(pending) and failures < 2:
            try:
                done, v, e = _blow_up_near(loss, log_kappa[pending], side)
            except AccuracyError:
                # One κ may fall into a gap; two mean that the loss is too rough.
                failures += 1
                pending = pending[1:]
                continue
            value[pending[done]], error[pending[done]] = v, e
            pending = pending[~done]
    return value, error


def by_recursion(loss: PrivacyLoss, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(log B, log error) from the profile's recursion: min over y of κe^{y+minimum} + h(y)."""
    asked = log_kappa < 0.0
    value, error = np.zeros_like(log_kappa), np.zeros_like(log_kappa)
    if not asked.any():
        return value, error
    kappa = log_kappa[asked]
    # κe^{y + minimum} ≥ 1 from here on, and ν(S > K′(θ)) ≤ κ at the Chernoff tilt: the best y is below both.
    theta, top = 2.0, -float(kappa.min()) - loss.minimum
    try:
        theta = loss.solve_tilt(loss.log_chernoff, float(kappa.min()), 0.0, 1.0)
        top = min(top, loss.cumulants(theta).mean - loss.minimum)
    except AccuracyError:
        # So little noise that ν has no variance left at θ = 0.
        pass
    _, coarse = Profile(loss, top, theta, 0.6).least(kappa)
    top = 1.05 * max(float(coarse.max()), 1e-9)
    for refine in (1.0, 1.4):
        least = [one.least(kappa)[0] for one in profile_pair(loss, top, theta, refine)]
        if not all((b > 0.0).all() for b in least):
            error[asked] = np.inf
            break
        first, second = (np.log(b) for b in least)
        value[asked], error[asked] = first, np.abs(first - second) + _FLOOR * (1.0 + np.abs(first))
        if np.all(error < _PROMISE):
            return value, error
    if np.all(error < _LAST_PROMISE):
        return value, error
    raise AccuracyError(
        f"the bound could not be computed to {_LAST_PROMISE:g} for log_kappa={float(kappa.min()):.6g}: "
        "use method='importance', 'pld' or 'certified'"
    )


def _blow_up_near(loss: PrivacyLoss, log_kappa: np.ndarray, upper: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which of these κ were answered, their log B, their log error); the first is always answered."""
    log_tail = log_kappa if upper else log1mexp(log_kappa)
    sign = 1.0 if upper else -1.0
    loss = loss.limited(float(log_tail[0]))
    first_theta = loss.solve_tilt(loss.log_tail_estimate, float(log_tail[0]), 0.0, sign)
    # The first tilt is made for a saddle-point estimate of the threshold, the second for the threshold found. Weaker
    # tilts see a threshold in their tail, but are blind to rare large losses that a strong one would dwell on.
    candidates = [first_theta, 0.6 * first_theta, 0.35 * first_theta]
    retilted = False
    while candidates:
        theta = candidates.pop(0)
        try:
            law = TiltedLaw(loss, theta)
            check = law.checked_by(loss, 0.0)
        except AccuracyError:
            continue
        t, settled = _solve_threshold(law, log_tail, upper)
        done = settled & (np.abs(t - law.mean) < 2.5 * law.std)
        done[0] = settled[0]
        if done[0]:
            first, second = (_dual_value(one, t[done], log_kappa[done], upper) for one in (law, check))
            error = np.abs(first - second) + _FLOOR * (1.0 + np.abs(first))
            good = error < _PROMISE * np.maximum(1.0, 0.01 * np.abs(first))
            if good[0]:
                done[done] = good
                # Every step's rounding moves the tails by as much as it moves the loss.
                moved = loss.rounding(theta) * (1.0 / law.std + min(abs(theta), abs(theta - 1.0)))
                return done, first[good], error[good] + moved
            if not retilted:
                candidates.insert(0, loss.tilt_with_mean(float(t[0]), 0.0, sign))
                retilted = True
    raise AccuracyError(f"Fourier inversion was not accurate at log_kappa={log_kappa[0]:.6g}")


def _dual_value(law: TiltedLaw, t: np.ndarray, log_kappa: np.ndarray, upper: bool) -> np.ndarray:
    """log of κe^t + E_μ(1 − e^{t−L})_+ = μ(S > t) + e^t(κ − ν(S > t)), from whichever tails the tilt makes accurate.
    NaN where this law has lost the tail altogether."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if upper:
            log_nu = law.log_upper(t, 0.0)
            slack = np.expm1(log_kappa - log_nu)
            if law.theta > 1.0:
                log_mu = law.log_upper(t, 1.0)
                return np.asarray(log_mu + np.log1p(slack * np.exp(t + log_nu - log_mu)))
        else:
            # κ − ν(S > t) = ν(S ≤ t) − (1 − κ)
            log_nu = law.log_lower(t, 0.0)
            slack = -np.expm1(log1mexp(log_kappa) - log_nu)
        return np.asarray(np.log1p(slack * np.exp(t + log_nu) - np.exp(law.log_lower(t, 1.0))))


def _solve_threshold(law: TiltedLaw, log_tail: np.ndarray, upper: bool) -> tuple[np.ndarray, np.ndarray]:
    """(t, settled) with log ν(S > t) (or log ν(S ≤ t)) = log_tail; Newton's method kept inside a bisection."""
    low, high = np.full(len(log_tail), law.low), np.full(len(log_tail), law.high)
    t = np.full(len(log_tail), law.mean)
    for _ in range(80):
        log_nu = law.log_upper(t, 0.0) if upper else law.log_lower(t, 0.0)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            excess = log_nu - log_tail
            rate = np.exp(law.log_moment - law.theta * t - log_nu) * law.density(t)
            move = excess / rate if upper else -excess / rate
        too_low = excess > 0.0 if upper else excess <= 0.0
        low, high = np.where(too_low, t, low), np.where(too_low, high, t)
        new = t + move
        new = np.where(np.isfinite(new) & (new > low) & (new < high), new, 0.5 * (low + high))
        settled = np.abs(new - t) < 1e-9 * law.std
        t = new
        # κ far from this tilt are left to a later law: only the first, which the tilt was made for, and those
        # near it count.
        if settled[0] and np.all(settled | (np.abs(t - law.mean) > 4.0 * law.std)):
            break
    return t, settled
