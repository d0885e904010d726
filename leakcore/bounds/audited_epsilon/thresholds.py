"""How the threshold of an audit by scores is chosen so that the bound holds although it was chosen."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.score_arrays import ascending, require_no_labels
from leakcore.bounds.audited_epsilon.counts import EpsilonLowerBound, from_counts
from leakcore.bounds.audited_epsilon.families import Direction, RefutableClaim, largest_refuted
from leakcore.bounds.audited_epsilon.ranks import SIMULATION_ERROR, Ranks, RankScores, refuted
from leakcore.numerics import clopper_pearson


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonFromScores(EpsilonLowerBound):
    """A lower bound on ε whose event is {score ≥ threshold}, as `epsilon_lower_bound_from_scores` returns it.

    `trials` counts those that were counted (with the k rows, without them), not those that chose the threshold.

    Attributes:
        threshold: the event's threshold; None where every threshold proves nothing.
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
    """A valid way to choose the threshold, and which of several audits is reported."""

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
        seed: seed of the random split. With as many scores in as out, trials of one number fall on one side of it, so
            trial i of both may share its randomness.

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
        return self._counted(self._plan(audit))

    def prove_best(self, audits: Sequence[ScoredAudit]) -> tuple[int, EpsilonFromScores]:
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


def _choose(
    inside: np.ndarray, outside: np.ndarray, counting: tuple[int, int], claim: RefutableClaim
) -> tuple[Direction, float, float]:
    """The direction and threshold that would prove most if the counting trials fell like these, and how much."""
    side = claim.direction
    thresholds = np.unique(np.concatenate([inside, outside]))
    shares = [
        np.rint((len(scores) - np.searchsorted(np.sort(scores), thresholds)) / len(scores) * n).astype(int)
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


@dataclasses.dataclass(frozen=True)
class SimultaneousThreshold(Threshold):
    """All trials choose and all are counted, by tests of ranks that were fixed before the trials.

    A test asks whether so many scores of the likelier side lie above a certain rank of the other side
    (docs/explanation/bounds.md). Ranks in both tails and in the middle share the error, and a hypothesis of direction
    "both" splits it over both. With a mechanism as family one test has the whole error: a sum of rank scores, which
    the claimed curve weighs. Each of m audits gets the share 1/m of the error, and the largest bound is taken.

    Args:
        seed: seed of the random order of equal scores, and of simulations.

    Example:
        >>> import numpy as np
        >>> from leakcore import bounds
        >>> scores = {"scores_in": np.ones(500), "scores_out": np.zeros(500), "adjacency": "add-remove"}  # no error
        >>> every = bounds.epsilon_lower_bound_from_scores(threshold=bounds.SimultaneousThreshold(), **scores)
        >>> half = bounds.epsilon_lower_bound_from_scores(threshold=bounds.SplitThreshold(), **scores)
        >>> f"{every.value:.2f} and {half.value:.2f}"
        '5.21 and 3.84'
    """

    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", validate.seed(seed=self.seed))

    def prove(self, audit: ScoredAudit) -> EpsilonFromScores:
        inside, outside = audit.sides.values()
        claim = audit.claim
        scores, members = self._ordered(inside, outside)
        if claim.mechanism is not None:
            return self._by_rank_scores(members, claim)
        ways = [way for way in ("in", "out") if claim.direction in (way, "both")]
        error = (1 - claim.confidence) / len(ways)
        best, where, threshold = 0.0, None, None
        for way in ways:
            likelier = members if way == "in" else ~members
            proof = refuted(likelier, claim, error)
            if proof.ranks is not None and proof.parameter > best:
                best, threshold = proof.parameter, _threshold(scores, likelier, proof.ranks)
                event = "complement of the event, which is" if proof.ranks.lower else "event,"
                where = f"{event} likelier {way}"
        hits = (0, 0) if threshold is None else tuple(int((s >= threshold).sum()) for s in (inside, outside))
        return EpsilonFromScores(
            value=claim.epsilon(best),
            **claim.fields(
                "the threshold was chosen on the counted trials; the tests of all ranks hold at once",
                "the statistic, k"
                + ("" if claim.direction == "both" else ", direction")
                + " were fixed before the trials",
            ),
            method="exact tests of pairs of ranks in both tails and the middle, which share the error",
            provenance=claim.provenance + "; Nelson (1963) for precedence tests, Dong, Roth and Su (2022) for curves",
            seed=self.seed,
            hits=(hits[0], hits[1]),
            trials=(len(inside), len(outside)),
            limits=(),
            proved_by=where,
            mu=best if claim.family == "gdp" else None,
            threshold=threshold,
            select="simultaneous",
        )

    def _by_rank_scores(self, members: np.ndarray, claim: RefutableClaim) -> EpsilonFromScores:
        """What one test of the order proves, the largest scale of the claimed mechanism that it refutes."""
        mechanism = claim.mechanism
        assert mechanism is not None
        claimed = mechanism.roc(1.0)
        test = RankScores(members, claimed, self.seed)
        error = 1 - claim.confidence - SIMULATION_ERROR
        scale = largest_refuted(lambda tried: test.chance(mechanism.roc(tried)) <= error)
        return EpsilonFromScores(
            value=mechanism.epsilon(scale),
            **claim.fields(
                f"claim and counts of scores fixed the test; simulating its law costs {SIMULATION_ERROR:.0e}",
                "the statistic and k were fixed before the trials",
            ),
            method="one test of the order of all scores, by rank scores weighed by the claimed curve",
            provenance=claim.provenance + "; Nelson (1963) for precedence tests",
            seed=self.seed,
            hits=(0, 0),
            trials=(int(members.sum()), int((~members).sum())),
            limits=(),
            proved_by="the order of all scores" if scale > 0 else None,
            noise_multiplier=mechanism.noise_multiplier(scale),
            p_value=min(1.0, test.chance(claimed) + SIMULATION_ERROR),
            threshold=None,
            select="simultaneous",
        )

    def prove_best(self, audits: Sequence[ScoredAudit]) -> tuple[int, EpsilonFromScores]:
        number = len(audits)
        proofs = []
        for audit in audits:
            level = 1 - (1 - audit.claim.confidence) / number
            proofs.append(self.prove(audit._replace(claim=dataclasses.replace(audit.claim, confidence=level))))
        best = max(range(number), key=lambda i: float(proofs[i].value))
        method = f"{proofs[best].method}; the largest of {number}, each at α/{number}"
        return best, dataclasses.replace(
            proofs[best], confidence=audits[best].claim.confidence, method=method, select="correction"
        )

    def _ordered(self, inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All scores from the highest to the lowest, equal ones in random order, and which are from inside."""
        scores, members = _merged(inside, outside)
        if not ((scores[1:] == scores[:-1]) & (members[1:] != members[:-1])).any():
            return scores, members
        scores = np.concatenate([inside, outside])
        order = ascending(-scores, kernels.generator(self.seed, kernels.Stream.SCORE_TIES))
        return scores[order], order < len(inside)


def _merged(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All scores from the highest to the lowest, and which are from inside: two sorts of values, none of indices."""
    ours, theirs = np.sort(inside), np.sort(outside)
    scores, members = np.empty(len(ours) + len(theirs)), np.ones(len(ours) + len(theirs), bool)
    places = np.searchsorted(ours, theirs) + np.arange(len(theirs))
    members[places] = False
    scores[places] = theirs
    scores[members] = ours
    return scores[::-1], members[::-1]


def _threshold(scores: np.ndarray, likelier: np.ndarray, ranks: Ranks) -> float:
    """The lowest score above the event's gap."""
    if ranks.lower:
        lowest = np.flatnonzero(~likelier)[-ranks.above]
        return float(scores[lowest - 1])
    return float(scores[np.flatnonzero(likelier)[ranks.above - 1]])
