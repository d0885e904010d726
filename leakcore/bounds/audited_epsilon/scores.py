"""What an audit by scores proves: the threshold is chosen for the user, in a way that keeps the promise."""

from __future__ import annotations

from typing import Any

from leakcore._base import validate
from leakcore._base.adjacency import asks_adjacency
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
    """Lower bound on ε from a real-valued test statistic, one score per trial, on two datasets that differ in k rows.

    The event is {score ≥ threshold}. A threshold chosen to look best on the trials that are then counted makes the
    bound false (published tools that do so report ε > 0 for a mechanism that leaks nothing in 27–99% of cases). Two
    valid ways:

    - `SplitThreshold`: a random share of the trials of each dataset chooses the threshold; the others are counted by
      `epsilon_lower_bound`.
    - `SimultaneousThreshold`: all trials choose and all are counted, with limits that hold at every threshold at once.

    Which is tighter depends on the counts. In the far tail, where strong audits are decided, a threshold that holds for
    all costs less than half of the trials: perfect scores of 500 trials per dataset prove 3.99 simultaneously and 3.84
    after a split in halves, at 99%. In the middle the split's optimum is flat and it wins. Choose one before you look.

    Args:
        scores_in: (n_in,) real numbers, one for each trial with the k rows; larger means likelier "in". Infinities are
            allowed, NaN is not.
        scores_out: (n_out,) likewise, without them. n_in may differ from n_out.
        adjacency: without a default, as in `epsilon_lower_bound`; so are confidence, delta and k.
        threshold: a `SplitThreshold`, which needs at least two trials per dataset, or a `SimultaneousThreshold`.
        hypothesis: as there. Direction "in": the event is likelier with the k rows (larger scores); "both": not fixed.

    Returns:
        An `EpsilonFromScores`: kind "lower". Deterministic given the scores and the seed of the split.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    validate.instance(Threshold, threshold=threshold)
    claim = RefutableClaim.parse(confidence, delta, k, adjacency, hypothesis)
    return threshold.prove(ScoredAudit.parse(claim, scores_in=scores_in, scores_out=scores_out))
