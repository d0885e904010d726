"""What the attacker knows: the rows dZ_r/dW of every observed step, how exact they are, perhaps the probabilities."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore.attacks.labels.solving.forward_rounding import SAFETY, last_linear
from leakcore.attacks.labels.solving.logit_jacobian import LogitJacobian
from leakcore.attacks.labels.solving.softmax_residuals import differences


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """What the attacker knows of S steps: rows (S, N, d); forward: (S, N) their error; weights: (S, K, d + 1) or None.

    probs: (S, N, K) and doubt, their error, or None. steps: None where one step came without a leading axis.
    wide: None, or the number K of logits behind one weight vector: rows and forward are then the N·(K − 1) of
    `differences`, and summed (d,) the magnitudes behind the gradient's rounding.
    """

    rows: np.ndarray
    forward: np.ndarray
    weights: np.ndarray | None
    probs: np.ndarray | None
    doubt: np.ndarray | None
    roundoff: float
    steps: int | None
    who: str
    wide: int | None = None
    summed: np.ndarray | None = None

    @property
    def samples(self) -> int:
        """N."""
        return int(self.rows.shape[1]) // (1 if self.wide is None else self.wide - 1)


def known_of_last_layer(activations: Any, model: Any, inputs: Any, known_probs: Any) -> Known:
    """The inputs of the last layer, given or recomputed from one model or one per step."""
    if (activations is None) == (model is None):
        raise ValueError("activations, model: give exactly one of them")
    if model is None:
        if inputs is not None:
            raise ValueError("inputs: only with model=")
        return known_of_arrays(known_probs, activations=activations)
    if inputs is None:
        raise ValueError("inputs: must be given with model=")
    several = isinstance(model, (list, tuple))
    layers = [last_linear(m, inputs) for m in (model if several else [model])]
    if not layers:
        raise ValueError("model: must hold at least one module")
    if len({(lay.activations.shape, lay.weight.shape) for lay in layers}) > 1:
        raise ValueError("model: the last layers of the steps differ in shape")
    given = [known_probs] * len(layers)
    if several and known_probs is not None and not isinstance(known_probs, (bool, np.bool_)):
        given = list(known_probs) if np.iterable(known_probs) else []
        if len(given) != len(layers):
            raise ValueError(f"known_probs: holds {len(given)} arrays, must hold one for each of {len(layers)} models")
    found = [
        _probs_of(probs, lay.logits, lay.logit_error, lay.roundoff) for probs, lay in zip(given, layers, strict=True)
    ]
    roundoff = max(lay.roundoff for lay in layers)
    empty = np.zeros(layers[0].weight.shape[0])
    return Known(
        rows=_checked(np.stack([lay.activations for lay in layers]), "activations"),
        forward=np.stack([lay.activation_error for lay in layers]),
        weights=np.stack([np.c_[lay.weight, empty if lay.bias is None else lay.bias] for lay in layers]),
        probs=None if found[0][0] is None else np.stack([p for p, _ in found if p is not None]),
        doubt=None if found[0][1] is None else np.stack([d for _, d in found if d is not None]),
        roundoff=roundoff,
        steps=len(layers) if several else None,
        who="knows the model and the batch's inputs",
    )


def known_of_arrays(known_probs: Any, **kwargs: Any) -> Known:
    """Rows given under their argument's name, (N, d) or (S, N, d), with probabilities to match."""
    ((name, _),) = kwargs.items()
    rows, roundoff = validate.host_array(**kwargs)
    if rows.ndim not in {2, 3} or 0 in rows.shape:
        raise ValueError(
            f"{name} of shape {rows.shape}: must be (N, d), or (S, N, d) for S steps, with at least one row and column"
        )
    steps = rows.shape[0] if rows.ndim == 3 else None
    rows = rows.reshape(-1, *rows.shape[-2:])
    if known_probs is True:
        raise ValueError("known_probs=True: only with model=; pass the probabilities")
    probs = doubt = None
    if known_probs is not None:
        probs, fine = _probabilities(known_probs)
        lead = rows.shape[: 2 if steps else 1] if steps else rows.shape[1:2]
        if probs.shape[: len(lead)] != lead or probs.ndim > len(lead) + 1:
            raise ValueError(f"known_probs of shape {probs.shape}: must be {lead} or {(*lead, 'K')} to match {name}")
        probs = probs.reshape(*rows.shape[:2], -1)
        doubt = np.full(probs.shape, 4.0 * fine)
        roundoff = max(roundoff, fine)
    layer = "inputs of the last layer" if name == "activations" else "logits' derivatives"
    return Known(
        rows=rows,
        forward=np.zeros(rows.shape[:2]),
        weights=None,
        probs=probs,
        doubt=doubt,
        roundoff=roundoff,
        steps=steps,
        who=f"knows the {layer} for the batch",
    )


def known_of_jacobian(found: LogitJacobian, known_probs: Any) -> Known:
    """One step of a model whose logits' derivatives were computed."""
    probs, doubt = _probs_of(known_probs, found.logits, found.logit_error, found.roundoff)
    classes = found.logits.shape[1]
    rows, forward, summed = found.jacobian[:, 0], found.error[:, 0], None
    if classes > 1:
        rows, forward, summed = differences(found.jacobian, found.error)
    return Known(
        rows=rows[None],
        forward=forward[None],
        weights=found.weights[None, None, :],
        probs=None if probs is None else probs[None],
        doubt=None if doubt is None else doubt[None],
        roundoff=found.roundoff,
        steps=None,
        who="knows the model and the batch's inputs",
        wide=classes if classes > 1 else None,
        summed=summed,
    )


def _checked(rows: np.ndarray, name: str) -> np.ndarray:
    if 0 in rows.shape:
        raise ValueError(f"{name} of shape {rows.shape[1:]}: must be (N, d) with at least one row and one column")
    if not np.isfinite(rows).all():
        raise ValueError("model: its activations are not finite on these inputs")
    return rows


def _probabilities(known_probs: Any) -> tuple[np.ndarray, float]:
    probs, roundoff = validate.host_array(known_probs=known_probs)
    validate.real_array("in [0, 1]", lambda v: (v >= 0) & (v <= 1), known_probs=probs)
    return probs, roundoff


def _probs_of(
    known_probs: Any, logits: np.ndarray, logit_error: np.ndarray, roundoff: float
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(N, K) probabilities and their errors: given, or the model's own where known_probs is True."""
    if known_probs is None or known_probs is False:
        return None, None
    if known_probs is not True:
        probs, fine = _probabilities(known_probs)
        if probs.shape not in {logits.shape, logits.shape[:1]} or probs.size != logits.size:
            raise ValueError(f"known_probs of shape {probs.shape}: must be {logits.shape} to match the model's logits")
        return probs.reshape(logits.shape), np.full(logits.shape, 4.0 * max(fine, roundoff))
    probs = special.expit(logits) if logits.shape[1] == 1 else special.softmax(logits, axis=1)
    # dp/dz ≤ p(1 − p) ≤ 1/4 for a sigmoid; a softmax moves by at most half the largest change of a logit.
    moved = logit_error if logits.shape[1] == 1 else np.broadcast_to(logit_error.max(axis=1)[:, None], logits.shape)
    return probs, moved / 2 + SAFETY * 2.0 * roundoff
