"""The prior-aware attack: which of n candidates was the training point, from their scores in every step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import _validate as check


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PriorAware:
    """The attacker's guesses. `...` is whatever stood in front of (steps, candidates).

    index: (...) int64, the guessed candidate; −1 where the attack is undecided.
    undecided: (...) bool, the best score is shared by two or more candidates.
    scores: (..., candidates) float64, each candidate's score in units of C²: about T for a clipped target, 0 for an
        orthogonal candidate.
    method: "sum" (Algorithm 2) or "top" (Algorithm 3). top: how many steps were summed.
    """

    index: np.ndarray
    undecided: np.ndarray
    scores: np.ndarray
    method: str
    top: int


def prior_aware(dots: Any, *, max_grad_norm: float, sample_rate: float = 1.0, method: str = "auto") -> PriorAware:
    """Guess argmax_i Σ_t s_{t,i} (Hayes et al. 2023, Algorithm 2), or with the qT largest s_{t,i} of each i (Algorithm
    3).

    With s_{t,i} = ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩, as `dpsgd.Ensemble.run` carries them along (`dots`) or `clip_scores`
    computes them; ḡ_t is the released gradient less the clipped gradients of the known rows in the batch. For a
    uniform prior on the candidates. The scores are divided by C², so that the target's has mean one per step it was
    sampled in when its gradient is clipped (the normalisation the text recommends).

    Args:
        dots: (..., steps, candidates) real, finite; runs and the like in front. Summed in float64.
        max_grad_norm: C > 0. sample_rate: q in (0, 1].
        method: "sum" is Algorithm 2, right for full batches. "top" is Algorithm 3, which sums each candidate's largest
            max{1, ⌊qT + ½⌋} values, since the target is in about qT batches. "auto": "sum" if q = 1, else "top".

    Returns a frozen `PriorAware`. No steps: all scores are zero.

    Ties. A best score that two candidates share exactly is no guess: `index` is −1 and `undecided` True, so that equal
    scores (all zero, say: nothing observed, or identical candidates) never favour the candidate that happens to stand
    first. Equal columns of `dots` give exactly equal scores. A single candidate is always guessed.

    Deterministic. Raises ValueError or TypeError that names argument, value and what is allowed.
    """
    norm = check.positive(max_grad_norm=max_grad_norm)
    rate = check.probability(sample_rate=sample_rate)
    if rate == 0:
        raise ValueError("sample_rate=0: must be in (0, 1]")
    which = check.one_of("auto", "sum", "top", method=method)
    values = np.asarray(dots)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"dots.dtype={values.dtype}: must be a real floating or integer type")
    if values.ndim < 2 or values.shape[-1] == 0:
        raise ValueError(f"dots.shape={values.shape}: must be (..., steps, candidates) with at least one candidate")
    if not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"dots{list(where)}={values[where]}: must be finite")
    if which == "auto":
        which = "sum" if rate == 1 else "top"
    steps = values.shape[-2]
    top = steps if which == "sum" else min(steps, max(1, math.floor(rate * steps + 0.5)))
    chosen = values.astype(np.float64)
    if top < steps:
        # Sorted, so that the order of summation, and with it the rounding, depends on the values alone.
        chosen = np.sort(chosen, axis=-2)[..., steps - top :, :]
    scores = chosen.sum(axis=-2) / norm**2
    undecided = (scores == scores.max(axis=-1, keepdims=True)).sum(axis=-1) > 1
    index = np.where(undecided, -1, scores.argmax(axis=-1))
    return PriorAware(
        index=index.astype(np.int64), undecided=np.asarray(undecided), scores=scores, method=which, top=top
    )
