"""Gradients of any torch model, layer by layer: of single samples, or averaged over groups of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate as check
from leakcore._base.quiet import quiet_batching
from leakcore.gradients.functional import Functional
from leakcore.gradients.module_lock import locked

if TYPE_CHECKING:
    import torch

_BYTES = 2**28
"""Gradients held in the model's precision at once, beside the result."""


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """A model with what it is evaluated on, checked."""

    model: torch.nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor


def named_tensor(**named: Any) -> torch.Tensor:
    """The one array as a tensor; TypeError names it where torch makes none of it, or it holds no numbers."""
    from leakcore.gradients.flat_module import tensor

    ((name, value),) = named.items()
    return tensor(value, name)


def criterion(loss: Any) -> Callable[[Any, Any], Any]:
    """The loss, cross-entropy where it is None; TypeError where it is no function."""
    if loss is None:
        from leakcore.gradients.flat_module import mean_cross_entropy

        return mean_cross_entropy
    if not callable(loss):
        raise TypeError(f"loss={type(loss).__name__}: must be a function of outputs and targets, or None")
    return loss  # type: ignore[no-any-return]


def as_classes(loss: Any, targets: torch.Tensor) -> torch.Tensor:
    """Targets as cross-entropy wants them where the loss is None: class numbers in 64 bits, or probabilities."""
    import torch

    if loss is not None:
        return targets
    if targets.ndim == 1 and (targets.is_floating_point() or targets.dtype == torch.bool):
        raise ValueError(f"targets: of {targets.dtype}, cross-entropy needs class numbers, integers")
    return targets if targets.is_floating_point() else targets.long()


def targets_of(loss: Any, targets: torch.Tensor, outputs: Any) -> torch.Tensor:
    """`as_classes`; ValueError where a class is none of the model, whose outputs for some input these are, or None."""
    from leakcore.gradients.flat_module import require_classes

    wanted = as_classes(loss, targets)
    if loss is None:
        require_classes(wanted, outputs, "targets")
    return wanted


@locked
def first_output(model: torch.nn.Module, inputs: torch.Tensor) -> Any:
    """Of one row; None where the model does not run: what differentiates it names the layer."""
    import torch

    with contextlib.suppress(RuntimeError), torch.no_grad():
        return model(inputs[:1])


@locked
def batch_of(model: Any, inputs: Any, targets: Any) -> Batch:
    """inputs (n, ...) floating, in the model's dtype and on its device, targets (n, ...); else an error."""
    import torch

    from leakcore.gradients.flat_module import require_still

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model={type(model).__name__}: must be a torch.nn.Module")
    anchor = next((p for p in model.parameters() if p.requires_grad), None)
    if anchor is None:
        raise ValueError("model: has no parameters that require grad, hence no gradient")
    x, y = named_tensor(inputs=inputs).detach(), named_tensor(targets=targets).detach()
    if x.ndim < 2 or x.numel() == 0 or not x.is_floating_point():
        raise ValueError(
            f"inputs.shape={tuple(x.shape)}, dtype={x.dtype}: must be (samples, ...), floating, at least one"
        )
    if y.ndim == 0 or len(y) != len(x):
        raise ValueError(f"targets.shape={tuple(y.shape)}: must hold one target for each of {len(x)} inputs")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("inputs: must be finite")
    if x.dtype != anchor.dtype or x.device != anchor.device:
        raise ValueError(f"inputs: {x.dtype} on {x.device}, the model has {anchor.dtype} on {anchor.device}")
    require_still(model)
    return Batch(model, x, y.to(anchor.device))


