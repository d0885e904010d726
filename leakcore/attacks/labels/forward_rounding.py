"""What an attacker who holds the model recomputes, and how far rounding may put that from the victim's numbers.

Two float32 evaluations of one model differ by the order of their sums. How much cannot be read off the model, but it
can be measured: the distance between the model's own precision and float64, times four (two evaluations, each trusted
to twice the measured distance). A float64 model is measured against float32 and scaled by the ratio of the roundoffs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from leakcore import kernels
from leakcore._base import validate
from leakcore.attacks.arguments import coarsest_roundoff
from leakcore.gradients import evaluate, locked, require_memory

SAFETY = 4.0


@dataclasses.dataclass(frozen=True, eq=False)
class LastLayer:
    """The last linear layer: its inputs `activations` (N, d), weights (K, d + 1) with the bias last, and logits (N, K).

    activation_error: (N,), logit_error: (N, K): how far the victim's may be, from rounding.
    roundoff: unit roundoff of the model's type. Arrays are float64.
    """

    activations: np.ndarray
    weights: np.ndarray
    logits: np.ndarray
    activation_error: np.ndarray
    logit_error: np.ndarray
    roundoff: float


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenLayer:
    """The linear layer before the last, with p units: rows (N, d) are its inputs, row_error (N,) their error.

    slope: (N, p) derivative of what lies between it and the last layer, where rounding makes it uncertain the largest
    it may be. slope_error: (N, p), 0 but where the derivative's sign is uncertain: there slope is 0, and this is how
    large the derivative may be. weights: (1, p, d + 1), the bias last, or None. who: what the attacker knows, in words.
    """

    rows: np.ndarray
    slope: np.ndarray
    row_error: np.ndarray
    slope_error: np.ndarray
    weights: np.ndarray | None
    roundoff: float
    who: str


class _LayerCall(NamedTuple):
    layer: torch.nn.Linear
    entering: torch.Tensor
    output: torch.Tensor


@locked
def last_linear(model: torch.nn.Module, inputs: Any) -> LastLayer:
    """Run `model` on `inputs` in its present mode, on copies of its state, and capture what enters its last `Linear`.

    ValueError where no layer is linear, where one is random, where the output is neither that layer's nor its sigmoid
    or softmax, where its weights are used in another place, too, or where the model does not run in another precision.
    """
    calls, entering, logits, entering_error, logit_error = _recomputed(model, inputs, -1)
    return LastLayer(
        activations=entering,
        weights=_weights(calls[-1].layer),
        logits=logits,
        activation_error=entering_error,
        logit_error=logit_error,
        roundoff=roundoff_of(precisions(model)[0]),
    )


@locked
def hidden_linear(model: torch.nn.Module, inputs: Any) -> HiddenLayer:
    """The layer before the last and the derivative of what lies between, likewise; ValueError if not elementwise."""
    calls, entering, _, entering_error, z_error = _recomputed(model, inputs, -2)
    dtype, z = precisions(model)[0], calls[-2].output
    weights, roundoff = _weights(calls[-2].layer), roundoff_of(dtype)
    magnitude = np.abs(entering) @ np.abs(weights[:, :-1]).T + np.abs(weights[:, -1])
    band = z_error + (entering.shape[1] + 8) * roundoff * magnitude
    # Rounding may have moved z within a band, and the victim's derivative lies between the ones at the band's ends. If
    # these have one sign, it is c times the largest with c in [0, 1], and the solved residual c·e keeps the sign of e.
    slopes = np.stack([_slope(model, inputs, dtype, len(calls), z, shift) for shift in (0.0, band, -band)])
    largest = np.take_along_axis(slopes, np.abs(slopes).argmax(axis=0)[None], axis=0)[0]
    crossing = (slopes.min(axis=0) < 0) & (slopes.max(axis=0) > 0)
    return HiddenLayer(
        rows=entering,
        slope=np.where(crossing, 0.0, largest),
        row_error=entering_error,
        slope_error=np.where(crossing, np.abs(largest), 0.0),
        weights=weights[None] if len(weights) == slopes.shape[2] else None,
        roundoff=roundoff,
        who="the model up to its last layer and the batch's inputs",
    )


def _recomputed(
    model: torch.nn.Module, inputs: Any, at: int
) -> tuple[list[_LayerCall], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All linear calls; of call `at`, −1 or −2, inputs (N, d) and outputs (N, p), and their errors (N,) and (N, p)."""
    check_model(model)
    dtype, other, ratio = precisions(model)
    calls = _linear_calls(model, inputs, dtype, -at)
    second = _linear_calls(model, inputs, other, -at)[at]
    _require_single_use(model, inputs, calls, at)
    entering, output = _host(calls[at].entering), _host(calls[at].output)
    entering_error = SAFETY * ratio * np.linalg.norm(entering - _host(second.entering), axis=1)
    return calls, entering, output, entering_error, SAFETY * ratio * np.abs(output - _host(second.output))


