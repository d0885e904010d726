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
    """Binary labels of a batch from the aggregated gradient of the layer before a hidden last layer.

    For the weights W into neuron J of that layer, dZ_r/dW = W_J^L·U_J[r]·X[r], with X[r] its inputs and U_J[r] =
    A′(Z_J[r]) the derivative of its activation (Yuan et al. 2022, Algorithm 4 and equation 4). The output weight W_J^L
    is unknown, so each neuron yields e up to one factor, whose sign the prior resolves. With ReLU, rows with U_J[r] = 0
    are undetermined; neurons are aligned by the rows they share, then resolved together.

    Args:
        knowledge: a `KnownModel` with an elementwise activation between its last two linear layers, or a
            `KnownHiddenLayer`.
        observation: a `GradientObservation`, a `WeightDifference` or a mean gradient, (p, d) of all p neurons
            (whichever are used), or (d,) of one.
        positive_ratio: the prior, the share of label 1 in the batch, in (0, 1), not 0.5. Only its side of 0.5 matters.
        neurons: indices of the neurons to use; None: all.
        noise: as in `last_layer`; a confidence holds for all neurons together.
        precision: as in `last_layer`.

    Returns:
        `LabelRecovery`. Its residuals, |W_J^L|·(p − y), come from the neuron that determines the row most clearly. It
        is "lower" only if the prior also decides the sign, and assumes the prior to be right; a wrong prior inverts
        every determined label.

    Raises:
        ValueError: for bad shapes, neurons out of range and activations that are not elementwise.
        TypeError: for an argument of another type.

    Guarantees:
        As `last_layer`. More: docs/explanation/attacks.md.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> rng = np.random.default_rng(0)
        >>> x, slopes = rng.standard_normal((5, 9)), rng.uniform(0.5, 1, (5, 2))
        >>> y = np.array([0, 1, 0, 0, 0])
        >>> gradient = np.stack([w * (slopes[:, j] * (0.5 - y)) @ x / 5 for j, w in enumerate((2.0, -1.0))])
        >>> hidden = labels.KnownHiddenLayer(x, slopes)
        >>> labels.second_last_layer(hidden, gradient, positive_ratio=0.2, noise=labels.Noise(0)).labels.tolist()
        [0, 1, 0, 0, 0]
    """
    arithmetic = read_precision(precision)
    prior_below_half(positive_ratio)
    known = known_of_hidden_layer(knowledge)
    rows, count = known.rows, known.slope.shape[1]
    observed = observe(
        read_observation(observation),
        rows.shape[1],
        known_weights=known.weights,
        weights_roundoff=arithmetic.stored(known.roundoff),
    )
    if observed.values.shape[1] != count:
        raise ValueError(f"`gradient` must be of the layer's {count} neurons, got {observed.values.shape[1]}")
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
