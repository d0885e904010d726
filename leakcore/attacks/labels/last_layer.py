"""Labels from one aggregated gradient of the last layer (Algorithm 3)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore.attacks.labels.conditions import Clipping, Noise, Precision, read_precision
from leakcore.attacks.labels.knowledge import known_of_last_layer
from leakcore.attacks.labels.observation import observe, read_observation
from leakcore.attacks.labels.recover import recover
from leakcore.attacks.labels.result import LabelRecovery


def last_layer(
    knowledge: Any,
    observation: Any,
    *,
    known_probs: Any = None,
    clipping: Clipping | None = None,
    noise: Noise | None = None,
    precision: Precision | None = None,
) -> LabelRecovery:
    """Labels of a batch from one aggregated gradient of the last layer.

    Yuan, Xue, Wang and Shen (2022), Algorithm 3: e = p − y solves dL/dW = (1/N) Xᵀe, X the inputs of the last layer,
    and y = 1{e < 0}. Clipping each sample's gradient (DP-SGD) scales e by a positive factor and so keeps every sign.
    With K logits and softmax cross-entropy each class's weight vector gives such a system with the same X, and the
    label is the class whose residual is negative.

    Args:
        knowledge: what the attacker knows: a `KnownModel`, or X itself, an array (N, d) in the model's order of units;
            (S, N, d), or a `KnownModel` of S models, for S observed steps of the same batch. Without known_probs each
            step is solved by itself and the labels are joined; with them all steps share one y and are stacked, which
            multiplies the rank.
        observation: what it sees: a `GradientObservation` or a `WeightDifference` of shape (d,), (1, d), or (K, d) for
            K logits, with the steps in front where there are several; an array alone is a mean gradient.
        known_probs: (N,) or (N, K), with the steps in front where there are several: the model's p for each row (a
            white-box attacker), or True to compute them from a `KnownModel`. Then each residual is p or p − 1, and
            least squares with y in [0, 1] recovers labels beyond the rank of the system; residuals are those of the
            relaxed solution. A label counts as determined only with a certificate that no other point of the box fits.
        clipping: with known_probs and one logit, how each sample's gradient was clipped.
        noise: None: not known; labels are then named by sign and the result is an estimate.
        precision: of the arithmetic, where the arrays do not tell.

    Returns:
        `LabelRecovery`. A row is identifiable when its residual is a linear function of the gradient: not for zero
        rows, rows that are combinations of others, or when N > d. It is determined when, in addition, |residual|
        exceeds `tolerance`: with u the unit roundoff, the gradient's rounding is at most γ(1/N)Σ_r|X_r||e_r|,
        γ = (N + 8)u/(1 − (N + 8)u), and moves residual r by at most N√v_r times its norm. A saturated model, whose p
        rounds to y, therefore gives −1 and no guess.

    Raises:
        ValueError, TypeError: that names the argument, for bad shapes, values that are not finite, or an empty batch.

    Guarantees:
        A gradient that no residuals make (a stale model, another mode or other inputs, a sum said to be a mean) leaves
        a misfit beyond rounding and noise, or residuals beyond [-1, 1]: then nothing is determined, and the result is
        an estimate whose notes say so. Deterministic, for a machine and its number of BLAS threads; float64 on the CPU
        whatever the inputs' dtype; returns NumPy arrays.
    """
    arithmetic = read_precision(precision)
    known = known_of_last_layer(knowledge, known_probs)
    observed = observe(
        read_observation(observation),
        known.rows.shape[2],
        known_weights=known.weights,
        stored_roundoff=arithmetic.stored(known.roundoff),
        steps=known.steps,
    )
    if observed.with_bias:
        ones = np.ones((*known.rows.shape[:2], 1))
        known = dataclasses.replace(known, rows=np.concatenate([known.rows, ones], axis=2))
    return recover(
        known,
        observed,
        clipping=clipping,
        noise=noise,
        precision=arithmetic,
        part="the last layer's weights" + (" and bias" if observed.with_bias else ""),
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 3",
    )
