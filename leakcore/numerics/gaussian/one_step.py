"""The privacy profile of a single sampled step, in closed form, and its inverse."""

from __future__ import annotations

import math

import numpy as np

from leakcore.numerics.gaussian import gaussian_pair
from leakcore.numerics.gaussian.gaussian_pair import log1mexp
from leakcore.numerics.privacy_loss.loss import PrivacyLoss, StepGroup

_FLOOR = 4e-15
"""Rounding of a value that is only a logarithm."""


def is_one_step(loss: PrivacyLoss) -> bool:
    """Whether the loss is that of one sampled step, steps without noise aside."""
    return loss.num_mixture_steps == 1 and loss.gaussian_variance == 0.0


def beyond_the_minimum(epsilon: float, direction: str) -> tuple[float, float]:
    """log δ(ε) where every loss is above the threshold: nothing is gained for "add", everything for "remove"."""
    value = float(log1mexp(np.array(epsilon))) if direction == "remove" and epsilon < 0.0 else -math.inf
    return value - _FLOOR, min(value + _FLOOR, 0.0)


def log_delta(group: StepGroup, epsilon: float, direction: str) -> tuple[float, float]:
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
    low, high = gaussian_pair.log_profile_limits(inner, 1.0 / group.sigma, shift)
    error += 2.0**-51 * (1.0 + abs(log_scale))
    return log_scale + low - error, min(log_scale + high + error, 0.0)


def epsilon(group: StepGroup, log_target: float, direction: str) -> tuple[float, float]:
    """ε by bisection. The profile falls with ε; beyond its closed form it is 0 ("add") or 1 − e^ε ("remove")."""

    def at(epsilon: float) -> tuple[float, float]:
        if (epsilon if direction == "remove" else -epsilon) <= group.minimum:
            return beyond_the_minimum(epsilon, direction)
        return log_delta(group, epsilon, direction)

    low, high = -1.0, 1.0
    while at(low)[0] < log_target:
        low *= 2.0
    while at(high)[1] > log_target:
        high *= 2.0
    while low < (middle := 0.5 * (low + high)) < high and high - low > 1e-14 * (1.0 + abs(high)):
        low, high = (middle, high) if at(middle)[1] > log_target else (low, middle)
    # δ is known to 1e-12 of itself, and d log δ/dε is at least 1 in size where δ is small.
    slack = 1e-11 * (1.0 + abs(high))
    return low - slack, min(high + slack, -group.minimum) if direction == "add" else high + slack
