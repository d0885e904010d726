"""What audits by scores prove, one or the best of several: the threshold is chosen in a way that keeps the promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from leakcore._base import validate
from leakcore._base.validate import asks_adjacency
from leakcore.bounds.audited_epsilon.families import PRIVATE, Hypothesis, RefutableClaim
from leakcore.bounds.audited_epsilon.thresholds import HALVES, EpsilonFromScores, ScoredAudit, Threshold


@asks_adjacency
def epsilon_lower_bound_from_scores(
    scores_in: Any,
    scores_out: Any,
    *,
    adjacency: str,
    threshold: Threshold = HALVES,
    confidence: float = 0.99,
    delta: float = 0.0,
    k: int = 1,
    hypothesis: Hypothesis = PRIVATE,
) -> EpsilonFromScores:
    """Lower bound on ε from one score per trial, on two datasets that differ in k rows.

    The event is {score ≥ threshold}. A threshold chosen to look best on the trials that are then counted makes the
    bound false. Two ways hold: a `SplitThreshold`, by which a random share of the trials of each dataset chooses the
    threshold and the others are counted by `epsilon_lower_bound`; and a `SimultaneousThreshold`, by which all trials
    choose and are counted, by tests of ranks that were fixed beforehand, which prove more of all but rare leaks
    (docs/explanation/bounds.md). Choose one before you look.

    Args:
        scores_in: (n_in,) real numbers, one for each trial with the k rows; larger means likelier "in". May be
            infinite, not NaN.
        scores_out: (n_out,) real numbers, one for each trial without them; n_in may differ from n_out.
        adjacency: as in `epsilon_lower_bound`, without a default.
        threshold: a `SplitThreshold`, which needs at least two trials per dataset, or a `SimultaneousThreshold`.
        confidence: as in `epsilon_lower_bound`.
        delta: as in `epsilon_lower_bound`.
        k: as in `epsilon_lower_bound`.
        hypothesis: as in `epsilon_lower_bound`; direction "in": the event is likelier with the k rows (larger scores).

    Returns:
        `EpsilonFromScores` of kind "lower".

    Raises:
        ValueError: for a value or shape that is not allowed, labels in the place of scores among them; the text names
            the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Holds with probability `confidence` over independent trials. Deterministic given the scores and the seed of the
        split.

    Example:
        >>> import numpy as np
        >>> from leakcore import bounds
        >>> outside = np.arange(500)
        >>> proof = bounds.epsilon_lower_bound_from_scores(outside + 400, outside, adjacency="add-remove")
        >>> proof.value > 1.0, proof.trials  # half of the trials chose the threshold
        (True, (250, 250))
    """
    validate.instance(Threshold, threshold=threshold)
    claim = RefutableClaim.parse(confidence, delta, k, adjacency, hypothesis)
    return threshold.prove(ScoredAudit.parse(claim, scores_in=scores_in, scores_out=scores_out))


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
        adjacency: relation of all the audits, as in `epsilon_lower_bound`.
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
