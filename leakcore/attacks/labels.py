"""Labels from aggregated gradients: the gradient of one weight vector is a linear system in the residuals p − y.

For a binary model with logit Z and p = sigmoid(Z), dL/dW = (1/N) Σ_r (dZ_r/dW)(p_r − y_r) (Yuan, Xue, Wang and Shen
2022, equation 1), and p_r − y_r is positive exactly when y_r = 0. Whoever knows the rows dZ_r/dW solves for all
labels of a batch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import special

from leakcore import _validate
from leakcore._results import Assumptions, Result
from leakcore.attacks._logit import last_linear
from leakcore.kernels import solve_labels

if TYPE_CHECKING:
    import torch

UNDETERMINED = -1
"""The label of a row that the gradient does not determine."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelRecovery(Result):
    """Labels of one batch.

    value: share of the batch's labels that are determined. kind: "lower" where the determined labels are proved right
    (the gradient is exact up to rounding, or its noise level was given), else "estimate".
    labels: (N,) int8, 0 or 1, and −1 where undetermined. residuals: (N,) float64, solved p − y.
    identifiable: (N,) bool, whether the system determines the row at all. determined: identifiable and |residual| >
    tolerance.
    tolerance: (N,) float64, what rounding and (where its level was given) noise can do to each residual; ∞ where not
    identifiable.
    rank: of the system. condition: its largest over its smallest non-zero singular value, ∞ for rank 0.
    """

    labels: np.ndarray
    residuals: np.ndarray
    identifiable: np.ndarray
    determined: np.ndarray
    tolerance: np.ndarray
    rank: int
    condition: float


