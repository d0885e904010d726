"""Searches for a least value: of a pair's second entry, and of the σ that suffices."""

from __future__ import annotations

import math
from collections.abc import Callable

from leakcore.numerics._loss import AccuracyError


def golden(function: Callable[[float], tuple[float, float]], a: float, b: float) -> tuple[float, float]:
    """The pair with the least second entry that a golden-section search meets."""
    ratio = 0.5 * (math.sqrt(5.0) - 1.0)
    x, y = b - ratio * (b - a), a + ratio * (b - a)
    at_x, at_y = function(x), function(y)
    best = min(at_x, at_y, key=lambda pair: pair[1])
    for _ in range(16):
        if at_x[1] < at_y[1]:
            b, y, at_y = y, x, at_x
            x = b - ratio * (b - a)
            at_x = function(x)
        else:
            a, x, at_x = x, y, at_y
            y = a + ratio * (b - a)
            at_y = function(y)
        best = min(best, at_x, at_y, key=lambda pair: pair[1])
    return best


def least_sigma(proved: Callable[[float], float], epsilon: float, guess: float, tolerance: float) -> float:
    """The least σ with proved(σ) ≤ epsilon, on the safe side, to a relative `tolerance`; `proved` falls with σ.

    Regula falsi in (log σ, log ε) kept inside a bracket, with a step to either side of its root to close the bracket.
    """
    high, at_high = guess, proved(guess)
    while at_high > epsilon:
        high *= 1.5
        at_high = proved(high)
    low, at_low = _lower(proved, high)
    while at_low <= epsilon:
        high, at_high = low, at_low
        if 0.7 * low < 1e-4:
            return high
        low, at_low = _lower(proved, low)
    for _ in range(100):
        width = math.log(high / low)
        if width <= tolerance:
            break
        share = 0.5
        if 0.0 < at_high < at_low < math.inf and epsilon > 0.0:
            share = min(max(math.log(at_low / epsilon) / math.log(at_low / at_high), 0.01), 0.99)
        root = math.log(low) + share * width
        # First the probable side, then, a hair away, the other one: the bracket closes from both ends.
        for side in (0.45, -0.45):
            shift = side * max(tolerance, 0.02 * width**2)
            at = math.exp(min(max(root + shift, math.log(low) + 0.01 * width), math.log(high) - 0.01 * width))
            if not low < at < high:
                continue
            value = proved(at)
            if value <= epsilon:
                high, at_high = at, value
            else:
                low, at_low = at, value
    return high


def _lower(proved: Callable[[float], float], sigma: float) -> tuple[float, float]:
    """A lower σ with its ε; less of a step where so little noise is beyond what `proved` can tell."""
    for factor in (0.7, 0.9, 0.97):
        try:
            return factor * sigma, proved(factor * sigma)
        except AccuracyError:
            continue
    return 0.99 * sigma, proved(0.99 * sigma)