@locked
def parameters_by_layer(model: torch.nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """{layer: {parameter's full name: tensor}}: submodules with parameters of their own that require grad, in order."""
    seen: set[int] = set()
    layers: dict[str, dict[str, torch.Tensor]] = {}
    itself = type(model).__name__
    if itself in dict(model.named_modules()):
        itself += "()"  # a submodule has that name
    for name, module in model.named_modules():
        own = {
            f"{name}.{key}" if name else key: p.detach()
            for key, p in module.named_parameters(recurse=False)
            if p.requires_grad and id(p) not in seen
        }
        seen.update(id(p) for p in module.parameters(recurse=False))
        if own:
            layers[name or itself] = own
    return layers


@locked
def layer_gradients(
    model: torch.nn.Module,
    loss: Callable[[Any, Any], Any] | None,
    inputs: Any,
    targets: Any,
    *,
    batches: Any = None,
    layers: Sequence[str] | None = None,
    weights_only: bool = False,
) -> dict[str, np.ndarray]:
    """{layer: (rows, parameters of the layer) float32}: what each sample, or each batch, releases of each layer.

    model: any module that `torch.func` can differentiate, in eval mode where it has batch norm or dropout. A layer is a
        submodule with parameters of its own; its weight and bias are flattened and put side by side.
    loss: loss(outputs, targets) of a batch of one, a scalar; None: cross-entropy (of a logit, where
        there is one output).
    inputs: (n, ...) in the model's dtype and on its device. targets: (n, ...).
    batches: (batches, size) integers, rows of `inputs`: the gradients are means over each; None: one row per sample.
    layers: only these of them. weights_only: the layer's first parameter alone, in its own shape (rows, out, ...).

    Deterministic on a machine, torch build and number of torch threads. Raises ValueError or TypeError that names the
    argument.
    """
    import torch

    data = batch_of(model, inputs, targets)
    groups = parameters_by_layer(model)
    if isinstance(layers, str):
        raise TypeError(f"layers={layers!r}: must be a sequence of names, as [{layers!r}]")
    if layers is not None and not len(layers):
        raise ValueError("layers: must name at least one layer")
    for name in layers or ():
        check.one_of(*groups, layers=name)
    wanted = {name: group for name, group in groups.items() if layers is None or name in layers}
    index = np.arange(len(data.inputs))[:, None] if batches is None else _batches(batches, len(data.inputs))
    try:
        with torch.no_grad():
            outputs = model(data.inputs[:1])
    except RuntimeError as why:
        raise ValueError(f"inputs of shape {tuple(data.inputs.shape)}: do not fit the model ({why})") from why
    y = targets_of(loss, data.targets, outputs)
    gradient = per_sample(model, loss, [key for group in wanted.values() for key in group])
    size = sum(p.numel() for group in wanted.values() for p in group.values()) * data.inputs.element_size()
    step = max(1, _BYTES // (size * index.shape[1]))
    out: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    for start in range(0, len(index), step):
        rows = torch.from_numpy(index[start : start + step])
        found = gradient(data.inputs[rows.reshape(-1)], y[rows.reshape(-1)])
        for name, group in wanted.items():
            keys = list(group)[:1] if weights_only else list(group)
            parts = [found[k].reshape(*rows.shape, *found[k].shape[1:]).mean(1) for k in keys]
            joined = parts[0] if weights_only else torch.cat([p.reshape(len(p), -1) for p in parts], 1)
            out[name].append(joined.float().cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in out.items()}


def per_sample(
    model: torch.nn.Module, loss: Callable[[Any, Any], Any] | None, names: Sequence[str]
) -> Callable[[torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]]:
    """(inputs, targets) → {parameter: (samples, ...)} gradients of single samples with respect to these parameters.

    Sample by sample where torch cannot batch a layer (an LSTM in float64).
    """
    import torch

    measure = criterion(loss)
    function = Functional(model, names)

    def value(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = measure(function(parameters, x[None]), y[None])
        return out

    of_one = torch.func.grad(value)
    mapped = torch.func.vmap(of_one, in_dims=(None, 0, 0))

    def gradient(x: torch.Tensor, y: torch.Tensor) -> Mapping[str, torch.Tensor]:
        with quiet_batching():
            try:
                found: Mapping[str, torch.Tensor] = mapped(function.own, x, y)
            except RuntimeError:
                before = torch.get_rng_state()
                single = [of_one(function.own, *row) for row in zip(x, y, strict=True)]
                if not torch.equal(before, torch.get_rng_state()):  # it draws random numbers, which is what vmap says
                    torch.set_rng_state(before)
                    raise
                return {name: torch.stack([g[name] for g in single]) for name in function.own}
        return found

    return gradient


def _batches(batches: Any, rows: int) -> np.ndarray:
    index = check.even_array(batches=batches)
    if index.dtype.kind not in "iu" or index.ndim != 2 or 0 in index.shape:
        raise ValueError(f"batches.shape={index.shape}, dtype={index.dtype}: must be (batches, size) integers")
    if index.min() < 0 or index.max() >= rows:
        raise ValueError(f"batches span [{index.min()}, {index.max()}]: must lie in [0, {rows - 1}]")
    return index.astype(np.int64)