def last_layer(
    activations: Any = None,
    *,
    model: torch.nn.Module | None = None,
    inputs: Any = None,
    gradient: Any = None,
    bias_gradient: Any = None,
    weight_difference: Any = None,
    bias_difference: Any = None,
    learning_rate: float | None = None,
    weights: Any = None,
    reduction: Literal["mean", "sum"] = "mean",
    batch_size: float | None = None,
    noise_std: float | None = None,
    confidence: float | None = None,
    unit_roundoff: float | None = None,
    rcond: float | None = None,
) -> LabelRecovery:
    """Binary labels of a batch from one aggregated gradient of the last weight vector.

    Yuan, Xue, Wang and Shen (2022), Algorithm 3: e = p − y solves dL/dW = (1/N) Xᵀe, X the inputs of the last layer,
    and y = 1{e < 0}. Clipping each sample's gradient (DP-SGD) scales e by a positive factor and so keeps every sign.

    What the attacker knows, one of:

    activations: (N, d), the inputs of the last layer for the batch, in the model's order of units.
    model, inputs: a torch module whose output is its last linear layer's one logit (or the sigmoid of it), and the
        batch's inputs; the activations are recomputed in the model's present mode.

    What the attacker sees, one of:

    gradient: (d,) or (1, d), aggregated dL/dW. bias_gradient: scalar or (1,), dL/db, which adds a column of ones to the
        system.
    weight_difference: (d,) or (1, d), W after minus W before one step of plain SGD with `learning_rate`;
        bias_difference likewise. Momentum, weight decay and adaptive steps change ΔW and are not supported.
    weights: (d,), or (d + 1,) with the bias last: the weights themselves, whose rounding limits the precision of a
        difference. Taken from `model` where that is given; without either the result is an estimate.

    How it was made:

    reduction, batch_size: "mean": the aggregate is the sum over samples divided by `batch_size` (default N; Opacus
        divides by the *expected* batch size). "sum": not divided, as `clip_and_noise(...).sum`. Signs do not depend
        on it; residuals do.
    noise_std: standard deviation of independent Gaussian noise in each coordinate of what is seen (for a weight
        difference: of the gradient that it implies). 0: none. None: unknown; labels are then named by sign and the
        result is an estimate.
    confidence: with noise_std > 0: the probability, over the noise, that *no* determined label is wrong. The
        threshold is noise_std·batch_size·√v_r·Φ⁻¹(1 − (1 − confidence)/n), v the leverages, n identifiable rows
        (union bound).
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
    rows, rows_roundoff, known_weights = _rows(activations, model, inputs)
    seen, seen_roundoff, stored = _seen(
        rows.shape[1],
        gradient=gradient,
        bias_gradient=bias_gradient,
        weight_difference=weight_difference,
        bias_difference=bias_difference,
        learning_rate=learning_rate,
        weights=weights if weights is not None else known_weights,
    )
    n = rows.shape[0]
    with_bias = seen.shape[0] > rows.shape[1]
    if with_bias:
        rows = np.concatenate([rows, np.ones((n, 1))], axis=1)
    how = _validate.one_of("mean", "sum", reduction=reduction)
    if how == "sum" and batch_size is not None:
        raise ValueError(f"batch_size={batch_size!r}: only with reduction='mean'; a sum is not divided")
    divisor = 1.0 if how == "sum" else float(n) if batch_size is None else _validate.positive(batch_size=batch_size)
    noise, level = _noise(noise_std, confidence)
    roundoff = max(rows_roundoff, seen_roundoff) if unit_roundoff is None else _roundoff(unit_roundoff)
    cutoff = 2.0 * max(rows.shape) * roundoff if rcond is None else _validate.below_one(rcond=rcond)

    solved = solve_labels(rows, seen * (divisor / n), rcond=cutoff)
    residuals = np.asarray(solved.residual, dtype=np.float64)
    leverage = np.asarray(solved.leverage, dtype=np.float64)
    identifiable = np.asarray(solved.identifiable, dtype=bool)
    tolerance = np.asarray(solved.error, dtype=np.float64) + _rounding(
        rows,
        residuals,
        leverage,
        identifiable,
        roundoff,
        stored=0.0 if stored is None else stored * divisor,
        passes=1 if noise else 3,
    )
    if noise is not None and noise > 0:
        quantile = -float(special.ndtri((1.0 - level) / max(1, int(identifiable.sum()))))
        tolerance = tolerance + noise * divisor * np.sqrt(leverage) * max(0.0, quantile)
    tolerance = np.where(identifiable, tolerance, np.inf)
    determined = np.abs(residuals) > tolerance
    labels = np.where(determined, residuals < 0, UNDETERMINED).astype(np.int8)
    exact = noise is not None and not (weight_difference is not None and stored is None)
    return LabelRecovery(
        value=float(determined.mean()),
        kind="lower" if exact else "estimate",
        confidence=level if exact and noise else None,
        interval=None,
        method="signs of the minimum-norm solution of the aggregated gradient's linear system",
        assumptions=Assumptions(
            adjacency=None,
            attacker=_attacker(model is not None, weight_difference is not None, with_bias),
            notes=_notes(noise, level, weight_difference is not None and stored is None),
        ),
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 3",
        labels=labels,
        residuals=residuals,
        identifiable=identifiable,
        determined=determined,
        tolerance=tolerance,
        rank=int(solved.rank),
        condition=_condition(rows, int(solved.rank)),
    )


def _rows(activations: Any, model: Any, inputs: Any) -> tuple[np.ndarray, float, np.ndarray | None]:
    """(N, d) rows dZ_r/dW, their unit roundoff, and the model's weights (bias last) where a model was given."""
    weights = None
    if (activations is None) == (model is None):
        raise ValueError("activations, model: give exactly one of them")
    if model is not None:
        if inputs is None:
            raise ValueError("inputs: must be given with model=")
        layer = last_linear(model, inputs)
        activations = layer.activations
        weight, _ = _validate.host_array(weight=layer.weight)
        bias = [] if layer.bias is None else [float(layer.bias)]
        weights = np.concatenate([weight, bias])
    elif inputs is not None:
        raise ValueError("inputs: only with model=")
    rows, roundoff = _validate.host_array(activations=activations)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"activations of shape {rows.shape}: must be (N, d) with at least one row and one column")
    return rows, roundoff, weights


