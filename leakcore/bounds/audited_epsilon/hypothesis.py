"""What an audit's trials test, and how they refute it."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Adjacency, parse_adjacency
from leakcore.numerics import gaussian_pair_epsilon

_PROVENANCE = {
    "dp": "Jagielski, Ullman and Oprea (2020), Algorithm 2, Theorem 2, Appendix A (δ > 0, complement); errata E5, E6",
    "gdp": "Dong, Roth and Su (2022), Definition 2.6, Theorem 2.14 and Corollary 2.13, with the limits of Jagielski, "
    "Ullman and Oprea (2020), Algorithm 2",
}

Family = Literal["dp", "gdp"]
Direction = Literal["in", "out", "both"]


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """What an audit by counting tests, fixed before its trials are counted.

    Args:
        family: the kind of guarantee. "dp": (ε, δ)-privacy, no further assumption. "gdp": the stronger claim that the
            mechanism is μ-GDP for some μ (full-batch DP-SGD is, subsampled DP-SGD is not); needs δ > 0.
        direction: the side on which the event is likelier. "in": with the k rows; "out": without them. Each of these
            two uses one limit per side at (1 − confidence)/2. "both": not fixed, so the error is split over all four
            limits and the larger result is taken (or a split's choosing trials settle it, at no cost). Picking "in" or
            "out" by looking at the counts doubles the error.

    Raises:
        ValueError: for another word; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import bounds
        >>> counts = {"adjacency": "add-remove", "delta": 1e-5}
        >>> plain = bounds.epsilon_lower_bound(400, 100, 500, **counts)
        >>> gaussian = bounds.epsilon_lower_bound(400, 100, 500, hypothesis=bounds.Hypothesis(family="gdp"), **counts)
        >>> f"{plain.value:.1f}, or {gaussian.value:.1f} if the mechanism is Gaussian"
        '1.1, or 6.2 if the mechanism is Gaussian'
    """

    family: Family = "dp"
    direction: Direction = "in"

    def __post_init__(self) -> None:
        validate.one_of("dp", "gdp", family=self.family)
        validate.one_of("in", "out", "both", direction=self.direction)


PRIVATE = Hypothesis()
"""(ε, δ)-privacy, by an event that is likelier with the k rows."""


@dataclasses.dataclass(frozen=True)
class RefutableClaim:
    """What the counts test at a confidence: k applications of a one-row guarantee, under a relation."""

    confidence: float
    delta: float
    k: int
    adjacency: Adjacency
    family: Family
    direction: Direction

    @classmethod
    def parse(cls, confidence: float, delta: float, k: int, adjacency: str, hypothesis: Hypothesis) -> RefutableClaim:
        """ValueError or TypeError names the argument that is out of range."""
        validate.instance(Hypothesis, hypothesis=hypothesis)
        out = cls(
            confidence=validate.confidence(confidence=confidence),
            delta=validate.below_one(delta=delta),
            k=validate.integer(1, k=k),
            adjacency=parse_adjacency(adjacency),
            family=hypothesis.family,
            direction=hypothesis.direction,
        )
        if out.family == "gdp" and out.delta == 0:
            raise ValueError(
                "`delta` must be in (0, 1) with family='gdp', got 0.0: no Gaussian mechanism has a finite ε there"
            )
        return out

    @property
    def provenance(self) -> str:
        """Paper and theorem behind the family's test."""
        return _PROVENANCE[self.family]

    def proved(self, p_hi: float, p_lo: float) -> float:
        """The least parameter (ε, or μ of "gdp") of one row that allows an event of probabilities p_hi and p_lo > 0."""
        if self.family == "dp":
            return _group_epsilon(p_hi, p_lo, self.delta, self.k)
        return max(0.0, float(special.ndtri(p_hi) - special.ndtri(p_lo)) / self.k) if p_lo < p_hi else 0.0

    def proved_each(self, p_hi: np.ndarray, p_lo: np.ndarray) -> np.ndarray:
        """`proved` of many pairs; 0 where p_lo is."""
        if self.family == "dp" and self.delta > 0 and self.k > 1:
            pairs = zip(p_hi.tolist(), p_lo.tolist(), strict=True)
            return np.array([self.proved(a, b) if b > 0 else 0.0 for a, b in pairs])
        apart = (p_lo > 0) & (p_hi > p_lo + (self.k * self.delta if self.family == "dp" else 0.0))
        hi, lo = np.where(apart, p_hi, 0.5), np.where(apart, p_lo, 0.5)
        if self.family == "gdp":
            parameters = (special.ndtri(hi) - special.ndtri(lo)) / self.k
        else:
            parameters = np.log((hi - self.delta * apart) / lo) / self.k
        return np.where(apart, np.maximum(parameters, 0.0), 0.0)

    def epsilon(self, parameter: float) -> float:
        """ε of one row at δ."""
        return parameter if self.family == "dp" else float(gaussian_pair_epsilon(parameter, delta=self.delta))

    def notes(self) -> tuple[str, ...]:
        """What must be true about the trials."""
        return (
            "trials are independent, and identically distributed within each dataset",
            f"the two datasets differ in {self.k} "
            + ("replaced" if self.adjacency == "replace" else "added")
            + (" row" if self.k == 1 else " rows"),
            *(
                ("the mechanism is μ-GDP for some μ (full-batch DP-SGD is, subsampled is not)",)
                if self.family == "gdp"
                else ()
            ),
        )


def _group_epsilon(p_hi: float, p_lo: float, delta: float, k: int) -> float:
    """The smallest ε ≥ 0 with p_hi ≤ e^(kε) p_lo + δ(e^(kε) − 1)/(e^ε − 1); p_lo > 0."""
    if p_hi <= p_lo + k * delta:
        return 0.0
    if delta == 0:
        return math.log(p_hi / p_lo) / k
    if k == 1:
        return math.log((p_hi - delta) / p_lo)
    log_hi, log_lo, log_delta = math.log(p_hi), math.log(p_lo), math.log(delta)

    def allows(epsilon: float) -> bool:
        geometric = _log_expm1(k * epsilon) - _log_expm1(epsilon)
        terms = (log_lo + k * epsilon, log_delta + geometric)
        top = max(terms)
        return top + math.log(sum(math.exp(t - top) for t in terms)) >= log_hi

    # The right side grows with ε, and dropping its δ term gives a point above the root. The end kept is the one where
    # the inequality fails, so rounding can only lower the bound.
    low, high = 0.0, (log_hi - log_lo) / k
    while low < (middle := 0.5 * (low + high)) < high:
        if allows(middle):
            high = middle
        else:
            low = middle
    return low


def _log_expm1(y: float) -> float:
    """log(e^y − 1) for y > 0, without overflow for large y or cancellation for small."""
    return y + math.log(-math.expm1(-y))
