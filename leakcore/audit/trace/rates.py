"""What attacks reached on one recorded run's candidates, with finite-sample limits, and how that stands to a bound."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import special, stats

from leakcore._base.results import Assumptions, Result
from leakcore.audit.report.area import area, area_limits
from leakcore.audit.report.format import interval, percent
from leakcore.audit.scores.rates import rate_limits

FPRS = (0.01, 0.05, 0.1)
"""False-positive rates at which the membership test is reported."""
_EXACT = 50_000
"""Members times non-members up to which the rank sum's exact law is summed: a quarter of a second."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Measured(Result):
    """What an attack on one recorded run reached. trials: rows it was measured on."""

    quantity: str = "success rate"
    trials: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Separation(Measured):
    """An area under the ROC curve. p_value: one-sided, that candidates as alike as these scores say reach it."""

    quantity: str = "area under the ROC curve"
    p_value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """A measured rate, and the bound that no attacker exceeds.

    Attributes:
        what: in words.
        found: the measured rate.
        bound: the upper bound.
        lift: P(sampling picks a row) if the members are the picked rows, else 1.
        members: number of members.
        non_members: number of non-members.
        alike: whether coins decided the members, so that both sides have one distribution.
    """

    what: str
    found: Measured
    bound: float
    lift: float
    members: int
    non_members: int
    alike: bool

    @property
    def held(self) -> float:
        """The bound with which the rate is compared."""
        return lifted(self.bound, self.lift)

    @property
    def above(self) -> bool:
        """Whether the measured rate is above the bound, justly or by chance."""
        return float(self.found.value) > self.held

    @property
    def odd(self) -> bool:
        """Whether the whole interval of this row is above the bound."""
        return self.found.interval is not None and float(self.found.interval[0]) > self.held

    def said(self) -> str:
        """What follows where the rate is above its bound; empty where it is not."""
        if not self.above:
            return ""
        sure = f"{100 * (self.found.confidence or 0):g}%"
        bound = f"the bound {percent(self.held, 'upper')}{for_picked(self.lift)}"
        rate = f"{self.what}: {percent(self.found)} is above {bound}"
        if self.odd:
            return (
                f"{rate}, and so is the whole {sure} interval {interval(self.found)}, which takes rows as independent: "
                "one run's noise may lift all of them, the more so the fewer directions their gradients have"
                f"{'' if self.alike else ', and so may members and non-members that are not alike'}. Check the loop, σ "
                "and the sampling; record another run; a proof needs members chosen by coins."
            )
        return (
            f"{rate} by chance: with {self.members} members and {self.non_members} non-members the {sure} interval is "
            f"{interval(self.found)}."
        )


def lifted(bound: float, lift: float) -> float:
    """Most that a rate among rows picked with probability `lift` can be where `bound` is that of all rows."""
    return min(1.0, bound / lift) if lift > 0 else 1.0


def for_picked(lift: float) -> str:
    """The words that must accompany a bound that was lifted; empty if it was not."""
    return f" for members that sampling picked (bound / {percent(lift)})" if lift < 1 else ""


def levels(curve: Any) -> np.ndarray:
    """False-positive rates of a bound on membership."""
    return np.atleast_1d(np.asarray(curve.fpr))


def standing(compared: list[Compared]) -> str:
    """Sentences about rates above their bounds; empty if there are none."""
    return " ".join(c.said() for c in compared if c.above)


_ONE_RUN = (
    "the interval is for rows drawn independently; all candidates share one run's noise, which it does not count",
    "members and non-members are the caller's candidates; they must come from the same distribution",
    "another attack may do better",
)
_TEST = "knows the batches and all rows that are not candidates, sees every release"


def _assumed(attacker: str) -> Assumptions:
    return Assumptions(adjacency="add-remove", attacker=attacker, notes=_ONE_RUN)


