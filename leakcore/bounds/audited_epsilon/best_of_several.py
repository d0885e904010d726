"""What the best of several audits proves: attacks, or numbers of poisoned rows, of which one is reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from leakcore._base import validate
from leakcore._base.adjacency import asks_adjacency
from leakcore.bounds.audited_epsilon.hypothesis import PRIVATE, Hypothesis, RefutableClaim
from leakcore.bounds.audited_epsilon.threshold import HALVES, EpsilonFromScores, ScoredAudit, Threshold


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonBest(EpsilonFromScores):
    """An `EpsilonFromScores` of one out of several audits.

    chosen: its name. considered: all names.
    """

    chosen: str
    considered: tuple[str, ...]


@asks_adjacency
def epsilon_lower_bound_best(
    audits: Mapping[str, tuple[Any, Any, int]],
    *,
    adjacency: str,
    threshold: Threshold = HALVES,
    confidence: float = 0.99,
    delta: float = 0.0,
    hypothesis: Hypothesis = PRIVATE,
) -> EpsilonBest:
    """Lower bound on ε from the best of several audits of one mechanism, valid although it was picked.

    Jagielski, Ullman and Oprea (2020) report the best of k = 1, 2, 4, 8 poisoned rows. The maximum of four bounds at
    99% is no bound at 99%. Two valid ways:

    - `SplitThreshold`: a random share of the trials of each audit chooses audit and threshold; the others, of that one
      audit, are counted.
    - `SimultaneousThreshold`: each audit's bound (limits simultaneous over all thresholds, on all its trials) at the
      share 1/m of the error, and the largest of the m is taken.

    Which is tighter depends on the counts, as in `epsilon_lower_bound_from_scores`: perfect scores of 1,000 trials and
    four audits prove 4.54 after a split in halves, however many audits there are, and 4.51 by the correction; with the
    threshold fixed beforehand four audits of 500 trials cost 4.54 → 4.31. Choose one before you look.

    Args:
        audits: name → (scores_in, scores_out, k): the scores as in `epsilon_lower_bound_from_scores` and the number of
            rows in which that audit's data sets differ. Audits may share trials, with the same number in each: arrays
            of one length are split alike, so no trial both chooses and is counted.
        adjacency: of all the audits, without a default, as in `epsilon_lower_bound`; so are confidence, delta and
            hypothesis.
        threshold: a `SplitThreshold` or a `SimultaneousThreshold`.

    Returns:
        An `EpsilonBest`: kind "lower". Deterministic given the scores and the seed of the split.

    Raises:
        ValueError, TypeError: naming the argument; an empty `audits` is an error.
    """
    if not isinstance(audits, Mapping) or not audits:
        raise ValueError("audits: must be a mapping of at least one name to (scores_in, scores_out, k)")
    validate.instance(Threshold, threshold=threshold)
    scored = []
    for name, (inside, outside, k) in audits.items():
        claim = RefutableClaim.parse(confidence, delta, k, adjacency, hypothesis)
        sides = {f"audits[{name!r}] scores_in": inside, f"audits[{name!r}] scores_out": outside}
        scored.append(ScoredAudit.parse(claim, **sides))
    names = tuple(map(str, audits))
    best, found = threshold.prove_best(scored)
    fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    return EpsilonBest(**fields, chosen=names[best], considered=names)