def _seen(
    width: int,
    *,
    gradient: Any,
    bias_gradient: Any,
    weight_difference: Any,
    bias_difference: Any,
    learning_rate: float | None,
    weights: Any,
) -> tuple[np.ndarray, float, np.ndarray | None]:
    """The aggregated gradient (bias last), its unit roundoff, and the error of each coordinate due to stored weights.

    The last is zero for a gradient and None for a weight difference whose weights are not known.
    """
    if (gradient is None) == (weight_difference is None):
        raise ValueError("gradient, weight_difference: give exactly one of them")
    if gradient is not None:
        for name, value in (("bias_difference", bias_difference), ("learning_rate", learning_rate)):
            if value is not None:
                raise ValueError(f"{name}: only with weight_difference=")
        seen, roundoff = _vector(width, gradient=gradient)
        if bias_gradient is not None:
            bias, bias_roundoff = _vector(1, bias_gradient=bias_gradient)
            seen, roundoff = np.concatenate([seen, bias]), max(roundoff, bias_roundoff)
        return seen, roundoff, np.zeros(seen.shape)
    if bias_gradient is not None:
        raise ValueError("bias_gradient: only with gradient=; use bias_difference=")
    if learning_rate is None:
        raise ValueError("learning_rate: must be given with weight_difference=")
    rate = _validate.positive(learning_rate=learning_rate)
    difference, roundoff = _vector(width, weight_difference=weight_difference)
    if bias_difference is not None:
        bias, bias_roundoff = _vector(1, bias_difference=bias_difference)
        difference, roundoff = np.concatenate([difference, bias]), max(roundoff, bias_roundoff)
    if weights is None:
        return -difference / rate, roundoff, None
    held, _ = _validate.host_array(weights=weights)
    held = held.reshape(-1)
    if held.size < difference.size:
        raise ValueError(f"weights of size {held.size}: must be at least {difference.size}, the difference's size")
    # The updated weight is rounded once, its step once, and the difference once more.
    error = roundoff * (np.abs(held[: difference.size]) + 3.0 * np.abs(difference)) / rate
    return -difference / rate, roundoff, error


def _vector(size: int, **kwargs: Any) -> tuple[np.ndarray, float]:
    ((name, _),) = kwargs.items()
    value, roundoff = _validate.host_array(**kwargs)
    if value.shape not in {(size,), (1, size)} and not (size == 1 and value.shape == ()):
        raise ValueError(f"{name} of shape {value.shape}: must be ({size},) or (1, {size}) to match the activations")
    return value.reshape(-1), roundoff


def _noise(noise_std: float | None, confidence: float | None) -> tuple[float | None, float]:
    noise = None if noise_std is None else _validate.non_negative(noise_std=noise_std)
    if noise:
        if confidence is None:
            raise ValueError("confidence: must be given with noise_std > 0, for example 0.99")
        return noise, _validate.open_probability(confidence=confidence)
    if confidence is not None:
        raise ValueError("confidence: only with noise_std > 0")
    return noise, 0.0


def _roundoff(unit_roundoff: float) -> float:
    value = _validate.open_probability(unit_roundoff=unit_roundoff)
    return max(value, 2.0**-53)


def _rounding(
    rows: np.ndarray,
    residuals: np.ndarray,
    leverage: np.ndarray,
    identifiable: np.ndarray,
    roundoff: float,
    *,
    stored: np.ndarray | float,
    passes: int,
) -> np.ndarray:
    """How far rounding in the computation of the gradient can move each residual.

    The true |e| appears in its own error bound. It is at most 1, which gives a first bound. Without noise |e| is at
    most |residual| + bound, which gives a better one; the third pass changes nothing that matters.
    """
    terms = (rows.shape[0] + 8) * roundoff
    if terms >= 1:
        return np.full(residuals.shape, np.inf)
    growth = terms / (1.0 - terms)
    magnitudes = np.abs(rows)
    e = np.ones(residuals.shape)
    for _ in range(passes):
        error = growth * (magnitudes.T @ e) + stored
        bound = np.sqrt(leverage) * np.linalg.norm(error)
        e = np.where(identifiable, np.minimum(1.0, np.abs(residuals) + bound), 1.0)
    return np.asarray(bound)


def _condition(rows: np.ndarray, rank: int) -> float:
    if rank == 0:
        return math.inf
    singular = np.linalg.svd(rows, compute_uv=False)
    return float(singular[0] / singular[rank - 1])


def _attacker(has_model: bool, difference: bool, bias: bool) -> str:
    knows = "the model and the batch's inputs" if has_model else "the inputs of the last layer for the batch"
    what = "the weight difference of one plain SGD step" if difference else "the aggregated gradient"
    return f"knows {knows}; sees {what} of the last layer's weights" + (" and bias" if bias else "")


def _notes(noise: float | None, confidence: float, unknown_weights: bool) -> tuple[str, ...]:
    notes = ["binary labels, logistic loss, one logit"]
    if noise is None:
        notes.append("the noise level is not known: labels are named by sign, and only rounding makes one undetermined")
    elif noise == 0:
        notes.append("the gradient is exact up to rounding")
    else:
        notes.append(f"independent Gaussian noise of standard deviation {noise:g} per coordinate")
        notes.append(f"no determined label is wrong with probability at least {confidence:g} over the noise")
    if unknown_weights:
        notes.append("the rounding of the stored weights is not in the tolerance, because the weights were not given")
    return tuple(notes)
