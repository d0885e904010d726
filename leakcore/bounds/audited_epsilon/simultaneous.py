"""All trials choose the threshold and all are counted: tests of ranks that were fixed beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.results import Assumptions
from leakcore._base.score_arrays import ascending
from leakcore.bounds.audited_epsilon.hypothesis import ATTACKER, RefutableClaim
from leakcore.bounds.audited_epsilon.rank_scores import SIMULATION_ERROR, RankScores
from leakcore.bounds.audited_epsilon.ranks import Ranks, refuted
from leakcore.bounds.audited_epsilon.scaled_mechanism import largest_refuted
from leakcore.bounds.audited_epsilon.threshold import EpsilonFromScores, ScoredAudit, Threshold


@dataclasses.dataclass(frozen=True)
class SimultaneousThreshold(Threshold):
    """All trials choose and all are counted, by tests of ranks that were fixed before the trials.

    A test asks whether so many scores of the likelier side lie above a certain rank of the other side. Under every
    mechanism with a trade-off curve that is at most as likely as for scores that attain the curve, which is one
    integral: no limits of two probabilities that each take a part of the error (docs/explanation/bounds.md). The error
    is shared by ranks in both tails and in the middle, by weights that depend on the family; a hypothesis of direction
    "both" splits it over both. With a mechanism as family one test has the whole error: a sum of rank scores, which
    the claimed curve weighs. Each of m audits gets the share 1/m of the error, and the largest bound is taken.

    Args:
        seed: of the order of equal scores, and of simulations. A random order makes them a test as good as any other.

    Raises:
        ValueError: for a seed out of range.
        TypeError: for one that is not an integer.

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
        """See `Threshold`."""
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
            kind="lower",
            confidence=claim.confidence,
            interval=None,
            method="exact tests of pairs of ranks in both tails and the middle, which share the error",
            assumptions=Assumptions(
                adjacency=claim.adjacency,
                attacker=ATTACKER,
                notes=(
                    "the threshold was chosen on the counted trials; the tests of all ranks hold at once",
                    "the statistic, k" + ("" if claim.direction == "both" else ", direction") + " were fixed before "
                    "the trials",
                    *claim.notes(),
                ),
            ),
            provenance=claim.provenance + "; Nelson (1963) for precedence tests, Dong, Roth and Su (2022) for curves",
            seed=self.seed,
            hits=(hits[0], hits[1]),
            trials=(len(inside), len(outside)),
            limits=(),
            delta=claim.delta,
            k=claim.k,
            direction=claim.direction,
            proved_by=where,
            family=claim.family,
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
            kind="lower",
            confidence=claim.confidence,
            interval=None,
            method="one test of the order of all scores, by rank scores weighed by the claimed curve",
            assumptions=Assumptions(
                adjacency=claim.adjacency,
                attacker=ATTACKER,
                notes=(
                    f"claim and counts of scores fixed the test; simulating its law costs {SIMULATION_ERROR:.0e}",
                    "the statistic and k were fixed before the trials",
                    *claim.notes(),
                ),
            ),
            provenance=claim.provenance + "; Nelson (1963) for precedence tests",
            seed=self.seed,
            hits=(0, 0),
            trials=(int(members.sum()), int((~members).sum())),
            limits=(),
            delta=claim.delta,
            k=claim.k,
            direction=claim.direction,
            proved_by="the order of all scores" if scale > 0 else None,
            family=claim.family,
            noise_multiplier=mechanism.noise_multiplier(scale),
            p_value=min(1.0, test.chance(claimed) + SIMULATION_ERROR),
            threshold=None,
            select="simultaneous",
        )

    def prove_best(self, audits: Sequence[ScoredAudit]) -> tuple[int, EpsilonFromScores]:
        """See `Threshold`."""
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
