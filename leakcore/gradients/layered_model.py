"""A torch model with its layers and the batch on which it is evaluated, checked once and handed down."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from leakcore.gradients.checked_module import trained_parameters
from leakcore.gradients.cross_entropy import criterion, targets_of
from leakcore.gradients.flat_module import tensor
from leakcore.gradients.functional import Functional
from leakcore.gradients.module_lock import lock_of, locked

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
    ) -> LayeredModel:  # fmt: skip
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
            ValueError: names the argument.
            TypeError: for an argument of another type.
        """
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
        """The same model on the first rows alone."""
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
