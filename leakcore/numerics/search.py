"""Searches for a least value: of a function, and of the σ that suffices for an ε."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

from leakcore.numerics.arithmetic import AccuracyError
from leakcore.numerics.profile import BEST, Precision

_PATIENCE = 8
"""Values of σ, each half as large again as the last, that may be refused before the search is given up."""


def valley(function: Callable[[float], float], places: list[float], steps: int) -> float:
    """Where a function with one valley is least of what a golden-section search meets, which begins at the best of
    these ascending places."""
    best_of = min(range(len(places)), key=lambda i: function(places[i]))
    a, b = places[max(best_of - 1, 0)], places[min(best_of + 1, len(places) - 1)]
    ratio = 0.5 * (math.sqrt(5.0) - 1.0)
    x, y = b - ratio * (b - a), a + ratio * (b - a)
    at_x, at_y = function(x), function(y)
    best = min((at_x, x), (at_y, y))
    for _ in range(steps):
        if at_x < at_y:
            b, y, at_y = y, x, at_x
            x = b - ratio * (b - a)
            at_x = function(x)
        else:
            a, x, at_x = x, y, at_y
            y = a + ratio * (b - a)
            at_y = function(y)
        best = min(best, (at_x, x), (at_y, y))
    return best[1]


def least_sigma(
    proved: Callable[[float], float],
    epsilon: float,
    guess: float,
    tolerance: float,
    *,
    near: float = 0.0,
    most: int = 200,
) -> tuple[float, float]:
    """(σ, below): the least σ with proved(σ) ≤ epsilon, on the safe side, and one too small for it.

    They are a relative `tolerance` apart, or further where `proved`, which falls with σ, has a gap there: it raises
    AccuracyError at what it cannot tell. σ itself is always proved. AccuracyError where nothing below it can be told.
    near: a relative distance from the guess within which the answer is likely. most: pairs of σ that are tried within
    the bracket.

    Regula falsi in (log σ, log ε) kept inside a bracket, with a step to either side of its root to close the bracket.
    """
    high, at_high = _upper(proved, epsilon, guess * (1.0 + near))
    low, at_low = (guess * (1.0 - near), proved(guess * (1.0 - near))) if near else _lower(proved, high)
    repeats = 0
    while at_low <= epsilon:
        high, at_high = low, at_low
        if 0.7 * low < 1e-4:
            return high, 0.0
        repeats += 1
        low, at_low = _lower(proved, low, min(1.5 ** max(repeats - 8, 0), 16.0))
    gap: tuple[float, float] | None = None
    for _ in range(most):
        width = math.log(high / low)
        if width <= tolerance:
            break
        if gap is not None and not low < gap[0] <= gap[1] < high:
            gap = None
        if gap is None:
            points = _near_root((low, high), (at_low, at_high), epsilon, tolerance)
        else:
            # The answer may be on either side of the gap, or in it.
            share = max(tolerance, 0.01 * math.log(gap[1] / gap[0]))
            sides = (low, gap[0]), (gap[1], high)
            points = [math.sqrt(a) * math.sqrt(b) for a, b in sides if math.log(b / a) > share]
            if not points:
                break
        for at in points:
            if not low < at < high:
                continue
            try:
                value = proved(at)
            except AccuracyError:
                gap = (at, at) if gap is None else (min(gap[0], at), max(gap[1], at))
                continue
            if value <= epsilon:
                high, at_high = at, value
            else:
                low, at_low = at, value
    return high, low


def close_in(proved: Callable[[float], float], epsilon: float, sigma: float, tolerance: float) -> float | None:
    """The least σ with proved(σ) ≤ epsilon > 0 to a relative `tolerance`, near `sigma`: secant steps in logarithms.
    None where a few do not converge."""
    x, slope, last = math.log(sigma), -1.5, None
    for _ in range(7):
        value = proved(math.exp(x))
        if not 0.0 < value < math.inf:
            return None
        gap = math.log(value / epsilon)
        if last is not None and x != last[0]:
            slope = (gap - last[1]) / (x - last[0])
        if not slope < 0.0:
            return None
        step = -gap / slope
        if gap <= 0.0 and abs(step) <= tolerance:
            return math.exp(x)
        last = x, gap
        # On the safe side of the root by half the tolerance.
        x += max(min(step, 0.5), -0.5) + 0.5 * tolerance
    return None


def _near_root(ends: tuple[float, float], values: tuple[float, float], epsilon: float, tolerance: float) -> list[float]:
    """First the probable side of the root, then, a hair away, the other one: the bracket closes from both ends."""
    (low, high), (at_low, at_high) = ends, values
    width, share = math.log(high / low), 0.5
    if 0.0 < at_high < at_low < math.inf and epsilon > 0.0:
        share = min(max(math.log(at_low / epsilon) / math.log(at_low / at_high), 0.01), 0.99)
    root = math.log(low) + share * width
    shift = 0.45 * max(tolerance, 0.02 * width**2)
    first, last = math.log(low) + 0.01 * width, math.log(high) - 0.01 * width
    return [math.exp(min(max(at, first), last)) for at in (root + shift, root - shift)]


def _upper(proved: Callable[[float], float], epsilon: float, sigma: float) -> tuple[float, float]:
    """The first σ from `sigma` upwards that suffices, with its ε."""
    refused = 0
    while True:
        try:
            value = proved(sigma)
            if value <= epsilon:
                return sigma, value
        except AccuracyError:
            refused += 1
            if refused == _PATIENCE:
                raise
        sigma *= 1.5


def _lower(proved: Callable[[float], float], sigma: float, stride: float = 1.0) -> tuple[float, float]:
    """A lower σ with its ε; less of a step where so little noise is beyond what `proved` can tell, then one across."""
    for factor in (0.7**stride, 0.7, 0.9, 0.97, 0.99, 0.5, 0.35):
        try:
            return factor * sigma, proved(factor * sigma)
        except AccuracyError:
            continue
    return 0.25 * sigma, proved(0.25 * sigma)


_ROUGH, _FINER, _FINEST, _SHARP = Precision(bits=14), Precision(bits=17), Precision(bits=19), Precision(sharp=True)
"""What takes 0.05 s, 0.2 s and 0.5 s, and what gives ε to 1e-6 or not at all."""
NEGLIGIBLE = 1e-6
"""ε below which its relative error does not matter."""
_TINY = 1e-9
"""ε for which a coarse lattice is enough."""


def least_noise(limits: Callable[..., tuple[float, float]], wanted: float, guess: float) -> tuple[float, bool]:
    """(σ, whether it is the least to 1e-9): found on coarse lattices, whose ε is proved but not tight, then on finer
    ones, and closed in on where Fourier inversion serves."""
    # Removing a record is nearly always the direction that decides, and the cheaper one.
    hows: list[dict[str, Any]] = [{"directions": ("remove",)}, {}]
    sigma = guess
    for how in hows:

        def upper(at: float, precision: Precision, how: dict[str, Any] = how) -> float:
            return limits(at, precision=precision, **how)[1]

        near = 0.0 if how is hows[0] else 2e-3
        sigma, _ = least_sigma(functools.partial(upper, precision=_ROUGH), wanted, sigma, 1e-2, near=near)
        value, tight, closed_in = sigma, False, False
        # The last one takes seconds a look: only where finer lattices do not close in on what the coarse one found.
        for precision, tolerance in ((_SHARP, 1e-9), (_FINER, 1e-6), (_FINEST, 1e-8), (BEST, 2e-2)):
            if wanted < (NEGLIGIBLE if precision is _SHARP else _TINY) or (precision is BEST and closed_in):
                continue
            with contextlib.suppress(AccuracyError):
                closer = close_in(functools.partial(upper, precision=precision), wanted, value, tolerance)
                value, closed_in = closer or value, closer is not None
                tight = precision is _SHARP and closed_in
            if tight:
                break
        if "directions" not in how or limits(value, precision=_ROUGH, directions=("add",))[1] <= wanted:
            return value, tight
    raise AssertionError
