"""What an audit's trials test, and how they refute it."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Adjacency, parse_adjacency
from leakcore.bounds.audited_epsilon.scaled_mechanism import ScaledMechanism, largest_refuted
from leakcore.mechanisms import Mechanism
from leakcore.numerics import gaussian_pair_epsilon

ATTACKER = "chooses the k rows, sees each trained model's test statistic, and knows both datasets"
"""Who scores models that were trained with the rows and without."""
_PROVENANCE = {
    "dp": "Jagielski, Ullman and Oprea (2020), Algorithm 2, Theorem 2, Appendix A (δ > 0, complement); errata E5, E6",
    "gdp": "Dong, Roth and Su (2022), Definition 2.6, Theorem 2.14 and Corollary 2.13, with the limits of Jagielski, "
    "Ullman and Oprea (2020), Algorithm 2",
    "mechanism": "Dong, Roth and Su (2022), Definition 2.3, with the mechanism's own trade-off curve",
}

Family = Literal["dp", "gdp"]
Direction = Literal["in", "out", "both"]


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """What an audit by counting tests, fixed before its trials are counted.

    Args:
        family: the kind of guarantee. "dp": (ε, δ)-privacy, no further assumption. "gdp": the stronger claim that the
            mechanism is μ-GDP for some μ (full-batch DP-SGD is, subsampled DP-SGD is not); needs δ > 0. A mechanism of
            `leakcore.mechanisms`: the claim that it ran, with some noise; needs δ > 0, k = 1 and direction "in".
        direction: the side on which the event is likelier. "in": with the k rows; "out": without them. Each of these
            two uses one limit per side at (1 − confidence)/2. "both": not fixed, so the error is split over all four
            limits and the larger result is taken (or a split's choosing trials settle it, at no cost). Picking "in" or
            "out" by looking at the counts doubles the error.

    Raises:
        ValueError: for another word; the text names the argument.
        TypeError: for an argument of another type, or a mechanism without noise.

    Example:
        >>> from leakcore import bounds
        >>> counts = {"adjacency": "add-remove", "delta": 1e-5}
        >>> plain = bounds.epsilon_lower_bound(400, 100, 500, **counts)
        >>> gaussian = bounds.epsilon_lower_bound(400, 100, 500, hypothesis=bounds.Hypothesis(family="gdp"), **counts)
        >>> f"{plain.value:.1f}, or {gaussian.value:.1f} if the mechanism is Gaussian"
        '1.1, or 6.2 if the mechanism is Gaussian'
    """

    family: Family | Mechanism = "dp"
    direction: Direction = "in"

    def __post_init__(self) -> None:
        validate.one_of("in", "out", "both", direction=self.direction)
        if not isinstance(self.family, Mechanism):
            validate.one_of("dp", "gdp", family=self.family)
            return
        ScaledMechanism(self.family, self.family.adjacency, 0.0).at(1.0)  # refuses a mechanism without noise
        if self.direction != "in":
            raise ValueError(f"`direction` must be 'in' where `family` is a mechanism, got {self.direction!r}")


PRIVATE = Hypothesis()
"""(ε, δ)-privacy, by an event that is likelier with the k rows."""


@dataclasses.dataclass(frozen=True)
class RefutableClaim:
    """What the counts test at a confidence: k applications of a one-row guarantee, under a relation."""

    confidence: float
    delta: float
    k: int
    adjacency: Adjacency
    family: str
    direction: Direction
    mechanism: ScaledMechanism | None = None

    @classmethod
    def parse(cls, confidence: float, delta: float, k: int, adjacency: str, hypothesis: Hypothesis) -> RefutableClaim:
        """ValueError or TypeError names the argument that is out of range."""
        validate.instance(Hypothesis, hypothesis=hypothesis)
        claimed = hypothesis.family if isinstance(hypothesis.family, Mechanism) else None
        relation = parse_adjacency(adjacency) if claimed is None else claimed.relation(adjacency)
        slack = validate.below_one(delta=delta)
        out = cls(
            confidence=validate.confidence(confidence=confidence),
            delta=slack,
            k=validate.integer(1, k=k),
            adjacency=relation,
            family=str(hypothesis.family) if claimed is None else repr(claimed),
            direction=hypothesis.direction,
            mechanism=None if claimed is None else ScaledMechanism(claimed, relation, slack),
        )
        if out.family != "dp" and out.delta == 0:
            raise ValueError(
                f"`delta` must be in (0, 1) with family={out.family if claimed else 'gdp'!r}, got 0.0: no Gaussian "
                "mechanism has a finite ε there"
            )
        if claimed is not None and out.k > 1:
            raise ValueError(f"`k` must be 1 where `family` is a mechanism, got {out.k}: its curve is about one row")
        return out

    @property
    def provenance(self) -> str:
        """Paper and theorem behind the family's test."""
        return _PROVENANCE[self.family if self.mechanism is None else "mechanism"]

    def proved(self, p_hi: float, p_lo: float) -> float:
        """The least parameter (ε, μ of "gdp", or a mechanism's scale) of one row that allows an event of probabilities
        p_hi and p_lo > 0.
        """
        if self.mechanism is not None:
            roc, limit = self.mechanism.roc, np.array(p_lo)
            return largest_refuted(lambda scale: float(roc(scale)(limit)) < p_hi) if p_lo < p_hi else 0.0
        if self.family == "dp":
            return _group_epsilon(p_hi, p_lo, self.delta, self.k)
        return max(0.0, float(special.ndtri(p_hi) - special.ndtri(p_lo)) / self.k) if p_lo < p_hi else 0.0

    def proved_each(self, p_hi: np.ndarray, p_lo: np.ndarray) -> np.ndarray:
        """`proved` of many pairs; 0 where p_lo is. For a mechanism it is μ of "gdp", which ranks pairs much alike: it
        only chooses which event is counted on other trials.
        """
        if self.family == "dp" and self.delta > 0 and self.k > 1:
            pairs = zip(p_hi.tolist(), p_lo.tolist(), strict=True)
            return np.array([self.proved(a, b) if b > 0 else 0.0 for a, b in pairs])
        apart = (p_lo > 0) & (p_hi > p_lo + (self.k * self.delta if self.family == "dp" else 0.0))
        hi, lo = np.where(apart, p_hi, 0.5), np.where(apart, p_lo, 0.5)
        if self.family != "dp":
            parameters = (special.ndtri(hi) - special.ndtri(lo)) / self.k
        else:
            parameters = np.log((hi - self.delta * apart) / lo) / self.k
        return np.where(apart, np.maximum(parameters, 0.0), 0.0)

    def epsilon(self, parameter: float) -> float:
        """ε of one row at δ."""
        if self.mechanism is not None:
            return self.mechanism.epsilon(parameter)
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
            *(() if self.mechanism is None else (f"the mechanism is {self.family} with some noise multiplier",)),
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
