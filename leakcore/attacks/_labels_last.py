"""Labels from one aggregated gradient of the last layer (Algorithm 3), or of any weights (Algorithm 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from leakcore import _validate
from leakcore._results import Assumptions
from leakcore.attacks._jacobian import logit_jacobian
from leakcore.attacks._labels_box import Observation, solve_box
from leakcore.attacks._labels_known import Known, known_of_arrays, known_of_jacobian, known_of_last_layer
from leakcore.attacks._labels_result import (
    UNDETERMINED,
    LabelRecovery,
    combine,
    name_labels,
)
from leakcore.attacks._labels_seen import Seen, read_seen
from leakcore.attacks._labels_system import Conditions, conditions, noise_notes, solve

if TYPE_CHECKING:
    import torch


def last_layer(
    activations: Any = None,
    *,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    inputs: Any = None,
    gradient: Any = None,
    bias_gradient: Any = None,
    weight_difference: Any = None,
    bias_difference: Any = None,
    lr: float | None = None,
    optimizer: Any = None,
    weights: Any = None,
    known_probs: Any = None,
    reduction: Literal["mean", "sum"] = "mean",
    batch_size: float | None = None,
    noise_std: float | None = None,
    confidence: float | None = None,
    unit_roundoff: float | None = None,
    rcond: float | None = None,
) -> LabelRecovery:
    """Labels of a batch from one aggregated gradient of the last layer.

    Yuan, Xue, Wang and Shen (2022), Algorithm 3: e = p − y solves dL/dW = (1/N) Xᵀe, X the inputs of the last layer,
    and y = 1{e < 0}. Clipping each sample's gradient (DP-SGD) scales e by a positive factor and so keeps every sign.
    With K logits and softmax cross-entropy each class's weight vector gives such a system with the same X, and the
    label is the class whose residual is negative.

    What the attacker knows, one of:

    activations: (N, d), the inputs of the last layer for the batch, in the model's order of units.
    model, inputs: a torch module whose output is its last linear layer's logits (or the sigmoid or softmax of them),
        and the batch's inputs; the activations are recomputed in the model's present mode, and how far rounding may put
        them from the victim's is measured (float32 against float64, times four).

    What the attacker sees, one of:

    gradient: (d,) or (1, d), or (K, d): aggregated dL/dW. bias_gradient: scalar or (K,), dL/db, which adds a column of
        ones to the system.
    weight_difference: likewise, W after minus W before one step of SGD; bias_difference likewise.
    lr: learning rate of plain SGD. optimizer: instead of lr, a `labels.SGD` with momentum, Nesterov's variant,
        dampening or weight decay, or a torch.optim.SGD without momentum; adaptive optimisers are refused.
    weights: (d,) or (K, d), or d + 1 with the bias last: the weights before the step, whose rounding limits the
        precision of a difference. Taken from `model` where that is given; without either the result is an estimate.

    More that the attacker may know:

    known_probs: (N,) or (N, K), the model's p for each row (a white-box attacker), or True to compute them from
        `model`. Then each residual is p or p − 1, and least squares with y in [0, 1] recovers labels beyond the rank of
        the system. A label counts as determined only with a certificate that no other point of the box fits. Not for
        clipped gradients, whose residuals take other values; residuals are p − y of the relaxed solution.
    Several observed steps of the same batch: activations (S, N, d), gradient (S, d) or (S, K, d), known_probs (S, N) or
        (S, N, K); or a list of S models. Without known_probs each step is solved by itself and the labels are joined;
        with them all steps share one y and are stacked, which multiplies the rank.

    How it was made:

    reduction, batch_size: "mean": the aggregate is the sum over samples divided by `batch_size` (default N; Opacus
        divides by the *expected* batch size). "sum": not divided, as `clip_and_noise(...).sum`. Signs do not depend
        on it; residuals and known_probs do.
    noise_std: standard deviation of independent Gaussian noise in each coordinate of what is seen (for a weight
        difference: of the gradient that it implies). 0: none. None: unknown; labels are then named by sign and the
        result is an estimate.
    confidence: with noise_std > 0: the probability, over the noise, that *no* determined label is wrong. The
        threshold is noise_std·batch_size·√v_r·Φ⁻¹(1 − (1 − confidence)/n), v the leverages, n the number of
        identifiable residuals (union bound); with known_probs, the χ quantile of the whole noise vector.
    unit_roundoff: of the arithmetic that computed the gradient, 2⁻²⁴ for float32. Default: the coarsest of the given
        arrays. Set it where the arithmetic was coarser than the dtype shows (TF32: 2⁻¹¹).
    rcond: singular values below rcond times the largest count as zero. Default 2·max(N, d)·unit_roundoff.

    A row is identifiable when its residual is a linear function of the gradient: not for zero rows, rows that are
    combinations of others, or when N > d. It is determined when, in addition, |residual| exceeds `tolerance`: with u
    the unit roundoff, the gradient's rounding is at most γ(1/N)Σ_r|X_r||e_r|, γ = (N + 8)u/(1 − (N + 8)u), and moves
    residual r by at most N√v_r times its norm. A saturated model, whose p rounds to y, therefore gives −1 and no
    guess.

    Raises ValueError or TypeError that names the argument for bad shapes, non-finite values, a mix of both kinds of
    input, or an empty batch. Deterministic; float64 on the CPU whatever the inputs' dtype; returns NumPy arrays.
    """
    if weights is not None and weight_difference is None:
        raise ValueError("weights: only with weight_difference=")
    known = known_of_last_layer(activations, model, inputs, known_probs)
    seen = read_seen(
        known.rows.shape[2],
        gradient=gradient,
        bias_gradient=bias_gradient,
        weight_difference=weight_difference,
        bias_difference=bias_difference,
        lr=lr,
        optimizer=optimizer,
        weights=weights,
        known_weights=known.weights,
        steps=known.steps,
    )
    if seen.with_bias:
        ones = np.ones((*known.rows.shape[:2], 1))
        known = dataclasses.replace(known, rows=np.concatenate([known.rows, ones], axis=2))
    part = "the last layer's weights" + (" and bias" if seen.with_bias else "")
    return _recover(
        known,
        seen,
        reduction=reduction,
        batch_size=batch_size,
        noise_std=noise_std,
        confidence=confidence,
        unit_roundoff=unit_roundoff,
        rcond=rcond,
        part=part,
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 3",
    )


def general(
    jacobian: Any = None,
    *,
    model: torch.nn.Module | None = None,
    inputs: Any = None,
    parameters: str | Sequence[str] | None = None,
    gradient: Any = None,
    weight_difference: Any = None,
    lr: float | None = None,
    optimizer: Any = None,
    weights: Any = None,
    known_probs: Any = None,
    reduction: Literal["mean", "sum"] = "mean",
    batch_size: float | None = None,
    noise_std: float | None = None,
    confidence: float | None = None,
    unit_roundoff: float | None = None,
    rcond: float | None = None,
) -> LabelRecovery:
    """Binary labels of a batch from the aggregated gradient of any weights.

    Yuan, Xue, Wang and Shen (2022), Algorithm 1: e = p − y solves dL/dW = (1/N) C e (their equation 1), C's column r
    the derivative dZ_r/dW of the logit, and y = 1{e < 0}.

    What the attacker knows, one of:

    jacobian: (N, d), row r = dZ_r/dW (that is Cᵀ); (S, N, d) for S observed steps of the same batch.
    model, inputs, parameters: a torch module with one logit (or the sigmoid of its last linear layer), the batch's
        inputs, and the names of the parameters that are seen (`model.named_parameters()`), all of them by default;
        their derivatives are computed by torch.func and joined in that order.

    What the attacker sees, one of:

    gradient: (d,), or with `parameters` one array of the parameter's shape, or a sequence of one per parameter in
        that order, or a mapping from names. weight_difference: likewise; lr, optimizer and weights as in `last_layer`
        (weights are taken from `model`; otherwise (d,)).

    known_probs, several steps, reduction, batch_size, noise_std, confidence, unit_roundoff, rcond, what is identifiable
    and determined, errors and determinism: as in `last_layer`. known_probs=True needs `model`.
    """
    if weights is not None and weight_difference is None:
        raise ValueError("weights: only with weight_difference=")
    if (jacobian is None) == (model is None):
        raise ValueError("jacobian, model: give exactly one of them")
    if model is None:
        if inputs is not None or parameters is not None:
            raise ValueError("inputs, parameters: only with model=")
        known = known_of_arrays(known_probs, jacobian=jacobian)
    else:
        if inputs is None:
            raise ValueError("inputs: must be given with model=")
        found = logit_jacobian(model, inputs, parameters)
        known = known_of_jacobian(found, known_probs)
        gradient, weight_difference, weights = (
            value if value is None else found.join(name, value)
            for name, value in (("gradient", gradient), ("weight_difference", weight_difference), ("weights", weights))
        )
    seen = read_seen(
        known.rows.shape[2],
        gradient=gradient,
        weight_difference=weight_difference,
        lr=lr,
        optimizer=optimizer,
        weights=weights,
        known_weights=known.weights,
        steps=known.steps,
    )
    if seen.values.shape[1] != 1:
        raise ValueError(f"gradient: of {seen.values.shape[1]} weight vectors; must be one (one logit, binary labels)")
    return _recover(
        known,
        seen,
        reduction=reduction,
        batch_size=batch_size,
        noise_std=noise_std,
        confidence=confidence,
        unit_roundoff=unit_roundoff,
        rcond=rcond,
        part="some weights",
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 1",
    )


def _recover(
    known: Known,
    seen: Seen,
    *,
    reduction: str,
    batch_size: float | None,
    noise_std: float | None,
    confidence: float | None,
    unit_roundoff: float | None,
    rcond: float | None,
    part: str,
    provenance: str,
) -> LabelRecovery:
    steps, n, width = known.rows.shape
    rule = _validate.one_of("mean", "sum", reduction=reduction)
    if rule == "sum" and batch_size is not None:
        raise ValueError(f"batch_size={batch_size!r}: only with reduction='mean'; a sum is not divided")
    divisor = 1.0 if rule == "sum" else float(n) if batch_size is None else _validate.positive(batch_size=batch_size)
    how = conditions(
        max(n, width),
        roundoff=max(known.roundoff, seen.roundoff),
        divisor=divisor,
        noise_std=noise_std,
        confidence=confidence,
        unit_roundoff=unit_roundoff,
        rcond=rcond,
    )
    classes = seen.values.shape[1]
    if known.weights is not None and known.weights.shape[1] != classes:
        raise ValueError(f"gradient: of {classes} weight vectors, but the model has {known.weights.shape[1]} logits")
    if known.probs is not None and known.probs.shape[2] != classes:
        raise ValueError(f"known_probs: of {known.probs.shape[2]} classes, the gradient of {classes} weight vectors")
    blind = seen.stored is None
    exact = how.noise is not None and not blind
    notes = ["binary labels, logistic loss, one logit"] if classes == 1 else [f"{classes} classes, softmax loss"]
    notes += noise_notes(how)
    if blind:
        notes.append("the rounding of the stored weights is not in the tolerance, because the weights were not given")
    common: dict[str, Any] = {
        "kind": "lower" if exact else "estimate",
        "confidence": confidence if exact and how.noise else None,
        "interval": None,
        "assumptions": Assumptions(
            adjacency=None,
            attacker=f"{known.who}; sees {seen.what} of {part}"
            + ("; knows each row's probabilities" if known.probs is not None else ""),
            notes=tuple(notes),
        ),
        "provenance": provenance,
    }
    total = np.swapaxes(seen.values, 1, 2) * divisor
    stored = None if seen.stored is None else np.swapaxes(seen.stored, 1, 2) * divisor
    if known.probs is not None:
        return _with_probs(known, total, stored, how, common)
    parts = []
    for s in range(steps):
        found = solve(
            known.rows[s],
            total[s],
            how.shared(steps),
            stored=None if stored is None else stored[s],
            forward=known.forward[s],
        )
        named = name_labels(found.residuals, found.tolerance, found.identifiable)
        parts.append(
            LabelRecovery(
                **{**common, "confidence": how.shared(steps).level if common["confidence"] else None},
                value=float((named != UNDETERMINED).mean()),
                method="signs of the minimum-norm solution of the aggregated gradient's linear system",
                labels=named,
                residuals=_squeezed(found.residuals),
                identifiable=found.identifiable,
                determined=named != UNDETERMINED,
                tolerance=_squeezed(found.tolerance),
                rank=found.rank,
                condition=found.condition,
            )
        )
    return combine(parts)


def _with_probs(
    known: Known, total: np.ndarray, stored: np.ndarray | None, how: Conditions, common: dict[str, Any]
) -> LabelRecovery:
    """One box-constrained problem per class; all steps are stacked."""
    assert known.probs is not None
    assert known.doubt is not None
    steps, n, _ = known.rows.shape
    classes = total.shape[2]
    residuals, tolerance, states = np.empty((n, classes)), np.empty((n, classes)), np.empty((n, classes), np.int64)
    for k in range(classes):
        found = solve_box(
            [
                Observation(
                    rows=known.rows[s],
                    total=total[s, :, k],
                    high=known.probs[s, :, k],
                    gap=np.ones(n),
                    stored=None if stored is None else stored[s, :, k],
                    forward=known.forward[s],
                    doubt=known.doubt[s, :, k],
                )
                for s in range(steps)
            ],
            how.shared(classes),
        )
        residuals[:, k] = known.probs[0, :, k] - found.y
        tolerance[:, k] = found.reach
        states[:, k] = found.labels
    stacked = solve(
        np.concatenate(list(known.rows), axis=1),
        np.concatenate(list(total), axis=0),
        how,
        stored=None,
        forward=np.zeros(n),
    )
    named = states[:, 0] if classes == 1 else _one_class(states)
    determined = named != UNDETERMINED
    return LabelRecovery(
        **common,
        value=float(determined.mean()),
        method="least squares over labels in [0, 1] with known probabilities, each label certified by a dual vector",
        labels=named.astype(np.int8 if classes < 128 else np.int32),
        residuals=_squeezed(residuals),
        identifiable=stacked.identifiable | determined,
        determined=determined,
        tolerance=_squeezed(tolerance),
        rank=stacked.rank,
        condition=stacked.condition,
    )


def _one_class(states: np.ndarray) -> np.ndarray:
    """The class that is proved, or the only one that is not excluded."""
    is_one, open_ = states == 1, states != 0
    proved = is_one.sum(axis=1) == 1
    left = ~is_one.any(axis=1) & (open_.sum(axis=1) == 1)
    return np.where(proved, is_one.argmax(axis=1), np.where(left, open_.argmax(axis=1), UNDETERMINED))


def _squeezed(values: np.ndarray) -> np.ndarray:
    return values[:, 0] if values.shape[1] == 1 else values
