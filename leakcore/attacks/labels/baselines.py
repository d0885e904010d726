"""Baselines on gradients of single examples, which attackers seldom see: iDLG's sign rule, and the gradient's norm."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Result, attack_guarantee
from leakcore.attacks.labels.result import UNDETERMINED


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SingleExampleLabels(Result):
    """Labels that a rule reads off the gradients of single examples.

    Attributes:
        value: share of the labels that the rule names.
        labels: (N,) the class of each example, −1 where the rule does not decide.
        scores: (N,) float64, larger for label 1 (binary) or for a clearer answer (several classes).
    """

    quantity: str = "share of labels determined"
    labels: np.ndarray
    scores: np.ndarray


def idlg(gradients: Any, *, bias_gradients: Any = None) -> SingleExampleLabels:
    """Labels from the signs of the last layer's gradients of single examples (iDLG).

    Row k of an example's gradient is e_k·X with e_k = p_k − 1{k = y} (Zhao, Mopuri and Bilen 2020, equation 4), so the
    label's row is the one whose products with all other rows are not positive. For one or two logits that rule is
    symmetric. There the sign of the row's sum decides, which is the sign of e if no input X of the layer is negative
    (ReLU, sigmoid); the gradient alone cannot confirm that.

    Args:
        gradients: (N, K, d), one gradient per example of the weights of K logits, or (N, d) for one logit.
        bias_gradients: (N, K), or (N,) for one logit: e itself, whose sign is then used. None: not seen.

    Returns:
        `SingleExampleLabels` of kind "estimate": rounding and noise are not accounted for. A label is −1 where the rule
        names no class or several, as for a saturated example, whose gradient is 0.

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> x = np.random.default_rng(0).random((4, 8))  # inputs of the last layer
        >>> y = np.array([2, 0, 1, 2])
        >>> e = np.full((4, 3), 1 / 3) - np.eye(3)[y]  # an untrained model with three classes
        >>> labels.idlg(e[:, :, None] * x[:, None, :]).labels.tolist()
        [2, 0, 1, 2]
    """
    array, _ = validate.host_array(gradients=gradients)
    if array.ndim not in {2, 3} or 0 in array.shape:
        raise ValueError(f"`gradients` must have shape (N, d) or (N, K, d), one per example, got {array.shape}")
    array = array.reshape(len(array), -1, array.shape[-1])
    n, classes, _ = array.shape
    notes = ["one gradient per example, without noise"]
    if bias_gradients is not None:
        e, _ = validate.host_array(bias_gradients=bias_gradients)
        if e.shape not in {(n, classes), (n,)} or e.size != n * classes:
            raise ValueError(f"`bias_gradients` must have shape ({n}, {classes}) to match gradients, got {e.shape}")
        e = e.reshape(n, classes)
    elif classes <= 2:
        e = array.sum(axis=2)
        notes.append("the inputs of the last layer are taken to be not negative")
    else:
        products = np.einsum("nkd,njd->nkj", array, array)
        off = products.copy()
        off[:, range(classes), range(classes)] = -np.inf
        fits = (off.max(axis=2) <= 0) & (products[:, range(classes), range(classes)] > 0)
        e = np.where(fits, -1.0, 1.0)
    negative = e < 0
    if classes == 1:
        labels = np.where(e[:, 0] == 0, UNDETERMINED, negative[:, 0])
    else:
        labels = np.where(negative.sum(axis=1) == 1, negative.argmax(axis=1), UNDETERMINED)
    return SingleExampleLabels(
        value=float((labels != UNDETERMINED).mean()),
        method="signs of the last layer's gradient rows",
        **attack_guarantee("sees the last layer's gradient of every single example", notes=notes),
        provenance="Zhao, Mopuri and Bilen (2020), equation 4",
        labels=labels.astype(np.int64),
        scores=-e[:, 0] if classes == 1 else np.abs(e).max(axis=1),
    )


def gradient_norm(gradients: Any, *, positive_ratio: float) -> SingleExampleLabels:
    """Labels from the norms of single examples' gradients: the rarer class has the larger norms.

    A model is less sure of the rare class, so |p − y|, and with it the gradient, is larger there (Li, Sun, Yang, Gao,
    Zhang, Xie, Smith and Wang 2022, Section 3.1). The examples with the round(min(ratio, 1 − ratio)·N) largest norms
    get the rarer label.

    Args:
        gradients: (N, ...), the gradient of any layer for each of N examples.
        positive_ratio: share of label 1, in (0, 1). Above 0.5 label 0 is the rarer one.

    Returns:
        `SingleExampleLabels` of kind "estimate", without any guarantee. Its scores are the norms, or their negatives
        where positive_ratio is above 0.5.

    Raises:
        ValueError: for an empty batch and for values that are not finite.

    Guarantees:
        Deterministic; of equal norms the earlier row counts as larger.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> gradients = np.array([[0.1, 0.0], [0.9, 0.2], [0.0, 0.1], [0.1, 0.1]])
        >>> labels.gradient_norm(gradients, positive_ratio=0.25).labels.tolist()
        [0, 1, 0, 0]
    """
    array, _ = validate.host_array(gradients=gradients)
    if array.ndim < 2 or 0 in array.shape:
        raise ValueError(f"`gradients` must have shape (N, ...), one per example, got {array.shape}")
    ratio = validate.open_probability(positive_ratio=positive_ratio)
    norms = np.linalg.norm(array.reshape(len(array), -1), axis=1)
    rare = ratio <= 0.5
    largest = np.argsort(-norms, kind="stable")[: round(min(ratio, 1.0 - ratio) * len(norms))]
    labels = np.full(len(norms), 0 if rare else 1, dtype=np.int64)
    labels[largest] = 1 if rare else 0
    return SingleExampleLabels(
        value=1.0,
        method="the largest gradient norms",
        **attack_guarantee(
            "sees the gradient of every single example", notes=("the model is less sure of the rarer class",)
        ),
        provenance="Li et al., Label leakage and protection in two-party split learning (2022), Section 3.1",
        labels=labels,
        scores=norms if rare else -norms,
    )
