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

    e = p − y solves dL/dW = (1/N) Xᵀe, with X the layer's inputs, and y = 1{e < 0} (Yuan et al. 2022, Algorithm 3).
    With K logits each class gives such a system, and the label is the class whose residual is negative.

    Args:
        knowledge: a `KnownModel`, or X itself, (N, d); for S observed steps of the same batch (S, N, d), or S models.
        observation: a `GradientObservation`, a `WeightDifference`, or a mean gradient; (d,), (1, d), or (K, d) for K
            logits, after an axis of steps where there are several.
        known_probs: the model's p, (N,) or (N, K), after an axis of steps; True computes it from a `KnownModel`. All
            steps are then solved together, and labels beyond the system's rank can be certified.
        clipping: how each sample's gradient was clipped; only with known_probs and one logit.
        noise: None: unknown; labels are then an estimate, by sign.
        precision: of the arithmetic, where the arrays do not show it.

    Returns:
        `LabelRecovery`. A row is identifiable when its residual is a linear function of the gradient, and determined
        when also |residual| > tolerance. Any other row gets −1.

    Raises:
        ValueError, TypeError: for bad shapes, values that are not finite and empty batches.

    Guarantees:
        Kind "lower" proves the determined labels. Where no residuals explain the gradient, nothing is determined.
        Float64 on the CPU, deterministic for a machine and its BLAS threads. More: docs/explanation/attacks.md.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> x = np.random.default_rng(0).standard_normal((6, 16))  # inputs of the last layer
        >>> y = np.array([0, 1, 1, 0, 1, 0])
        >>> gradient = x.T @ (0.5 - y) / 6  # the mean over the batch, of a model with p = 0.5
        >>> recovery = labels.last_layer(x, gradient, noise=labels.Noise(0))
        >>> recovery.labels.tolist()
        [0, 1, 1, 0, 1, 0]
        >>> recovery.value, recovery.kind  # all labels, proved
        (1.0, 'lower')
    """
    arithmetic = read_precision(precision)
    known = known_of_last_layer(knowledge, known_probs)
    observed = observe(
        read_observation(observation),
        known.rows.shape[2],
        known_weights=known.weights,
        weights_roundoff=arithmetic.stored(known.roundoff),
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
