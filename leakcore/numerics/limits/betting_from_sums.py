"""Betting limits that need only sums: for when outcomes are averages and cannot be counted in cells.

For independent D_i ≥ −d with mean at most 0, and λ < 1/d fixed beforehand, Π(1 + λD_i) has expectation at most 1.
log(1 + x) ≥ x − k(c)x²/2 for x ≥ −c, k(c) = −2(log(1 − c) + c)/c², because (x − log(1 + x))/x² falls. So
    P(λΣD − k(λd)·λ²ΣD²/2 ≥ log(1/α)) ≤ α:
an empirical Bernstein test with the constants of betting (Waudby-Smith and Ramdas 2024, Section 3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from leakcore.numerics.dot import dot

_LARGEST = 0.5
"""λd at most: k(0.5) = 1.55 costs little, and only samples too small to matter would want more."""


@dataclasses.dataclass(frozen=True)
class PairSums:
    """Sums over n independent pairs (a, b), 0 ≤ b ≤ a ≤ 1."""

    count: float
    a: float
    b: float
    aa: float
    ab: float
    bb: float

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> PairSums:
        """The sums of two arrays."""
        return cls(float(len(a)), float(a.sum()), float(b.sum()), dot(a, a), dot(a, b), dot(b, b))

    def __add__(self, other: PairSums) -> PairSums:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return PairSums(*(x + y for x, y in pairs))

    def gap(self, x: float, y: float, z: float) -> tuple[float, float]:
        """(ΣD, ΣD²) of D = x·a + y·b + z."""
        n = self.count
        square = x * x * self.aa + y * y * self.bb + z * z * n + 2.0 * (x * y * self.ab + z * (x * self.a + y * self.b))
        return x * self.a + y * self.b + z * n, max(square, 0.0)


def lower_limit(
    counted: PairSums,
    pilot: PairSums,
    alpha: float,
    *,
    a: float = 0.0,
    b: float = 0.0,
    constant: float = 0.0,
    most: float = 1.0,
) -> float:
    """P(limit > E Y) ≤ α for Y = a·A + b·B + constant, the coefficients such that Y is in [0, most] whatever the pair.

    The bet is chosen on the pilot, which is independent of these sums.
    """
    centre = (a * pilot.a + b * pilot.b) / pilot.count + constant
    bet = _bet(pilot.gap(a, b, constant - centre), pilot.count, counted.count, most, alpha)
    return _last(lambda m: _log_wealth(counted.gap(a, b, constant - m), bet, most), 0.0, most, alpha)


def _bet(gap: tuple[float, float], pilot: float, count: float, least: float, alpha: float) -> float:
    # One unit outcome more than the pilot saw: a pilot without variation must not bet as if there were none.
    square = (gap[1] + min(least, 1.0) ** 2) / (pilot + 1.0)
    return min(math.sqrt(-2.0 * math.log(alpha) / (count * square)), _LARGEST / least)


def _log_wealth(gap: tuple[float, float], bet: float, least: float) -> float:
    c = bet * least
    curvature = -2.0 * (math.log1p(-c) + c) / (c * c) if c > 1e-4 else 1.0 + c
    return bet * gap[0] - 0.5 * curvature * bet * bet * gap[1]


def _last(log_wealth: Callable[[float], float], low: float, high: float, alpha: float) -> float:
    """The end of the rejected candidates, which start at `low`: the wealth is a concave parabola of the candidate."""
    target = -math.log(alpha)
    if log_wealth(low) < target:
        return low
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if log_wealth(middle) >= target else (low, middle)
    return low
