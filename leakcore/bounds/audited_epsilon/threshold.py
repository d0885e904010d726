"""How the threshold of an audit by scores is chosen so that the bound holds although it was chosen."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.score_arrays import require_no_labels
from leakcore.bounds.audited_epsilon.counts import EpsilonLowerBound, from_counts
from leakcore.bounds.audited_epsilon.hypothesis import Direction, RefutableClaim
from leakcore.numerics import clopper_pearson


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonFromScores(EpsilonLowerBound):
    """A lower bound on ε whose event is {score ≥ threshold}, as `epsilon_lower_bound_from_scores` returns it.

    `trials` counts those that were counted (with the k rows, without them), not those that chose the threshold.

    Attributes:
        threshold: of the event; None where every threshold proves nothing.
        select: how it was chosen: "split" (which sets it halfway to the next lower score), "simultaneous" or
            "correction".
    """

    threshold: float | None
    select: str


_NO_LABELS = (
    "pass the scores of one side in each array, scores[labels == 1] and scores[labels == 0]; of events pass numbers, "
    "or count them (epsilon_lower_bound)"
)


class ScoredAudit(NamedTuple):
    """Scores by the argument that brought them, (with the k rows, without them), and the hypothesis that they test."""

    sides: dict[str, np.ndarray]
    claim: RefutableClaim

    @classmethod
    def parse(cls, claim: RefutableClaim, **sides: object) -> ScoredAudit:
        """One finite or infinite score for each trial, and no labels; the error names the argument."""
        arrays = {name: _checked(name, values) for name, values in sides.items()}
        require_no_labels(sides, arrays, _NO_LABELS)
        return cls(arrays, claim)


def _checked(name: str, values: object) -> np.ndarray:
    out = validate.real_array("a number", lambda v: ~np.isnan(v), **{name: values})
    if out.ndim != 1 or out.size == 0:
        raise ValueError(f"`{name}` must hold one score per trial, at least one, got shape {out.shape}")
    return out


class Threshold(abc.ABC):
    """A valid way to choose the threshold, and which of several audits is reported.

    Example:
        >>> from leakcore import bounds
        >>> [issubclass(way, bounds.Threshold) for way in (bounds.SplitThreshold, bounds.SimultaneousThreshold)]
        [True, True]
    """

    @abc.abstractmethod
    def prove(self, audit: ScoredAudit) -> EpsilonFromScores:
        """What one audit proves."""

    @abc.abstractmethod
    def prove_best(self, audits: Sequence[ScoredAudit]) -> tuple[int, EpsilonFromScores]:
        """What the best of several audits proves, valid although it was picked, and its number among them."""


@dataclasses.dataclass(frozen=True)
class SplitThreshold(Threshold):
    """A random share of the trials of each dataset chooses the threshold; the others are counted.

    Jagielski, Ullman and Oprea (2020), Section 4.2. The choosing trials also settle a hypothesis of direction "both",
    at no cost, and which of several audits is counted.

    Args:
        share: part of the trials that chooses, in (0, 1).
        seed: of the random split. With as many scores in as out, trials of one number fall on one side of it, so trial
            i of both may share its randomness.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> import numpy as np
        >>> from leakcore import bounds
        >>> fifth = bounds.SplitThreshold(share=0.2, seed=1)
        >>> scores = {"scores_in": np.arange(100) + 90, "scores_out": np.arange(100), "adjacency": "replace"}
        >>> bounds.epsilon_lower_bound_from_scores(threshold=fifth, **scores).trials
        (80, 80)
    """

    share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", validate.open_probability(share=self.share))
        object.__setattr__(self, "seed", validate.seed(seed=self.seed))

    def prove(self, audit: ScoredAudit) -> EpsilonFromScores:
        """See `Threshold`."""
        return self._counted(self._plan(audit))

    def prove_best(self, audits: Sequence[ScoredAudit]) -> tuple[int, EpsilonFromScores]:
        """See `Threshold`."""
        plans = [self._plan(audit) for audit in audits]
        best = max(range(len(plans)), key=lambda i: plans[i].promised)
        proof = self._counted(plans[best])
        return best, dataclasses.replace(proof, method=f"{proof.method}; one of {len(plans)} chosen on other trials")

    def _counted(self, plan: _Plan) -> EpsilonFromScores:
        proof = plan.counted()
        fields = {f.name: getattr(proof, f.name) for f in dataclasses.fields(proof)} | {"seed": self.seed}
        return EpsilonFromScores(**fields, threshold=plan.threshold, select="split")

    def _plan(self, audit: ScoredAudit) -> _Plan:
        (in_choose, in_count), (out_choose, out_count) = (self._split(*side) for side in audit.sides.items())
        direction, threshold, promised = _choose(in_choose, out_choose, (len(in_count), len(out_count)), audit.claim)
        return _Plan(promised, threshold, in_count, out_count, dataclasses.replace(audit.claim, direction=direction))

    def _split(self, name: str, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(choosing, counting) parts: the same trials by number for all arrays of one length, so that what chooses is
        never counted where arrays share trials, or have the same randomness in trials of one number."""
        number = round(self.share * len(scores))
        if not 0 < number < len(scores):
            raise ValueError(
                f"`{name}` must hold more trials, got {len(scores)}: share={self.share} leaves none to choose or none "
                "to count; or use threshold=SimultaneousThreshold()"
            )
        order = kernels.generator(self.seed, kernels.Stream.SCORE_SPLIT).permutation(len(scores))
        return scores[order[:number]], scores[order[number:]]


