"""Labels from one aggregated gradient of the last layer (Algorithm 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from leakcore.attacks.labels.attacker_knows import known_of_last_layer
from leakcore.attacks.labels.attacker_sees import read_seen
from leakcore.attacks.labels.recover import recover
from leakcore.attacks.labels.result import LabelRecovery
from leakcore.attacks.labels.solving.linear_system import stored_roundoff

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
    max_grad_norm: float | None = None,
    grad_norms: Any = None,
    clip_slack: float | None = None,
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
        the system. A label counts as determined only with a certificate that no other point of the box fits. residuals
        are those of the relaxed solution.
    max_grad_norm, grad_norms, clip_slack: with known_probs (one logit), how each sample's gradient was clipped: times
        min(1, C/(norm + clip_slack)) (Opacus: clip_slack=1e-6). Each residual is then one of two values that C fixes as
        well, and determined labels are proved as before. grad_norms: (2, N), or (S, 2, N): joint norms of each sample's
        gradient under both labels, in either order, over all parameters clipped together; default: these weights alone
        are clipped. Without known_probs clipping needs no word: it keeps every sign.
    Several observed steps of the same batch: activations (S, N, d), gradient (S, d) or (S, K, d), known_probs (S, N) or
        (S, N, K); or a list of S models. Without known_probs each step is solved by itself and the labels are joined;
        with them all steps share one y and are stacked, which multiplies the rank.

    How it was made:

    reduction, batch_size: "mean": the aggregate is the sum over samples divided by `batch_size` (default N; Opacus
        divides by the *expected* batch size). "sum": not divided, as `clip_and_noise(...).sum`. Residuals (and what
        known_probs makes of them) depend on it, signs do not.
    noise_std: standard deviation of independent Gaussian noise in each coordinate of what is seen (for a weight
        difference: of the gradient that it implies). 0: none. None: unknown; labels are then named by sign and the
        result is an estimate.
    confidence: with noise_std > 0: the probability, over the noise, that *no* determined label is wrong. The
        threshold is noise_std·batch_size·√v_r·Φ⁻¹(1 − (1 − confidence)/n), v the leverages, n the number of
        identifiable residuals (union bound); with known_probs, the χ quantile of the whole noise vector.
    unit_roundoff: of the arithmetic that computed the gradient, 2⁻²⁴ for float32. Default: the coarsest of the given
        arrays and the model. Set it where the arithmetic was coarser than the dtype shows (TF32: 2⁻¹¹), or where a
        float64 weight_difference is of weights that were stored more coarsely and no model or weights= show it.
    rcond: singular values below rcond times the largest count as zero. Default 2·max(N, d)·unit_roundoff.

    A row is identifiable when its residual is a linear function of the gradient: not for zero rows, rows that are
    combinations of others, or when N > d. It is determined when, in addition, |residual| exceeds `tolerance`: with u
    the unit roundoff, the gradient's rounding is at most γ(1/N)Σ_r|X_r||e_r|, γ = (N + 8)u/(1 − (N + 8)u), and moves
    residual r by at most N√v_r times its norm. A saturated model, whose p rounds to y, therefore gives −1 and no
    guess.

    A gradient that no residuals make (a stale model, another mode or other inputs, a sum said to be a mean) leaves a
    misfit beyond rounding and noise, or residuals beyond [-1, 1]: then nothing is determined, and the result is an
    estimate whose notes say so.

    Raises ValueError or TypeError that names the argument for bad shapes, non-finite values, a mix of both kinds of
    input, or an empty batch. Deterministic, for a machine and its number of BLAS threads; float64 on the CPU whatever
    the inputs' dtype; returns NumPy arrays.
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
        unit_roundoff=stored_roundoff(known.roundoff, unit_roundoff),
    )
    if seen.with_bias:
        ones = np.ones((*known.rows.shape[:2], 1))
        known = dataclasses.replace(known, rows=np.concatenate([known.rows, ones], axis=2))
    part = "the last layer's weights" + (" and bias" if seen.with_bias else "")
    return recover(
        known,
        seen,
        max_grad_norm=max_grad_norm,
        grad_norms=grad_norms,
        clip_slack=clip_slack,
        reduction=reduction,
        batch_size=batch_size,
        noise_std=noise_std,
        confidence=confidence,
        unit_roundoff=unit_roundoff,
        rcond=rcond,
        part=part,
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 3",
    )
