"""Labels from the gradient of the layer before the last (Algorithm 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate
from leakcore.attacks.labels.attacker_sees import read_seen
from leakcore.attacks.labels.result import LabelRecovery
from leakcore.attacks.labels.solving.forward_rounding import hidden_linear
from leakcore.attacks.labels.solving.linear_system import conditions, stored_roundoff
from leakcore.attacks.labels.solving.sign_alignment import (
    Neuron,
    chosen,
    prior_below_half,
    recover_up_to_sign,
)

if TYPE_CHECKING:
    import torch


def second_last_layer(
    activations: Any = None,
    derivatives: Any = None,
    *,
    positive_ratio: float,
    neurons: int | Sequence[int] | None = None,
    model: torch.nn.Module | None = None,
    inputs: Any = None,
    gradient: Any = None,
    bias_gradient: Any = None,
    weight_difference: Any = None,
    bias_difference: Any = None,
    lr: float | None = None,
    optimizer: Any = None,
    weights: Any = None,
    noise_std: float | None = None,
    confidence: float | None = None,
    unit_roundoff: float | None = None,
    rcond: float | None = None,
) -> LabelRecovery:
    """Binary labels of a batch from the aggregated gradient of the layer before the last, whose successor is hidden.

    Yuan, Xue, Wang and Shen (2022), Algorithm 4 and equation 4: for the weights W into neuron J of the last hidden
    layer, dZ_r/dW = W_J^L·U_J[r]·X[r], X[r] the inputs of that layer and U_J[r] = A′(Z_J[r]) the derivative of its
    activation. The output weight W_J^L is not known, so the solution is e up to one factor per neuron, whose sign the
    prior on the ratio of positives resolves. With ReLU the rows with U_J[r] = 0 are undetermined; each neuron
    determines others, so several are joined: aligned by the rows they share, then resolved together.

    What the attacker knows, one of:

    activations, derivatives: (N, d), the inputs of the layer, and (N, p), U of its p neurons ((N,) for one).
    model, inputs: a torch module with an elementwise activation between its last two linear layers, and the batch's
        inputs. The last layer's weights are not used. Where rounding may put a neuron on either side of a kink, it is
        taken as active: a residual that is 0 instead of e is not determined, but never wrong.

    positive_ratio: the prior, the share of label 1 in the batch, in (0, 1). Only whether it is below or above 0.5
        matters; where that is wrong, every determined label is the opposite one. Nothing is determined where it does
        not decide: as many determined rows of either label, or so many residuals lost in rounding (a trained model,
        one neuron) that either sign may fit it.
    neurons: indices of the neurons to use; None: all.

    What the attacker sees, one of:

    gradient: (p, d) ((d,) for one neuron) aggregated dL/dW, of all p neurons whichever are used. bias_gradient: (p,).
    weight_difference, bias_difference, lr, optimizer, weights: as in `last_layer`, of that shape.

    noise_std, confidence, unit_roundoff, rcond: as in `last_layer`; noise_std is in the units of what is seen, and a
    confidence holds for all neurons together. Whether the gradient was averaged or summed does not matter.

    Residuals are those of the neuron that determines the row most clearly: |W_J^L|·(p − y) if the gradient was averaged
    over the batch. The result is "lower"
    only if, besides, the prior decides the sign: the opposite one would make the rarer class at least half of the
    batch. It is "lower" under the assumption that the prior is right, which `assumptions` states.

    Raises ValueError or TypeError that names the argument, also for positive_ratio=0.5, neuron indices out of range and
    layers that are not elementwise. Deterministic, for a machine and its number of BLAS threads; float64 on the CPU;
    returns NumPy arrays.
    """
    if weights is not None and weight_difference is None:
        raise ValueError("weights: only with weight_difference=")
    prior_below_half(positive_ratio)
    held = None
    if (activations is None) == (model is None):
        raise ValueError("activations, model: give exactly one of them")
    if model is not None:
        if inputs is None:
            raise ValueError("inputs: must be given with model=")
        if derivatives is not None:
            raise ValueError("derivatives: only with activations=")
        layer = hidden_linear(model, inputs)
        rows, slope, roundoff = layer.activations, layer.slope, layer.roundoff
        row_error, slope_error = layer.activation_error, layer.slope_error
        bias = np.zeros(len(layer.weight)) if layer.bias is None else layer.bias
        held = np.c_[layer.weight, bias][None]
        knows = "the model up to its last layer and the batch's inputs"
    else:
        if inputs is not None:
            raise ValueError("inputs: only with model=")
        if derivatives is None:
            raise ValueError("derivatives: must be given with activations=")
        rows, roundoff = validate.host_array(activations=activations)
        slope, fine = validate.host_array(derivatives=derivatives)
        roundoff = max(roundoff, fine)
        slope = slope[:, None] if slope.ndim == 1 else slope
        row_error, slope_error = np.zeros(rows.shape[:1]), np.zeros(slope.shape)
        knows = "the inputs of the last hidden layer and its activation's derivatives for the batch"
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"activations of shape {rows.shape}: must be (N, d) with at least one row and one column")
    if slope.ndim != 2 or len(slope) != len(rows) or 0 in slope.shape:
        raise ValueError(f"derivatives of shape {slope.shape}: must be ({len(rows)}, p), a row per row of activations")
    seen = read_seen(
        rows.shape[1],
        gradient=gradient,
        bias_gradient=bias_gradient,
        weight_difference=weight_difference,
        bias_difference=bias_difference,
        lr=lr,
        optimizer=optimizer,
        weights=weights,
        known_weights=held if held is not None and held.shape[1] == slope.shape[1] else None,
        unit_roundoff=stored_roundoff(roundoff, unit_roundoff),
    )
    count = slope.shape[1]
    if seen.values.shape[1] != count:
        raise ValueError(f"gradient: of {seen.values.shape[1]} neurons, but the layer has {count}")
    n = len(rows)
    if seen.with_bias:
        rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    how = conditions(
        max(rows.shape),
        roundoff=max(roundoff, seen.roundoff),
        divisor=n,
        noise_std=noise_std,
        confidence=confidence,
        unit_roundoff=unit_roundoff,
        rcond=rcond,
    )
    lengths = np.linalg.norm(rows, axis=1)
    used = chosen(neurons, count)
    return recover_up_to_sign(
        [
            Neuron(
                rows=rows * slope[:, [j]],
                total=n * seen.values[0, j],
                stored=None if seen.stored is None else n * seen.stored[0, j],
                forward=np.abs(slope[:, j]) * row_error + slope_error[:, j] * lengths,
            )
            for j in used
        ],
        how,
        positive_ratio=positive_ratio,
        attacker=f"knows {knows}; sees {seen.what} of the layer before the last, of {len(used)} neurons",
        method="signs of the minimum-norm solutions of the neurons' linear systems, up to a sign that the prior fixes",
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 4",
    )