class _Plan(NamedTuple):
    """What the choosing trials chose, how much they promise, and the trials left to count."""

    promised: float
    threshold: float
    inside: np.ndarray
    outside: np.ndarray
    claim: RefutableClaim

    def counted(self) -> EpsilonLowerBound:
        sides = (self.inside, self.outside)
        hits = [int((scores >= self.threshold).sum()) for scores in sides]
        return from_counts((hits[0], hits[1]), (len(self.inside), len(self.outside)), self.claim)


HALVES = SplitThreshold()


def _exceed(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """How many scores are at least each threshold."""
    return np.asarray(len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left"))


def _choose(
    inside: np.ndarray, outside: np.ndarray, counting: tuple[int, int], claim: RefutableClaim
) -> tuple[Direction, float, float]:
    """The direction and threshold that would prove most if the counting trials fell like these, and how much."""
    side = claim.direction
    thresholds = np.unique(np.concatenate([inside, outside]))
    shares = [
        np.rint(_exceed(scores, thresholds) / len(scores) * n).astype(int)
        for scores, n in zip((inside, outside), counting, strict=True)
    ]
    limits = [clopper_pearson(hits, n, confidence=claim.confidence) for hits, n in zip(shares, counting, strict=True)]
    best: tuple[Direction, float, float] = ("in" if side == "both" else side, float(thresholds[-1]), -1.0)
    ways: tuple[tuple[Direction, Any], ...] = (("in", limits), ("out", limits[::-1]))
    for name, ((low, _), (_, high)) in ways:
        if side in (name, "both"):
            proved = _proved(np.asarray(low), np.asarray(high), claim)
            at = int(proved.argmax())
            if proved[at] > best[2]:
                best = (name, _between(thresholds, at), float(proved[at]))
    return best


def _between(thresholds: np.ndarray, at: int) -> float:
    """Half-way down to the next lower score: the same choosing trials exceed it, and a gap is split evenly."""
    here = float(thresholds[at])
    below = float(thresholds[at - 1]) if at else here
    return 0.5 * here + 0.5 * below if np.isfinite(here) and np.isfinite(below) else here


def _proved(low: np.ndarray, high: np.ndarray, claim: RefutableClaim) -> np.ndarray:
    """What the event or its complement proves, for limits of the likelier and the less likely side."""
    return np.asarray(np.maximum(claim.proved_each(low, high), claim.proved_each(1 - high, 1 - low)))
