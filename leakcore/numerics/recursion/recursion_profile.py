"""The privacy profile by the recursion for the privacy loss, and its inverse: exact where few steps are rough."""

from __future__ import annotations

import contextlib
import math

import numpy as np

from leakcore.numerics.privacy_loss.loss import AccuracyError, PrivacyLoss
from leakcore.numerics.recursion.recursion import Profile, profile_pair

_LEAST_ADD = math.log(1e-8)
"""Below this the recursion, which gets δ_add as a difference of numbers near 1, cannot promise its digits."""


def log_delta(loss: PrivacyLoss, epsilon: float, direction: str) -> tuple[float, float]:
    """log δ by two discretisations; AccuracyError where there are none, before any long work."""
    _require_minimum(loss)
    threshold = epsilon if direction == "remove" else -epsilon
    power, sign = (1.0, 1.0) if direction == "remove" else (0.0, -1.0)
    theta = loss.tilt_with_mean(threshold, power, sign)
    first, second = (_log_delta(one, epsilon, direction) for one in profile_pair(loss, threshold - loss.minimum, theta))
    if direction == "add" and first < _LEAST_ADD:
        raise AccuracyError("the recursion for the privacy loss does not resolve so small a delta")
    return first, second


def epsilon(loss: PrivacyLoss, log_target: float, direction: str) -> tuple[float, float]:
    """(low, high) of ε, to 1e-6; AccuracyError otherwise, before any long work."""
    _require_minimum(loss)
    if direction == "add":
        low, high = 0.0, -loss.minimum
        if log_target < _LEAST_ADD:
            raise AccuracyError("the recursion for the privacy loss does not resolve so small a delta")
        theta, top = 1.0, -loss.minimum
    else:
        # δ(ε) ≤ inf_s exp(K(1+s) − sε): with s at K′(1+s) = ε this end is feasible.
        theta = loss.solve_tilt(lambda tilt: loss.log_chernoff(tilt) + loss.cumulants(tilt).mean, log_target, 1.0, 1.0)
        low, high = loss.minimum, loss.cumulants(theta).mean
        top = high - loss.minimum
        with contextlib.suppress(AccuracyError):
            coarse = Profile(loss, top, theta, 0.6)
            top = min(top, 1.05 * max(_bisect_epsilon(coarse, log_target, direction, low, high) - loss.minimum, 1e-9))
    first, second = (_bisect_epsilon(one, log_target, direction, low, high) for one in profile_pair(loss, top, theta))
    gap = abs(first - second) + 1e-13 * (1.0 + abs(first))
    if gap > 1e-6 * (1.0 + abs(first)):
        raise AccuracyError("epsilon could not be computed to 1e-6")
    return first - gap, first + gap


def _require_minimum(loss: PrivacyLoss) -> None:
    if loss.minimum == -math.inf:
        raise AccuracyError("the recursion for the privacy loss begins at its minimum, and full batches have none")


def _log_delta(profile: Profile, epsilon: float, direction: str) -> float:
    y = np.array([(epsilon if direction == "remove" else -epsilon) - profile.minimum])
    h = float(profile(y)[0])
    # Put–call parity: E_ν(1 − e^{ε+L})_+ = 1 − e^ε + e^ε·δ_remove(−ε). The difference cancels to about 1e-14.
    value = h if direction == "remove" else -math.expm1(epsilon) + math.exp(epsilon) * h
    return math.log(value) if value > 0.0 else -math.inf


def _bisect_epsilon(profile: Profile, log_target: float, direction: str, low: float, high: float) -> float:
    if direction == "remove":
        high = min(high, profile.minimum + profile.top)
    if not _log_delta(profile, high, direction) <= log_target:
        raise AccuracyError("the recursion for the privacy loss does not reach the wanted delta")
    start = low
    while low < (middle := 0.5 * (low + high)) < high:
        if _log_delta(profile, middle, direction) > log_target:
            low = middle
        else:
            high = middle
    if direction == "remove" and low == start:
        raise AccuracyError("the recursion for the privacy loss found no epsilon")
    return high
