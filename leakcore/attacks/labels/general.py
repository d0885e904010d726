"""Labels from one aggregated gradient of any weights (Algorithm 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from leakcore.attacks.labels.conditions import Clipping, Noise, Precision, read_precision
from leakcore.attacks.labels.knowledge import KnownModel, known_of_arrays, known_of_jacobian
from leakcore.attacks.labels.observation import observe, read_observation
from leakcore.attacks.labels.recover import recover
from leakcore.attacks.labels.result import LabelRecovery
from leakcore.attacks.labels.solving.logit_jacobian import logit_jacobian


def general(
    knowledge: Any,
    observation: Any,
    *,
    parameters: str | Sequence[str] | None = None,
    known_probs: Any = None,
    clipping: Clipping | None = None,
    noise: Noise | None = None,
    precision: Precision | None = None,
) -> LabelRecovery:
    """Labels of a batch from the aggregated gradient of any weights.

    e = p − y solves dL/dW = (1/N) C e, where column r of C is the derivative dZ_r/dW of the logit, and y = 1{e < 0}
    (Yuan, Xue, Wang and Shen 2022, Algorithm 1 and equation 1). With K logits and softmax cross-entropy every row has K
    residuals that sum to 0. That makes N·(K − 1) unknowns, so at least as many weights are needed, and the label is the
    class whose residual is negative.

    Args:
        knowledge: a `KnownModel`, whose derivatives (N·K times the size of the parameters) are computed by reverse
            mode; or the array Cᵀ, (N, d) with row r = dZ_r/dW, or (S, N, d) for S observed steps of the same batch. An
            array also serves K logits whose weight vectors share these rows.
        observation: a `GradientObservation`, a `WeightDifference`, or a mean gradient, (d,) or (K, d). With a
            `KnownModel` one array of the parameter's shape, a sequence of one per parameter, or a mapping by name.
        parameters: with a `KnownModel`: names of the observed parameters (`model.named_parameters()`), in the order in
            which their gradients are joined. None: all.
        known_probs: as in `last_layer`.
        clipping: as in `last_layer`.
        noise: as in `last_layer`.
        precision: as in `last_layer`.

    Returns:
        `LabelRecovery`; identifiable and determined mean what they mean in `last_layer`.

    Raises:
        ValueError, TypeError: as `last_layer`, and for an observation with a separate bias (name it in `parameters`).

    Guarantees:
        As `last_layer`.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> jacobian = np.random.default_rng(0).standard_normal((4, 10))  # dZ_r/dW, one row per sample
        >>> y = np.array([1, 0, 0, 1])
        >>> gradient = jacobian.T @ (0.5 - y) / 4
        >>> recovery = labels.general(jacobian, gradient, noise=labels.Noise(0))
        >>> recovery.labels.tolist(), recovery.kind
        ([1, 0, 0, 1], 'lower')
    """
    arithmetic = read_precision(precision)
    observation = read_observation(
        observation, without=("bias_gradient", "bias_difference"), why="only for one layer; name the bias in parameters"
    )
    coarsest = 0.0
    if isinstance(knowledge, KnownModel):
        derivatives = logit_jacobian(knowledge.the_one(), knowledge.inputs, parameters)
        known = known_of_jacobian(derivatives, known_probs)
        arrays = {n: getattr(observation, n, None) for n in ("gradient", "weight_difference", "weights")}
        if arrays["gradient"] is not None:
            coarsest = derivatives.roundoff_of(arrays["gradient"])
        joined = {n: derivatives.join(n, array) for n, array in arrays.items() if array is not None}
        observation = dataclasses.replace(observation, **joined)
    else:
        if parameters is not None:
            raise ValueError("`parameters` is allowed only with labels.KnownModel")
        known = known_of_arrays(known_probs, jacobian=knowledge)
    observed = observe(
        observation,
        known.rows.shape[2],
        known_weights=known.weights,
        weights_roundoff=arithmetic.stored(known.roundoff),
        steps=known.steps,
    )
    observed = dataclasses.replace(observed, roundoff=max(observed.roundoff, coarsest))
    return recover(
        known,
        observed,
        clipping=clipping,
        noise=noise,
        precision=arithmetic,
        part="some weights",
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 1",
    )
