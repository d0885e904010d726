"""Replacing a record by removing it and adding another: ε and δ through the dataset between, from one curve.

δ(ε) ≤ inf over ε₁ of δ_remove(ε₁) + e^{ε₁}·δ_add(ε − ε₁). Every ε₁, and every split of δ, gives a bound. They are
chosen where Chernoff's bounds are best, then nearby on rough curves, and the bound is taken there.
"""

from __future__ import annotations

import math

import numpy as np

from leakcore.numerics import search
from leakcore.numerics.lattice import lattice_profile
from leakcore.numerics.lattice.schedule import sides_of
from leakcore.numerics.privacy_loss.loss import AccuracyError, PrivacyLoss
from leakcore.numerics.profile.curves import Curve
from leakcore.numerics.profile.profile import BEST, Effort

_LOGITS = np.linspace(-12.0, 12.0, 97)
_ROUGH = Effort(bits=14)
_OUTSIDE = 5.0
"""How far beyond 0 and ε the search for a replacement's first step goes, in nats."""


def epsilon(curve: Curve, log_target: float, *, effort: Effort = BEST, split: float = math.nan) -> tuple[float, float]:
    """(low, high) of ε₁ + ε₂ ≥ 0 with δ_remove(ε₁) = αδ and e^{ε₁}·δ_add(ε₂) = (1 − α)δ; split: the logit of α."""
    logit = best_split(curve, log_target) if math.isnan(split) else split
    low, high = _at_split(curve, log_target, logit, effort)
    return max(0.0, low), max(0.0, high)


def best_split(curve: Curve, log_target: float) -> float:
    """The logit of a good α."""
    few = sorted({_chernoff_split(curve.loss, log_target), -8.0, -4.0, -1.5, 0.0, 1.5, 4.0, 8.0})
    return search.valley(lambda x: _at_split(curve, log_target, x, _ROUGH)[1], few, 8)


def _at_split(curve: Curve, log_target: float, logit: float, effort: Effort) -> tuple[float, float]:
    first = curve.epsilon(log_target - math.log1p(math.exp(-logit)), "remove", effort=effort)
    rest = log_target - math.log1p(math.exp(logit)) - first[1]
    second = curve.epsilon(min(rest, -1e-12), "add", effort=effort)
    return first[0] + second[0], first[1] + second[1]


def _chernoff_split(loss: PrivacyLoss, log_target: float) -> float:
    try:
        (s, k), (t, j) = lattice_profile.chernoff_tables(sides_of(loss).upper, log_target - 12.0)
    except AccuracyError:
        return 0.0
    share, rest = -np.log1p(np.exp(-_LOGITS)), -np.log1p(np.exp(_LOGITS))
    first = np.min((k - (log_target + share)[:, None]) / s, axis=1)
    second = np.min((j - (log_target + rest - first)[:, None]) / t, axis=1)
    return float(_LOGITS[int(np.argmin(first + second))])


def log_delta(curve: Curve, epsilon: float) -> tuple[float, float]:
    """(low, high) of log δ(ε) at a good ε₁, which may lie outside [0, ε]; the sum is convex in e^{ε₁}."""

    def total(first: float, effort: Effort = _ROUGH) -> tuple[float, float]:
        removed = curve.log_delta(first, "remove", effort=effort)
        added = curve.log_delta(epsilon - first, "add", effort=effort)
        low, high = (float(np.logaddexp(r, first + a)) for r, a in zip(removed, added, strict=True))
        return low, high

    places = np.linspace(-_OUTSIDE, epsilon + _OUTSIDE, 201)
    start = 0.5 * epsilon
    try:
        (s, k), (t, j) = lattice_profile.chernoff_tables(sides_of(curve.loss).upper, -60.0)
        removed = np.minimum(np.min(k - s * places[:, None], axis=1), 0.0)
        added = np.minimum(np.min(j - t * (epsilon - places)[:, None], axis=1), 0.0)
        start = float(places[int(np.argmin(np.logaddexp(removed, places + added)))])
    except AccuracyError:
        pass
    # The sum has one valley: the best of a few and its neighbours hold it.
    few = sorted({start, -1.0, 0.0, 0.25 * epsilon, 0.5 * epsilon, 0.75 * epsilon, epsilon, epsilon + 1.0})
    best = search.valley(lambda x: total(x)[1], few, 10)
    low, high = total(best, BEST)
    return min(low, 0.0), min(high, 0.0)
