"""Bets against a trade-off curve: factors that no mechanism of the curve can make grow, whatever the scores are.

A curve T bounds what an event of probability q without the rows has with them: p ≤ T(q) ≤ a q + b for every line (a, b)
above T. Give each line and threshold τ a weight, such that the weights and two more have the sum 1. With A = 1{in ≥ τ}
and B = 1{out ≥ τ} the two functions

    f(in) = 2 w₁ + Σ 2w A/(a + b),    g(out) = 2 w₀ + Σ 2w a(1 − B)/(a + b)

are nonnegative, and E f + E g ≤ 2 Σ w (p + a − a q)/(a + b) + 2 w₀ + 2 w₁ ≤ 2. A model with the rows and one without
are independent, so E f(in) g(out) = E f · E g ≤ ((E f + E g)/2)² ≤ 1. With weights that earlier trials chose, the
product over later pairs is therefore a nonnegative supermartingale: the probability that it ever reaches 1/α is at most
α (Ville 1939).
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from scipy import special

from leakcore.bounds.audited_epsilon.hypothesis import Family
from leakcore.bounds.audited_epsilon.ranks import allowed

_STEPS, _POWER = 300, 2.0
"""Of the multiplicative rule that looks for weights. They need not be the best ones for a bet to be valid."""
_NEAR = 2e-4
"""Of the best growth for each score, within which it stops."""
_TANGENTS = np.linspace(-3.0, 3.0, 9)
"""Standard deviations from the middle of a Gaussian curve at which its tangents lie."""
_SHARES = np.linspace(0.1, 0.9, 9)
"""Shares of all earlier scores at which there are thresholds, besides those in the tails."""
_MOST = 700.0


@dataclasses.dataclass(frozen=True)
class Curve:
    """The trade-off curves of k rows, one for each parameter: ε of "dp", μ of "gdp"."""

    family: Family
    delta: float
    k: int

    def lines(self, parameter: float) -> tuple[np.ndarray, np.ndarray]:
        """(a, b) of the lines above a parameter's curve that are bet on."""
        apart = min(_MOST, self.k * parameter)
        if self.family == "gdp":
            slopes = np.exp(-apart * _TANGENTS)
            at = _TANGENTS - apart / 2
            return slopes, np.asarray(special.ndtr(at + apart) - slopes * special.ndtr(at))
        ratio = math.exp(apart)
        start = float(allowed(np.zeros(1), parameter, "dp", self.delta, self.k)[0])
        return np.array([ratio, 1 / ratio]), np.array([start, 1 - (1 - start) / ratio])

    def most(self, parameter: float) -> float:
        """The largest factor of one pair, from above.

        Where in is at the top with probability T(q) and out at the bottom with 1 − q, the mean factor is at most 1. So
        the factor is at most 1/(T(q)(1 − q)), for every q.
        """
        q = special.expit(np.linspace(-30.0, 0.0, 4001))
        return float(1 / (allowed(q, parameter, self.family, self.delta, self.k) * (1 - q)).max())


class Bet(NamedTuple):
    """Factors of a model by the cell of its score: cell i has i thresholds at or below it."""

    thresholds: np.ndarray
    inside: np.ndarray
    outside: np.ndarray

    def log_growth(self, inside: np.ndarray, outside: np.ndarray) -> float:
        """Logarithm of the product over pairs."""
        return sum(
            math.fsum(np.log(factors)[np.searchsorted(self.thresholds, scores, side="right")])
            for scores, factors in ((inside, self.inside), (outside, self.outside))
        )


def bet_on(inside: np.ndarray, outside: np.ndarray, curve: Curve, parameter: float) -> Bet:
    """The bet that would have grown most on these trials, and one more on each side that went wrong."""
    thresholds = _thresholds(inside, outside)
    slopes, heights = curve.lines(parameter)
    cells, size = len(thresholds) + 1, len(thresholds) * len(slopes)
    above = np.arange(cells)[:, None] > np.arange(cells - 1)
    worth = 2 / (slopes + heights)
    won = (above[:, :, None] * worth).reshape(cells, size)
    lost = (~above[:, :, None] * (worth * slopes)).reshape(cells, size)
    two, none = np.full((cells, 1), 2.0), np.zeros((cells, 1))
    factors = np.block([[two, none, won], [none, two, lost]])
    counts = [
        np.bincount(np.searchsorted(thresholds, scores, side="right"), minlength=cells).astype(np.float64)
        for scores in (inside, outside)
    ]
    counts[0][0] += 1.0
    counts[1][-1] += 1.0
    share = np.concatenate(counts) / np.sum(counts)
    weights = np.full(size + 2, 0.2 / size)
    weights[:2] = 0.4
    for _ in range(_STEPS):
        gains = factors.T @ (share / (factors @ weights))
        if gains.max() < 1 + _NEAR:
            break
        weights *= gains**_POWER
        weights /= weights.sum()
    weights = np.maximum(weights, 1e-12)  # a factor of 0 would end all bets
    weights /= weights.sum() * (1 + 1e-12)  # and a sum that rounding lifted above 1 would make them false
    grown = factors @ weights
    return Bet(thresholds, grown[:cells], grown[cells:])


def _thresholds(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Above the 1st, 2nd, 4th, … highest score without the rows, above the lowest ones with them, and between."""
    every = np.unique(np.concatenate([inside, outside]))
    high, low = np.sort(outside)[::-1], np.sort(inside)
    ranks = [2**i - 1 for i in range(40) if 2**i <= max(1, len(inside) // 2)]
    shares = np.quantile(np.concatenate([inside, outside]), _SHARES, method="lower")
    at = np.searchsorted(every, np.concatenate([high[ranks], low[ranks], shares]), side="right")
    here, above = every[at - 1], every[np.minimum(at, len(every) - 1)]
    finite = np.isfinite(here) & np.isfinite(above)
    half = np.where(finite, 0.5, 0.0)
    between = np.where(finite, half * np.where(finite, here, 0) + half * np.where(finite, above, 0), above)
    return np.unique(between)