def _weights(layer: torch.nn.Linear) -> np.ndarray:
    """(outputs, inputs + 1), the bias last, zeros where there is none."""
    weight = _host(layer.weight)
    return np.asarray(np.c_[weight, np.zeros(len(weight)) if layer.bias is None else _host(layer.bias).reshape(-1)])


def check_model(model: Any) -> None:
    """Refuse what is not a module, and modules whose forward pass is random in their present mode."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    require_memory(model)
    random_layers = (torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU)
    for name, module in model.named_modules():
        if module.training and isinstance(module, random_layers):
            raise ValueError(
                f"model: layer {name!r} is random in training mode, so its output is not known; use eval()"
            )


@locked
def precisions(model: torch.nn.Module) -> tuple[torch.dtype, torch.dtype, float]:
    """The model's own type, the one to measure its rounding against, and the factor from that distance to rounding."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if own == torch.float64:
        return own, torch.float32, 2.0**-29
    return own, torch.float64, 1.0


def roundoff_of(dtype: torch.dtype) -> float:
    """Unit roundoff of a torch type."""
    return float(torch.finfo(dtype).eps) / 2


@locked
def cast_state(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Copies of the model's parameters and buffers, the floating ones as `dtype`."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {n: (t.detach().to(dtype) if t.is_floating_point() else t.detach()).clone() for n, t in tensors}


def cast_inputs(inputs: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the inputs, as `dtype` if they are floating; ValueError where there are none."""
    from leakcore.gradients import tensor as read

    tensor = read(inputs, "inputs")
    if tensor.ndim == 0 or len(tensor) == 0:
        raise ValueError(f"`inputs` must hold at least one row, got shape {tuple(tensor.shape)}")
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def same_as_logits(prediction: Any, logits: torch.Tensor) -> bool:
    """Whether a model's output is the logits, or their sigmoid (one logit), softmax or log-softmax (several)."""
    if not isinstance(prediction, torch.Tensor) or prediction.numel() != logits.numel():
        return False
    forms = [logits]
    forms += [logits.sigmoid()] if logits.shape[-1] == 1 else [logits.softmax(-1), logits.log_softmax(-1)]
    rough = 1e-5 if logits.dtype in (torch.float32, torch.float64) else 1e-2
    return any(torch.allclose(prediction.flatten(), m.flatten(), rtol=rough, atol=rough * 1e-3) for m in forms)


@locked
def forward(
    model: torch.nn.Module,
    state: dict[str, torch.Tensor],
    inputs: torch.Tensor,
    *,
    replace: tuple[int, torch.Tensor] | None = None,
) -> tuple[Any, list[_LayerCall]]:
    """The prediction and every call of a linear layer, in order; replace: (i, output) puts another output at call i."""
    calls: list[_LayerCall] = []

    def record(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        assert isinstance(module, torch.nn.Linear)
        calls.append(_LayerCall(module, args[0], output))
        # The next layer receives a copy: it may work in place, and the record must not change.
        return (replace[1] if replace is not None and len(calls) - 1 == replace[0] else output).clone()

    before = torch.get_rng_state()
    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                hooks.enter_context(module.register_forward_hook(record))
        prediction = evaluate(model, state, inputs)
    if not torch.equal(before, torch.get_rng_state()):
        _require_the_same(prediction, lambda: evaluate(model, state, inputs), before)
    return prediction, calls


def _require_the_same(prediction: Any, again: Callable[[], Any], before: torch.Tensor) -> None:
    """ValueError where the model, run with other random numbers, predicts something else. The generator is put back."""
    try:
        for repetition in range(2):
            torch.set_rng_state(kernels.torch_generator(0, kernels.Stream.REDRAW_PROBE, step=repetition).get_state())
            other = again()
            if isinstance(prediction, torch.Tensor) and not torch.equal(prediction, other):
                raise ValueError(
                    "model: its output depends on random numbers that it draws, so it is not known; use eval()"
                )
    finally:
        torch.set_rng_state(before)


def _linear_calls(model: torch.nn.Module, inputs: Any, dtype: torch.dtype, at_least: int) -> list[_LayerCall]:
    own = precisions(model)[0]
    try:
        with torch.no_grad():
            prediction, calls = forward(model, cast_state(model, dtype), cast_inputs(inputs, dtype))
    except RuntimeError as error:
        if dtype == own:
            raise ValueError(f"model: does not run on these inputs ({error})") from None
        raise ValueError(
            f"model: does not run in {dtype}, which is needed to measure its rounding ({error}); pass activations= "
            "instead"
        ) from None
    if len(calls) < at_least:
        count = "no torch.nn.Linear layer" if not calls else "only one torch.nn.Linear layer"
        raise ValueError(f"model: has {count}; pass activations= instead")
    if not same_as_logits(prediction, calls[-1].output):
        raise ValueError(
            "model: its output is neither the output of its last linear layer nor the sigmoid or softmax of it, so "
            "that layer's inputs are not dZ/dW; pass activations= instead"
        )
    return calls


def _probe(shape: Sequence[int]) -> torch.Tensor:
    """Weights in (½, 3/2) that tell outputs apart, the same at every call."""
    source = kernels.torch_generator(0, kernels.Stream.SLOPE_PROBE)
    return torch.rand(tuple(shape), generator=source, dtype=torch.float64) + 0.5


def _require_single_use(model: torch.nn.Module, inputs: Any, calls: list[_LayerCall], at: int) -> None:
    """ValueError where the weights of linear call `at` act elsewhere, too: their gradient is then the sum of uses."""
    layer = calls[at].layer
    parameters = {id(p): n for n, p in model.named_parameters()}
    names = [parameters[id(p)] for p in (layer.weight, layer.bias) if p is not None and id(p) in parameters]
    if not names:
        # The layer computes its weight from other parameters, for itself alone unless it is called twice.
        if sum(call.layer is layer for call in calls) > 1:
            raise _used_twice("weight")
        return
    with torch.inference_mode(False), torch.enable_grad():
        state = cast_state(model, torch.float64)
        leaves = [state[n].requires_grad_() for n in names]
        _, traced = forward(model, state, cast_inputs(inputs, torch.float64).clone())
        z, last = traced[at].output, traced[-1].output
        if not (z.requires_grad and last.requires_grad):
            return  # a forward pass without a graph trains nothing
        weights = _probe(last.shape)
        loss = (last * weights.to(last.device)).sum()
        *whole, above = torch.autograd.grad(loss, [*leaves, z], materialize_grads=True)
    above = above.reshape(-1, above.shape[-1])
    entering = traced[at].entering.detach().reshape(len(above), -1)
    for name, all_uses in zip(names, whole, strict=True):
        alone = above.T @ entering if all_uses.ndim == 2 else above.sum(dim=0)
        if not float((all_uses - alone).norm()) <= 1e-6 * float(alone.norm() + all_uses.norm()):
            raise _used_twice(name)


def _used_twice(name: str) -> ValueError:
    return ValueError(
        f"model: parameter {name!r} is used more than once, so its gradient is a sum over its uses and this layer's "
        "inputs are not dZ/dW; use general(model=...), which differentiates them all"
    )


def _slope(
    model: torch.nn.Module, inputs: Any, dtype: torch.dtype, count: int, z: torch.Tensor, shift: np.ndarray | float
) -> np.ndarray:
    """Derivative of the last layer's inputs by the outputs of the one before it, at z + shift."""
    at = (z.detach().double() + torch.as_tensor(shift, device=z.device).reshape(z.shape if np.ndim(shift) else ())).to(
        z.dtype
    )
    at.requires_grad_()
    with torch.enable_grad():
        _, calls = forward(model, cast_state(model, dtype), cast_inputs(inputs, dtype), replace=(count - 2, at))
        after = calls[-1].entering
        if after.shape != at.shape:
            raise ValueError(
                f"model: between its last two linear layers {tuple(at.shape)} becomes {tuple(after.shape)}"
            )
        weights = _probe(after.shape).to(after)
        (plain,) = torch.autograd.grad(after.sum(), at, retain_graph=True)
        (weighted,) = torch.autograd.grad((after * weights).sum(), at)
    rough = max(1e-4, 16.0 * roundoff_of(dtype))
    if not torch.allclose(weighted, plain * weights, rtol=rough, atol=1e-3 * rough):
        raise ValueError(
            "model: what lies between its last two linear layers is not elementwise, so one unit's gradient depends on "
            "the weights of others; pass activations= and derivatives= instead, or use general()"
        )
    return _host(plain)


def _host(tensor: torch.Tensor) -> np.ndarray:
    array = tensor.detach().double().cpu().numpy()
    return array.reshape(-1, array.shape[-1])


@dataclasses.dataclass(frozen=True, eq=False)
class LogitJacobian:
    """jacobian: (N, K, d); error: (N, K) how far each row may be from the victim's; weights: (d,); logits: (N, K).
    names, shapes: the parameters whose entries are joined along d. All arrays float64."""

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
            return torch.cat(parts)
        return np.concatenate([np.asarray(p) for p in parts])


@locked
def logit_jacobian(model: torch.nn.Module, inputs: Any, parameters: str | Sequence[str] | None) -> LogitJacobian:
    """By reverse mode, a row per sample and logit, batch normalisation's coupling of the rows included."""
    check_model(model)
    own = dict(model.named_parameters())
    names = tuple(own) if parameters is None else (parameters,) if isinstance(parameters, str) else tuple(parameters)
    if not names:
        raise ValueError("`parameters` must name at least one parameter")
    for name in names:
        if name not in own:
            raise ValueError(f"`parameters` must be some of the model's, {', '.join(own)}, got {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"`parameters` must name each parameter once, got {name!r} twice")
    dtype, other, ratio = precisions(model)
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
    scale = SAFETY * ratio
    return LogitJacobian(
        jacobian=jacobian,
        error=scale * np.linalg.norm(jacobian - again, axis=2),
        weights=np.concatenate([own[n].detach().double().cpu().numpy().reshape(-1) for n in names]),
        logits=logits,
        logit_error=scale * np.abs(logits - other_logits),
        names=names,
        shapes=tuple(tuple(own[n].shape) for n in names),
        roundoff=roundoff_of(dtype),
    )


def _evaluate(
    model: torch.nn.Module, inputs: Any, names: tuple[str, ...], dtype: torch.dtype
) -> tuple[np.ndarray, np.ndarray]:
    state = cast_state(model, dtype)
    batch = cast_inputs(inputs, dtype)
    leaves = [state[n].requires_grad_() for n in names]
    with torch.enable_grad():
        prediction, calls = forward(model, state, batch)
        if calls and same_as_logits(prediction, calls[-1].output):
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
