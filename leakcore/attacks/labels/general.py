"""Labels from one aggregated gradient of any weights (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from leakcore.attacks.labels.attacker_knows import known_of_arrays, known_of_jacobian
from leakcore.attacks.labels.attacker_sees import read_seen
from leakcore.attacks.labels.recover import recover
from leakcore.attacks.labels.result import LabelRecovery
from leakcore.attacks.labels.solving.linear_system import stored_roundoff
from leakcore.attacks.labels.solving.logit_jacobian import logit_jacobian

if TYPE_CHECKING:
    import torch


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
    """Labels of a batch from the aggregated gradient of any weights.

    Yuan, Xue, Wang and Shen (2022), Algorithm 1: e = p − y solves dL/dW = (1/N) C e (their equation 1), C's column r
    the derivative dZ_r/dW of the logit, and y = 1{e < 0}. With K logits and softmax cross-entropy every row has K
    residuals, which sum to 0: N·(K − 1) unknowns, so as many weights are needed, and the label is the class whose
    residual is negative.

    What the attacker knows, one of:

    jacobian: (N, d), row r = dZ_r/dW (that is Cᵀ); (S, N, d) for S observed steps of the same batch. One logit, or K
        logits with a weight vector each that share these rows, as the last layer's.
    model, inputs, parameters: a torch module with one or K logits (or the sigmoid or softmax of its last linear layer),
        the batch's inputs, and the names of the parameters that are seen (`model.named_parameters()`), all of them by
        default; their derivatives are computed by reverse mode, N·K times as large as the parameters, and joined in
        that order.

    What the attacker sees, one of:

    gradient: (d,); (K, d) with a jacobian that serves K weight vectors; or with `parameters` one array of the
        parameter's shape, or a sequence of one per parameter in that order, or a mapping from names.
        weight_difference: likewise; lr, optimizer and weights as in `last_layer` (weights are taken from `model`;
        otherwise of the difference's shape).

    known_probs, max_grad_norm and what belongs to it, several steps, reduction, batch_size, noise_std, confidence,
    unit_roundoff, rcond, what is identifiable and determined, errors and determinism: as in `last_layer`.
    known_probs=True needs `model`.
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
        unit_roundoff=stored_roundoff(known.roundoff, unit_roundoff),
    )
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
        part="some weights",
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 1",
    )
