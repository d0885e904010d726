"""A claimed mechanism with its noise divided by a number: how often any test is right, and its ε."""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from typing import Any

import numpy as np

from leakcore import accounting
from leakcore._base.results import Adjacency
from leakcore.mechanisms import GDP, ApproximateDP, Mechanism
from leakcore.numerics import AccuracyError

_FINENESS = 128
"""Scales that are tried: 2^(k/128), steps of half a percent of the noise."""
_FARTHEST = 10 * _FINENESS
_LEVELS = np.concatenate(
    [np.geomspace(1e-7, 0.2, 48, endpoint=False), np.linspace(0.2, 0.98, 40), 1 - np.geomspace(0.015, 1e-5, 14), [1.0]]
)
"""False-positive rates at which the curve is computed; between them it is bounded by lines."""
_ROUNDING = 1e-12
"""More than the arithmetic of a line can lose."""


class Roc:
    """Limits above a concave curve of true-positive rates: by its values, and by lines through neighbours.

    Args:
        low: lower limits of the curve at `_LEVELS`.
        high: upper limits there.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        high = np.minimum(high, 1.0)
        self._high = high
        steps = np.diff(_LEVELS)
        # A concave curve lies below the line through two of its points, on either side of them.
        self._before = np.append(math.inf, (high[1:] - low[:-1]) / steps)
        self._after = np.append(np.maximum(low[1:] - high[:-1], 0.0) / steps, 0.0)

    def __call__(self, p: np.ndarray) -> np.ndarray:
        """At most this true-positive rate at a false-positive rate p, any array."""
        right = np.minimum(np.searchsorted(_LEVELS, p, side="left"), len(_LEVELS) - 1)
        value = self._high[right] - self._after[right] * np.maximum(_LEVELS[right] - p, 0.0)
        left = np.maximum(right - 1, 1)
        ahead = self._high[left] + self._before[left] * np.maximum(p - _LEVELS[left], 0.0)
        value = np.where(right >= 2, np.minimum(value, ahead), value)
        return np.asarray(np.clip(value + _ROUNDING, 0.0, 1.0))


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """A mechanism at a scale, equal if it describes the same law, for the cache."""

    fingerprint: str
    adjacency: Adjacency
    mechanism: Mechanism = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class ScaledMechanism:
    """The family that a claimed mechanism spans: its noise divided by a scale, 1 for the claim itself.

    A bare claim has its parameter (μ or ε) multiplied instead.

    Attributes:
        claimed: the mechanism.
        adjacency: the relation between the two sides of the trials.
        delta: δ of `epsilon`.
    """

    claimed: Mechanism
    adjacency: Adjacency
    delta: float

    def at(self, scale: float) -> Mechanism:
        """The mechanism at a scale. TypeError for one without noise to change."""
        claim: Any = self.claimed
        if isinstance(claim, GDP):
            return dataclasses.replace(claim, mu=claim.mu * scale)
        if isinstance(claim, ApproximateDP):
            return dataclasses.replace(claim, epsilon=claim.epsilon * scale)
        self.claimed.with_noise(1.0)
        sigma = np.asarray(claim.noise_multiplier, dtype=np.float64) / scale
        return self.claimed.with_noise(float(sigma) if sigma.ndim == 0 else sigma)  # type: ignore[arg-type]

    def roc(self, scale: float) -> Roc:
        """How often the best test is right. AccuracyError where no method reaches the mechanism."""
        mechanism = self.at(scale)
        return _roc(_Scaled(mechanism.fingerprint(), self.adjacency, mechanism))

    def epsilon(self, scale: float) -> float:
        """The smallest ε at δ of the mechanism at this scale, from below; 0 at scale 0."""
        if scale == 0:
            return 0.0
        spent = accounting.epsilon(self.at(scale), delta=self.delta, adjacency=self.adjacency)
        return float(spent.value if spent.interval is None else spent.interval[0])

    def noise_multiplier(self, scale: float) -> float | None:
        """The largest σ at a scale; None of a bare claim, and where nothing is refuted."""
        sigma = vars(self.claimed).get("noise_multiplier")
        return None if sigma is None or scale == 0 else float(np.max(sigma)) / scale


def largest_refuted(refutes: Any) -> float:
    """The largest scale of the grid that is refuted, 0 if none is: those below it are refuted with it.

    Args:
        refutes: whether a scale is refuted. A scale at which the curve cannot be computed is not.
    """

    def fails(k: int) -> bool:
        try:
            return bool(refutes(2.0 ** (k / _FINENESS)))
        except AccuracyError:
            return False

    low, high, reach, start = -_FARTHEST, _FARTHEST, 8, 0
    if fails(start):
        low = start
        while (step := min(start + reach, _FARTHEST)) > low and fails(step):
            low, reach = step, 4 * reach
        high = step
    else:
        high = start
        while (step := max(start - reach, -_FARTHEST)) < high and not fails(step):
            high, reach = step, 4 * reach
        low = step
    if high == -_FARTHEST:
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return math.pow(2.0, low / _FINENESS)


@lru_cache(maxsize=256)
def _roc(scaled: _Scaled) -> Roc:
    low, high = scaled.mechanism.curve(scaled.adjacency).log_blow_up(np.log(_LEVELS))
    return Roc(np.exp(low), np.exp(high))
