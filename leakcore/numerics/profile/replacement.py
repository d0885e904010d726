"""Replacing a record by removing it and adding another: ε and δ through the dataset between, from one curve.

δ(ε) ≤ inf over ε₁ of δ_remove(ε₁) + e^{ε₁}·δ_add(ε − ε₁). Every ε₁, and every split of δ, gives a bound. They are
chosen where Chernoff's bounds are best, then nearby on rough curves, and the bound is taken there.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics import search
from leakcore.numerics.privacy_loss.loss import AccuracyError
from leakcore.numerics.profile.curves import Bounded, Curve, Tables
from leakcore.numerics.profile.profile import BEST, Effort

_LOGITS = np.linspace(-12.0, 12.0, 97)
_ROUGH = Effort(bits=14)
_TRIVIAL = -1e-3
"""log δ above which a bound says next to nothing."""
_OUTSIDE = 5.0
"""How far beyond 0 and ε the search for a replacement's first step goes, in nats."""


@dataclasses.dataclass(frozen=True)
class Between:
    """Replacing a row by way of the data set without it: high limits from both steps, low ones from either of them.

    A row whose gradient is 0 is a row, too, so that replacing leaks at least what removing does.
    """

    curve: Bounded

    def chernoff_tables(self, log_floor: float) -> Tables:
        """See `Curve`."""
        return self.curve.chernoff_tables(log_floor)

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        high = epsilon(self.curve, log_delta, effort=effort)
        low = -math.inf if effort.bits else max(self.curve.epsilon(log_delta, side)[0] for side in ("remove", "add"))
        return low, high

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        low = max(self.curve.log_delta(epsilon, side)[0] for side in ("remove", "add"))
        return low, log_delta(self.curve, epsilon)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Bounded`: removing alone bounds it from below, nothing from above."""
        return self.curve.log_blow_up(log_kappa)[0], np.zeros_like(log_kappa)


def epsilon(curve: Curve, log_target: float, *, effort: Effort = BEST) -> float:
    """The high limit of ε₁ + ε₂ ≥ 0 with δ_remove(ε₁) = αδ and e^{ε₁}·δ_add(ε₂) = (1 − α)δ, for a good α."""
    return max(0.0, _at_split(curve, log_target, best_split(curve, log_target), effort))


def best_split(curve: Curve, log_target: float) -> float:
    """The logit of a good α."""
    few = sorted({_chernoff_split(curve, log_target), -8.0, -4.0, -1.5, 0.0, 1.5, 4.0, 8.0})
    return search.valley(lambda x: _at_split(curve, log_target, x, _ROUGH), few, 8)


def _at_split(curve: Curve, log_target: float, logit: float, effort: Effort) -> float:
    first = curve.epsilon(log_target - math.log1p(math.exp(-logit)), "remove", effort=effort)[1]
    rest = log_target - math.log1p(math.exp(logit)) - first
    return first + curve.epsilon(min(rest, -1e-12), "add", effort=effort)[1]


def _chernoff_split(curve: Curve, log_target: float) -> float:
    try:
        (s, k), (t, j) = curve.chernoff_tables(log_target - 12.0)
    except AccuracyError:
        return 0.0
    share, rest = -np.log1p(np.exp(-_LOGITS)), -np.log1p(np.exp(_LOGITS))
    first = np.min((k - (log_target + share)[:, None]) / s, axis=1)
    second = np.min((j - (log_target + rest - first)[:, None]) / t, axis=1)
    return float(_LOGITS[int(np.argmin(first + second))])


def log_delta(curve: Curve, epsilon: float) -> float:
    """The high limit of log δ(ε) at a good ε₁, which may lie outside [0, ε]; the sum is convex in e^{ε₁}."""

    def total(first: float, effort: Effort = _ROUGH) -> float:
        removed = curve.log_delta(first, "remove", effort=effort)[1]
        added = curve.log_delta(epsilon - first, "add", effort=effort)[1]
        return float(np.logaddexp(removed, first + added))

    places = np.linspace(-_OUTSIDE, epsilon + _OUTSIDE, 201)
    start = 0.5 * epsilon
    try:
        (s, k), (t, j) = curve.chernoff_tables(-60.0)
        removed = np.minimum(np.min(k - s * places[:, None], axis=1), 0.0)
        added = np.minimum(np.min(j - t * (epsilon - places)[:, None], axis=1), 0.0)
        start = float(places[int(np.argmin(np.logaddexp(removed, places + added)))])
    except AccuracyError:
        pass
    # The sum has one valley: the best of a few and its neighbours hold it.
    few = sorted({start, -1.0, 0.0, 0.25 * epsilon, 0.5 * epsilon, 0.75 * epsilon, epsilon, epsilon + 1.0})
    out = min(total(search.valley(total, few, 10), BEST), 0.0)
    return out if out < _TRIVIAL else min(out, _inverted(curve, epsilon))


def _inverted(curve: Curve, at: float) -> float:
    """A log δ for which ε is proved to be at most `at`: where the valley is too narrow for so large an ε."""
    low, high = -700.0, 0.0
    for _ in range(10):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if epsilon(curve, middle, effort=_ROUGH) <= at else (middle, high)
    return high
