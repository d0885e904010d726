"""Gradients of any torch model, layer by layer: of single samples, or averaged over groups of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate as check
from leakcore._base.quiet import quiet_batching

if TYPE_CHECKING:
    import torch

    from leakcore.gradients.layered_model import LayeredModel

_BYTES = 2**28
"""Memory for gradients in the model's precision at a time, in addition to the result."""


def layer_gradients(
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    batches: Any = None,
    layers: Sequence[str] | None = None,
    weights_only: bool = False,
) -> dict[str, np.ndarray]:
    """What each sample, or each batch, releases of each layer.

    Args:
        model: any module that `torch.func` can differentiate; in eval mode if it has batch norm or dropout. A layer is
            a submodule with parameters of its own; its weight and bias are flattened and concatenated.
        inputs: (n, ...) in the model's dtype and on its device.
        targets: (n, ...).
        loss: `loss(outputs, targets)` of a batch of one, a scalar. None: cross-entropy (on a logit for one output).
        batches: (batches, size) integers, row numbers of `inputs`: the gradients are means over each batch. None: one
            row per sample.
        layers: names of the layers to compute; None: all.
        weights_only: return the first parameter of each layer alone, in its own shape (rows, out, ...).

    Returns:
        {layer: (rows, parameters of the layer) float32}.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an argument of another type.

    Guarantees:
        The result is deterministic for one machine, torch build and number of torch threads.
    """
    from leakcore.gradients.layered_model import LayeredModel

    return gradients_of_layers(
        LayeredModel.of(model, inputs, targets, loss=loss), batches=batches, layers=layers, weights_only=weights_only
    )


def gradients_of_layers(
    model: LayeredModel, *, batches: Any = None, layers: Sequence[str] | None = None, weights_only: bool = False
) -> dict[str, np.ndarray]:
    """`layer_gradients` of a model that has been checked already."""
    import torch

    if isinstance(layers, str):
        raise TypeError(f"`layers` must be a sequence of names, as [{layers!r}], got {layers!r}")
    if layers is not None and not len(layers):
        raise ValueError(f"`layers` must name at least one layer, got {layers!r}")
    for name in layers or ():
        check.one_of(*model.layers, layers=name)
    wanted = {name: group for name, group in model.layers.items() if layers is None or name in layers}
    number = len(model.inputs)
    index = np.arange(number)[:, None] if batches is None else _batches(batches, number)
    model.require_outputs()
    out: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    with model.lock:
        gradient = _per_sample(model, model.parameters(list(wanted)))
        size = sum(p.numel() for group in wanted.values() for p in group.values()) * model.inputs.element_size()
        step = max(1, _BYTES // (size * index.shape[1]))
        for start in range(0, len(index), step):
            rows = torch.from_numpy(index[start : start + step])
            of_rows = gradient(model.inputs[rows.reshape(-1)], model.targets[rows.reshape(-1)])
            for name, group in wanted.items():
                keys = list(group)[:1] if weights_only else list(group)
                parts = [of_rows[k].reshape(*rows.shape, *of_rows[k].shape[1:]).mean(1) for k in keys]
                joined = parts[0] if weights_only else torch.cat([p.reshape(len(p), -1) for p in parts], 1)
                out[name].append(joined.float().cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in out.items()}


def _per_sample(
    model: LayeredModel, names: Sequence[str]
) -> Callable[[torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]]:
    """(inputs, targets) → {parameter: (samples, ...)} gradients of single samples with respect to these parameters.

    Sample by sample where torch cannot batch a layer (an LSTM in float64).
    """
    import torch

    value, own = model.loss_of_row(names)
    of_one = torch.func.grad(value)
    mapped = torch.func.vmap(of_one, in_dims=(None, 0, 0))

    def gradient(x: torch.Tensor, y: torch.Tensor) -> Mapping[str, torch.Tensor]:
        with quiet_batching():
            try:
                every: Mapping[str, torch.Tensor] = mapped(own, x, y)
            except RuntimeError:
                before = torch.get_rng_state()
                single = [of_one(own, *row) for row in zip(x, y, strict=True)]
                if not torch.equal(before, torch.get_rng_state()):  # it draws random numbers, which is what vmap says
                    torch.set_rng_state(before)
                    raise
                return {name: torch.stack([g[name] for g in single]) for name in own}
        return every

    return gradient


def _batches(batches: Any, rows: int) -> np.ndarray:
    index = check.even_array(batches=batches)
    if index.dtype.kind not in "iu" or index.ndim != 2 or 0 in index.shape:
        raise ValueError(f"`batches` must be (batches, size) integers, got shape {index.shape}, {index.dtype}")
    if index.min() < 0 or index.max() >= rows:
        raise ValueError(f"`batches` must lie in [0, {rows - 1}], got values in [{index.min()}, {index.max()}]")
    return index.astype(np.int64)
