"""Baselines on gradients of single examples, which attackers seldom see: iDLG's sign rule, and the gradient's norm."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result
from leakcore.attacks.labels.result import UNDETERMINED


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SingleExampleLabels(Result):
    """labels: (N,) int8, −1 where the rule does not tell; scores: (N,), larger for label 1 (binary) or for a clearer
    answer. value: share of labels that are named."""

    labels: np.ndarray
    scores: np.ndarray


def idlg(gradients: Any, *, bias_gradients: Any = None) -> SingleExampleLabels:
    """Labels from the last layer's gradients of single examples, by their signs.

    Zhao, Mopuri and Bilen (2020), equation 4: row k of an example's gradient is e_k·X with e_k = p_k − 1{k = y}, so the
    label's row is the one whose products with all others are not positive. For one or two logits that rule is
    symmetric; the sign of the row's sum decides instead, which is e's sign if the inputs X of the layer are not
    negative (ReLU, sigmoid): an assumption that cannot be checked from the gradient.

    gradients: (N, K, d), or (N, d) for one logit. bias_gradients: (N, K) or (N,): e itself; its sign is then used.

    −1 where the rule names no class or several (a saturated example, whose gradient is 0). Rounding and noise are not
    accounted for: kind "estimate". Raises ValueError for other shapes and non-finite values. Deterministic.
    """
    array, _ = validate.host_array(gradients=gradients)
    if array.ndim not in {2, 3} or 0 in array.shape:
        raise ValueError(f"gradients of shape {array.shape}: must be (N, d) or (N, K, d), one per example")
    array = array.reshape(len(array), -1, array.shape[-1])
    n, classes, _ = array.shape
    notes = ["one gradient per example, without noise"]
    if bias_gradients is not None:
        e, _ = validate.host_array(bias_gradients=bias_gradients)
        if e.shape not in {(n, classes), (n,)} or e.size != n * classes:
            raise ValueError(f"bias_gradients of shape {e.shape}: must be ({n}, {classes}) to match gradients")
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
        kind="estimate",
        confidence=None,
        interval=None,
        method="signs of the last layer's gradient rows",
        assumptions=Assumptions(None, "sees the last layer's gradient of every single example", tuple(notes)),
        provenance="Zhao, Mopuri and Bilen (2020), equation 4",
        labels=labels.astype(np.int8 if classes < 128 else np.int32),
        scores=-e[:, 0] if classes == 1 else np.abs(e).max(axis=1),
    )


def gradient_norm(gradients: Any, *, positive_ratio: float) -> SingleExampleLabels:
    """Labels from the norms of single examples' gradients: the rarer class has the larger ones.

    Li, Sun, Yang, Gao, Zhang, Xie, Smith and Wang (2022), Section 3.1: a model is less sure of the rare class, so
    |p − y|, and with it the gradient, is larger there. The round(positive_ratio·N) largest norms (of the rarer class)
    are named.

    gradients: (N, ...) of any layer. positive_ratio: share of label 1, in (0, 1); above 0.5 the roles are exchanged.

    scores are the norms (above 0.5: their negatives). An estimate with no guarantee; ties keep the order of the rows.
    Raises ValueError for an empty batch and non-finite values. Deterministic.
    """
    array, _ = validate.host_array(gradients=gradients)
    if array.ndim < 2 or 0 in array.shape:
        raise ValueError(f"gradients of shape {array.shape}: must be (N, ...), one per example")
    ratio = validate.open_probability(positive_ratio=positive_ratio)
    norms = np.linalg.norm(array.reshape(len(array), -1), axis=1)
    rare = ratio <= 0.5
    largest = np.argsort(-norms, kind="stable")[: round(min(ratio, 1.0 - ratio) * len(norms))]
    labels = np.full(len(norms), 0 if rare else 1, dtype=np.int8)
    labels[largest] = 1 if rare else 0
    return SingleExampleLabels(
        value=1.0,
        kind="estimate",
        confidence=None,
        interval=None,
        method="the largest gradient norms",
        assumptions=Assumptions(
            None, "sees the gradient of every single example", ("the model is less sure of the rarer class",)
        ),
        provenance="Li et al., Label leakage and protection in two-party split learning (2022), Section 3.1",
        labels=labels,
        scores=norms if rare else -norms,
    )
