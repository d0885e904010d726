"""Labels from the gradient of the layer before the last (Algorithm 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore.attacks.labels.conditions import Noise, Precision, read_precision
from leakcore.attacks.labels.knowledge import KnownHiddenLayer, KnownModel, known_of_hidden_layer
from leakcore.attacks.labels.observation import observe, read_observation
from leakcore.attacks.labels.result import LabelRecovery
from leakcore.attacks.labels.solving.sign_alignment import NeuronRows, chosen, prior_below_half, recover_up_to_sign


def second_last_layer(
    knowledge: KnownModel | KnownHiddenLayer,
    observation: Any,
    *,
    positive_ratio: float,
    neurons: int | Sequence[int] | None = None,
    noise: Noise | None = None,
    precision: Precision | None = None,
) -> LabelRecovery:
    """Binary labels of a batch from the aggregated gradient of the layer before the last, whose successor is hidden.

    Yuan, Xue, Wang and Shen (2022), Algorithm 4 and equation 4: for the weights W into neuron J of the last hidden
    layer, dZ_r/dW = W_J^L·U_J[r]·X[r], X[r] the inputs of that layer and U_J[r] = A′(Z_J[r]) the derivative of its
    activation. The output weight W_J^L is not known, so the solution is e up to one factor per neuron, whose sign the
    prior on the ratio of positives resolves. With ReLU the rows with U_J[r] = 0 are undetermined; each neuron
    determines others, so several are joined: aligned by the rows they share, then resolved together.

    Args:
        knowledge: a `KnownModel` with an elementwise activation between its last two linear layers; the last layer's
            weights are not used. Where rounding may put a neuron on either side of a kink, it is taken as active: a
            residual that is 0 instead of e is not determined, but never wrong. Or a `KnownHiddenLayer`.
        observation: a `GradientObservation` or a `WeightDifference` of shape (p, d), of all p neurons whichever are
            used, or (d,) of one neuron; an array alone is a mean gradient.
        positive_ratio: the prior, the share of label 1 in the batch, in (0, 1). Only whether it is below or above 0.5
            matters; where that is wrong, every determined label is the opposite one. Nothing is determined where it
            does not decide: as many determined rows of either label, or so many residuals lost in rounding (a trained
            model, one neuron) that either sign may fit it.
        neurons: indices of the neurons to use; None: all.
        noise, precision: as in `last_layer`; a confidence holds for all neurons together.

    Returns:
        `LabelRecovery`, with the residuals of the neuron that determines the row most clearly: |W_J^L|·(p − y). The
        result is "lower" only if, besides, the prior decides the sign: the opposite one would make the rarer class at
        least half of the batch. It is "lower" under the assumption that the prior is right, which `assumptions` states.

    Raises:
        ValueError, TypeError: that names the argument, also for positive_ratio=0.5, neuron indices out of range and
            layers that are not elementwise.

    Guarantees:
        As `last_layer`.
    """
    arithmetic = read_precision(precision)
    prior_below_half(positive_ratio)
    known = known_of_hidden_layer(knowledge)
    rows, count = known.rows, known.slope.shape[1]
    observed = observe(
        read_observation(observation),
        rows.shape[1],
        known_weights=known.weights,
        stored_roundoff=arithmetic.stored(known.roundoff),
    )
    if observed.values.shape[1] != count:
        raise ValueError(f"gradient: of {observed.values.shape[1]} neurons, but the layer has {count}")
    if observed.with_bias:
        rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    lengths = np.linalg.norm(rows, axis=1)
    used = chosen(neurons, count)
    return recover_up_to_sign(
        [
            NeuronRows(
                number=j,
                rows=rows * known.slope[:, [j]],
                forward=np.abs(known.slope[:, j]) * known.row_error + known.slope_error[:, j] * lengths,
            )
            for j in used
        ],
        observed,
        positive_ratio=positive_ratio,
        noise=noise,
        precision=arithmetic,
        roundoff=known.roundoff,
        attacker=f"knows {known.who}; sees {observed.what} of the layer before the last, of {len(used)} neurons",
        method="signs of the minimum-norm solutions of the neurons' linear systems, up to a sign that the prior fixes",
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 4",
    )
