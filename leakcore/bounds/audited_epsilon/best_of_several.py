"""What the best of several audits proves: attacks, or numbers of poisoned rows, one of them reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from leakcore._base import validate
from leakcore._base.validate import asks_adjacency
from leakcore.bounds.audited_epsilon.hypothesis import PRIVATE, Hypothesis, RefutableClaim
from leakcore.bounds.audited_epsilon.threshold import HALVES, EpsilonFromScores, ScoredAudit, Threshold


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonBest(EpsilonFromScores):
    """A lower bound on ε from the best of several audits, as `epsilon_lower_bound_best` returns it.

    Attributes:
        chosen: name of the audit that is reported.
        considered: names of all audits.
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

    The maximum of four bounds at 99% does not hold at 99%, although papers report the best of k = 1, 2, 4, 8 poisoned
    rows (Jagielski, Ullman and Oprea 2020). Two ways hold: a `SplitThreshold`, by which a random share of each audit's
    trials chooses audit and threshold, and the others, of that one audit, are counted; and a `SimultaneousThreshold`,
    which takes the largest of m bounds, each at the share 1/m of the error (docs/explanation/bounds.md).
    Choose one before you look.

    Args:
        audits: name → (scores_in, scores_out, k): scores as in `epsilon_lower_bound_from_scores` and the number of rows
            in which that audit's datasets differ. Audits may share trials, with the same number in each: arrays of one
            length are split alike, so no trial both chooses and is counted.
        adjacency: of all the audits, as in `epsilon_lower_bound`.
        threshold: a `SplitThreshold` or a `SimultaneousThreshold`.
        confidence: as in `epsilon_lower_bound`.
        delta: as in `epsilon_lower_bound`.
        hypothesis: as in `epsilon_lower_bound`.

    Returns:
        `EpsilonBest` of kind "lower".

    Raises:
        ValueError: for a value that is not allowed, an empty `audits` among them; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic given the scores and the seed of the split.

    Example:
        >>> import numpy as np
        >>> from leakcore import bounds
        >>> audits = {f"k={k}": (np.arange(500) + 100 * k, np.arange(500), k) for k in (1, 2, 4)}
        >>> best = bounds.epsilon_lower_bound_best(audits, adjacency="add-remove")
        >>> best.chosen, best.considered
        ('k=1', ('k=1', 'k=2', 'k=4'))
    """
    if not isinstance(audits, Mapping) or not audits:
        raise ValueError("`audits` must be a mapping of at least one name to (scores_in, scores_out, k)")
    validate.instance(Threshold, threshold=threshold)
    scored = []
    for name, (inside, outside, k) in audits.items():
        claim = RefutableClaim.parse(confidence, delta, k, adjacency, hypothesis)
        sides = {f"audits[{name!r}] scores_in": inside, f"audits[{name!r}] scores_out": outside}
        scored.append(ScoredAudit.parse(claim, **sides))
    names = tuple(map(str, audits))
    best, proof = threshold.prove_best(scored)
    fields = {f.name: getattr(proof, f.name) for f in dataclasses.fields(proof)}
    return EpsilonBest(**fields, chosen=names[best], considered=names)
