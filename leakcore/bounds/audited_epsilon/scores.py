"""What an audit by scores proves: the threshold is chosen for the user, in a way that keeps the promise."""

from __future__ import annotations

from typing import Any

from leakcore._base import validate
from leakcore._base.validate import asks_adjacency
from leakcore.bounds.audited_epsilon.hypothesis import PRIVATE, Hypothesis, RefutableClaim
from leakcore.bounds.audited_epsilon.threshold import HALVES, EpsilonFromScores, ScoredAudit, Threshold


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
        scores_out: (n_out,) likewise, without them; n_in may differ from n_out.
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
