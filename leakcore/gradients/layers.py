"""A torch model with its layers and the batch on which it is evaluated, and its gradients by layer.

torch is imported at the first call, not with this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate
from leakcore._base.process_wide import quiet_batching
from leakcore.gradients.functional import Functional, lock_of, locked

if TYPE_CHECKING:
    import torch

Loss = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class LayeredModel:
    """A model, its layers and a batch. `LayeredModel.of` checks and creates it.

    Attributes:
        module: the torch module.
        layers: {layer: {full name of the parameter: tensor}}, submodules with their own parameters that require grad,
            in order.
        inputs: (n, ...) floating, in the model's dtype and on its device.
        targets: (n, ...), as the loss takes them.
        loss: the caller's loss, None for cross-entropy.
        misfit: what the model raised when it was run on one row; None if it runs.
    """

    module: torch.nn.Module
    layers: Mapping[str, Mapping[str, torch.Tensor]]
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Loss | None
    misfit: RuntimeError | None = None

    @classmethod
    def of(
        cls, model: Any, inputs: Any, targets: Any, *, loss: Any = None, rows: str = "samples", least: int = 1
    ) -> LayeredModel:
        """Check everything, and create the model.

        A model that does not run on its inputs passes (`misfit`): the code that differentiates it says which layer
        fails.

        Args:
            model: a torch module.
            inputs: (n, ...).
            targets: (n, ...).
            loss: a function of outputs and targets, or None for cross-entropy.
            rows: what messages call the inputs.
            least: smallest number of inputs.

        Raises:
            ValueError, TypeError: for an argument that is not allowed, which the text names.
        """
        import torch

        from leakcore.gradients.checks import criterion, targets_of, tensor, trained_parameters

        with lock_of(model):
            anchor = next(iter(trained_parameters(model).values()))
            x, y = tensor(inputs, "inputs"), tensor(targets, "targets")
            if x.ndim < 2 or x.numel() == 0 or not x.is_floating_point() or len(x) < least:
                raise ValueError(
                    f"`inputs` must be floating of shape ({rows}, ...), {rows} at least {least}, got {x.dtype} of "
                    f"shape {tuple(x.shape)}"
                )
            if y.ndim == 0 or len(y) != len(x):
                raise ValueError(
                    f"`targets` must hold one target for each of {len(x)} inputs, got shape {tuple(y.shape)}"
                )
            finite = torch.isfinite(x).flatten(1).all(1)
            if not bool(finite.all()):
                at = int(finite.int().argmin())
                raise ValueError(f"`inputs[{at}]` must be finite, got a NaN or an infinity")
            if x.dtype != anchor.dtype or x.device != anchor.device:
                raise ValueError(
                    f"`inputs` must be {anchor.dtype} on {anchor.device}, as the model is, got {x.dtype} on {x.device}"
                )
            criterion(loss)
            outputs, misfit = None, None
            try:
                with torch.no_grad():
                    outputs = model(x[:1])
            except RuntimeError as why:
                misfit = why
            y = targets_of(loss, y.to(anchor.device), outputs)
            return cls(model, parameters_by_layer(model), x, y, loss, misfit)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(self.layers)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of parameters of each layer."""
        return tuple(sum(p.numel() for p in group.values()) for group in self.layers.values())

    @property
    def criterion(self) -> Loss:
        """The caller's loss, or else cross-entropy."""
        from leakcore.gradients.checks import criterion

        loss: Loss = criterion(self.loss)
        return loss

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Acquire it to swap the module's parameters or to register hooks."""
        lock: contextlib.AbstractContextManager[Any] = lock_of(self.module)
        return lock

    def parameters(self, layers: Sequence[str] | None = None) -> list[str]:
        """Full names of the parameters of these layers; None: of all layers."""
        return [key for name in (self.layers if layers is None else layers) for key in self.layers[name]]

    def first(self, count: int) -> LayeredModel:
        """A copy with the first rows alone."""
        return dataclasses.replace(self, inputs=self.inputs[:count], targets=self.targets[:count])

    def loss_of_row(
        self, names: Sequence[str]
    ) -> tuple[Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor], dict[str, torch.Tensor]]:
        """The loss of one row as a function of (parameters of these names, input, target), and their values."""
        function, measure = Functional(self.module, names), self.criterion

        def value(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = measure(function(parameters, x[None]), y[None])
            return out

        return value, function.own

    def require_outputs(self) -> None:
        """ValueError if the model does not run on its inputs."""
        if self.misfit is not None:
            shape = tuple(self.inputs.shape)
            raise ValueError(f"`inputs` must fit the model, got shape {shape} ({self.misfit})") from self.misfit


@locked
def parameters_by_layer(model: torch.nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """{layer: {parameter's full name: tensor}}: submodules with parameters of their own that require grad, in order."""
    counted: set[int] = set()
    layers: dict[str, dict[str, torch.Tensor]] = {}
    itself = type(model).__name__
    if itself in dict(model.named_modules()):
        itself += "()"  # a submodule has that name
    for name, module in model.named_modules():
        own = {
            f"{name}.{key}" if name else key: p.detach()
            for key, p in module.named_parameters(recurse=False)
            if p.requires_grad and id(p) not in counted
        }
        counted.update(id(p) for p in module.parameters(recurse=False))
        if own:
            layers[name or itself] = own
    return layers


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
        ValueError, TypeError: names the argument, its value and what is allowed.

    Guarantees:
        The result is deterministic for one machine, torch build and number of torch threads.
    """
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
        validate.one_of(*model.layers, layers=name)
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
    Sample by sample where torch cannot batch a layer (an LSTM in float64)."""
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
    index = validate.even_array(batches=batches)
    if index.dtype.kind not in "iu" or index.ndim != 2 or 0 in index.shape:
        raise ValueError(f"`batches` must be (batches, size) integers, got shape {index.shape}, {index.dtype}")
    if index.min() < 0 or index.max() >= rows:
        raise ValueError(f"`batches` must lie in [0, {rows - 1}], got values in [{index.min()}, {index.max()}]")
    return index.astype(np.int64)
