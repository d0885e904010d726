"""dZ_rk/dW of a torch module for every row and logit of a batch and the parameters that an attacker sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate
from leakcore.attacks.labels.solving import forward_rounding
from leakcore.attacks.stored_precision import coarsest_roundoff
from leakcore.gradients import locked

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, eq=False)
class LogitJacobian:
    """jacobian: (N, K, d); error: (N, K) how far each row may be from the victim's; weights: (d,); logits: (N, K).

    names, shapes: the parameters whose entries are joined along d. All arrays float64.
    """

    jacobian: np.ndarray
    error: np.ndarray
    weights: np.ndarray
    logits: np.ndarray
    logit_error: np.ndarray
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    roundoff: float

    def roundoff_of(self, value: Any) -> float:
        """The coarsest unit roundoff among the parameters' parts of a gradient, by their types and by their numbers."""
        parts = list(value.values()) if isinstance(value, Mapping) else value
        parts = list(parts) if isinstance(parts, (list, tuple)) else [parts]
        arrays = [validate.host_array(gradient=part)[0] for part in parts]
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        if len(arrays) == 1 and arrays[0].shape == (sum(sizes),):
            arrays = np.split(arrays[0], np.cumsum(sizes)[:-1])
        return coarsest_roundoff(arrays, max(validate.roundoff(part) for part in parts))

    def join(self, name: str, value: Any) -> Any:
        """(d,) vector of one array, a sequence of them in the parameters' order, or a mapping from names."""
        if isinstance(value, Mapping):
            missing = [n for n in self.names if n not in value]
            if missing:
                raise ValueError(f"`{name}` must hold the parameter {missing[0]!r}")
            value = [value[n] for n in self.names]
        if not isinstance(value, (list, tuple)) or not all(np.ndim(v) or hasattr(v, "shape") for v in value):
            value = [value]
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        if len(value) == 1 and getattr(value[0], "shape", None) == (sum(sizes),):
            return value[0]
        if len(value) != len(self.names):
            raise ValueError(
                f"`{name}` must hold an array for each of the parameters {', '.join(self.names)}, got {len(value)}"
            )
        parts: list[Any] = []
        for array, parameter, shape in zip(value, self.names, self.shapes, strict=True):
            part = array if hasattr(array, "shape") else validate.plain_array(**{name: array})
            if tuple(part.shape) != shape and tuple(part.shape) != (int(np.prod(shape)),):
                raise ValueError(
                    f"`{name}` must have shape {shape} for parameter {parameter!r}, got {tuple(part.shape)}"
                )
            parts.append(part.reshape(-1))
        if len(parts) == 1:
            return parts[0]
        if all(hasattr(p, "requires_grad") for p in parts):
            import torch

            return torch.cat(parts)
        return np.concatenate([np.asarray(p) for p in parts])


@locked
def logit_jacobian(model: torch.nn.Module, inputs: Any, parameters: str | Sequence[str] | None) -> LogitJacobian:
    """By reverse mode, a row per sample and logit, batch normalisation's coupling of the rows included.

    Raises ValueError for unknown parameter names, an output that is not (N, K), and as `last_linear`.
    """
    forward_rounding.check_model(model)
    own = dict(model.named_parameters())
    names = tuple(own) if parameters is None else (parameters,) if isinstance(parameters, str) else tuple(parameters)
    if not names:
        raise ValueError("`parameters` must name at least one parameter")
    for name in names:
        if name not in own:
            raise ValueError(f"`parameters` must be some of the model's, {', '.join(own)}, got {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"`parameters` must name each parameter once, got {name!r} twice")
    dtype, other, ratio = forward_rounding.precisions(model)
    try:
        jacobian, logits = _evaluate(model, inputs, names, dtype)
    except RuntimeError as error:
        raise ValueError(f"`inputs` must be ones that the model runs on ({error})") from None
    try:
        again, other_logits = _evaluate(model, inputs, names, other)
    except RuntimeError as error:
        raise ValueError(
            f"model: does not run in {other}, which is needed to measure its rounding ({error}); pass jacobian= instead"
        ) from None
    scale = forward_rounding.SAFETY * ratio
    return LogitJacobian(
        jacobian=jacobian,
        error=scale * np.linalg.norm(jacobian - again, axis=2),
        weights=np.concatenate([own[n].detach().double().cpu().numpy().reshape(-1) for n in names]),
        logits=logits,
        logit_error=scale * np.abs(logits - other_logits),
        names=names,
        shapes=tuple(tuple(own[n].shape) for n in names),
        roundoff=forward_rounding.roundoff_of(dtype),
    )


def _evaluate(
    model: torch.nn.Module, inputs: Any, names: tuple[str, ...], dtype: torch.dtype
) -> tuple[np.ndarray, np.ndarray]:
    import torch

    state = forward_rounding.cast_state(model, dtype)
    batch = forward_rounding.cast_inputs(inputs, dtype)
    leaves = [state[n].requires_grad_() for n in names]
    with torch.enable_grad():
        prediction, calls = forward_rounding.forward(model, state, batch)
        if calls and forward_rounding.same_as_logits(prediction, calls[-1].output):
            prediction = calls[-1].output
        shape = tuple(prediction.shape) if isinstance(prediction, torch.Tensor) else type(prediction).__name__
        if not isinstance(prediction, torch.Tensor) or (
            prediction.numel() != len(batch) and (prediction.ndim != 2 or len(prediction) != len(batch) or 0 in shape)
        ):
            raise ValueError(f"`model` must return one or K logits per row, got shape {shape} for {len(batch)} rows")
        logits = prediction.reshape(-1)
        each = torch.eye(len(logits), dtype=logits.dtype, device=logits.device)
        rows = torch.autograd.grad(logits, leaves, each, is_grads_batched=True, allow_unused=True)
    joined = [
        np.zeros((len(logits), leaf.numel())) if row is None else row.double().cpu().numpy().reshape(len(logits), -1)
        for row, leaf in zip(rows, leaves, strict=True)
    ]
    jacobian = np.concatenate(joined, axis=1)
    if not np.isfinite(jacobian).all():
        raise ValueError("model: the derivatives of its logits are not finite on these inputs")
    values = logits.detach().double().cpu().numpy().reshape(len(batch), -1)
    return jacobian.reshape(*values.shape, -1), values