def named(pairs: np.ndarray, inside: np.ndarray, outside: np.ndarray, size: int, confidence: float) -> Measured:
    """Mean over members of the probability that `size` − 1 non-members drawn at random all score lower; ties lose.

    A two-sample U-statistic of values in [0, 1]: Chernoff limits with as many independent terms as there are members
    with rivals of their own (Hoeffding 1963, Section 5b), so that few non-members make a wide interval.
    """
    own = pairs[inside, inside]
    lower = (pairs[np.ix_(inside, outside)] < own[:, None]).sum(axis=1)
    log_all = _log_choose(len(outside), size - 1)
    value = min(1.0, float(np.exp(_log_choose(lower, size - 1) - log_all).mean()))
    apart = min(len(inside), len(outside) // (size - 1))
    return Measured(
        value=value,
        kind="estimate",
        confidence=confidence,
        interval=area_limits(value, apart, confidence),
        method="prior-aware attack, expectation over random rivals; Chernoff limits of a two-sample U-statistic",
        trials=len(inside),
        assumptions=_assumed(
            "knows every row but one and the batches, sees every release; the missing row is one of the candidates"
        ),
        provenance="Hayes, Mahloujifar and Balle (2023), Algorithm 2 and Appendix G; Hoeffding (1963), Section 5b",
    )


def _log_choose(n: object, k: int) -> np.ndarray:
    n = np.asarray(n, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_masses = -special.betaln(n - k + 1.0, k + 1.0) - np.log(n + 1.0)
    return np.where(n >= k, log_masses, -np.inf)


def rate_at(inside: np.ndarray, outside: np.ndarray, fpr: float, confidence: float) -> Measured | None:
    """True-positive rate at the threshold that lets at most a share `fpr` of the non-members through; None where that
    is not one of them. The limits count the members (Clopper and Pearson 1934) and the threshold's own uncertainty
    (order statistics of the non-members).
    """
    limits = rate_limits(inside, outside, fpr, confidence, _ONE_RUN)
    if limits is None:
        return None
    return Measured(
        value=limits.value,
        kind="estimate",
        confidence=confidence,
        interval=limits.interval,
        method=f"membership test, {limits.method}",
        trials=len(inside) + len(outside),
        assumptions=_assumed(_TEST),
        provenance="Hayes et al. (2023), Appendix G; Clopper and Pearson (1934)",
    )


def roc(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False- and true-positive rates of every threshold."""
    levels = np.unique(np.concatenate([inside, outside]))[::-1]
    return (np.array([(outside >= t).mean() for t in levels]), np.array([(inside >= t).mean() for t in levels]))


def separation(inside: np.ndarray, outside: np.ndarray, confidence: float) -> Separation:
    """The area under the ROC curve, its limits, and the p-value of the null that scores say nothing of membership."""
    value = area(inside, outside)
    return Separation(
        value=value,
        kind="estimate",
        confidence=confidence,
        interval=area_limits(value, min(len(inside), len(outside)), confidence),
        p_value=rank_sum(inside, outside),
        method="area under the ROC curve, Chernoff limits of a two-sample U-statistic; one-sided Mann-Whitney test",
        trials=len(inside) + len(outside),
        assumptions=_assumed(_TEST),
        provenance="Hayes et al. (2023), Appendix G; Hoeffding (1963), Section 5b; Mann and Whitney (1947)",
    )


def rank_sum(inside: np.ndarray, outside: np.ndarray) -> float:
    """P(members rank at least this high | which scores are the members' is exchangeable), Mann and Whitney (1947).

    Up to 50,000 pairs by the exact law, ties counted against the members (the test then rejects a true null at most
    as often as it says); beyond that the normal law with corrections for ties and continuity. Noise that scores share
    does no harm: under the null it says nothing of who is a member.
    """
    scores = np.concatenate([inside, outside])
    if (scores == scores[0]).all():
        return 1.0
    if len(inside) * len(outside) > _EXACT:
        return float(stats.mannwhitneyu(inside, outside, alternative="greater", method="asymptotic").pvalue)
    rank = np.empty(len(scores))
    rank[np.lexsort((np.arange(len(scores)) >= len(inside), scores))] = np.arange(len(scores))
    return float(
        stats.mannwhitneyu(rank[: len(inside)], rank[len(inside) :], alternative="greater", method="exact").pvalue
    )
