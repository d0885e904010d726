"""Any torch module as a function of one vector of parameters, and its gradients, of a batch or sample by sample."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from leakcore._base import array_memory
from leakcore._base.process_wide import quiet
from leakcore.gradients.checks import mean_cross_entropy, tensor, trained_parameters
from leakcore.gradients.functional import Functional, lock_of

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@contextmanager
def _fitting(x: torch.Tensor) -> Iterator[None]:
    """Turn torch's error about a shape into a ValueError that names `inputs`."""
    try:
        yield
    except (RuntimeError, ValueError) as why:
        if isinstance(why, ValueError) and not str(why).startswith("Expected more than 1 value per channel"):
            raise
        if "shape" not in str(why) and "size" not in str(why):
            raise
        raise ValueError(f"`inputs` must fit the model, got shape {tuple(x.shape[1:])} each ({why})") from why


class FlatModule:
    """A torch module as a function of one vector of parameters.

    Attributes:
        names: the parameters' names, in order: the ones that require grad, or the chosen ones.
        shapes: the parameters' shapes.
        sizes: how many numbers each parameter has, D in all.
        theta: (D,), the present values.

    `mixing` allows batch norms that normalise by the batch; they must not keep running statistics, which no evaluation
    may change. `per_sample` has no meaning then.
    """

    def __init__(
        self, model: Any, loss: Loss | None = None, names: Sequence[str] | None = None, *, mixing: bool = False
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
        array_memory.refuse_transforms("model")
        with lock_of(model):
            self._read(model, loss, names, mixing)

    def _read(self, model: nn.Module, loss: Loss | None, names: Sequence[str] | None, mixing: bool) -> None:
        trained = trained_parameters(model, mixing)
        wanted = tuple(trained) if names is None else (names,) if isinstance(names, str) else tuple(names)
        if not wanted or len(set(wanted)) != len(wanted) or not set(wanted) <= set(trained):
            raise ValueError(f"`parameters` must name some of {', '.join(trained)}, each once, got {wanted}")
        self.model = model
        self._mixing = mixing
        self.loss = loss or mean_cross_entropy
        self.names = wanted
        self.shapes = [tuple(trained[name].shape) for name in wanted]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.theta = torch.cat([trained[name].detach().flatten() for name in wanted])
        self._function = Functional(model, wanted)

    def __len__(self) -> int:
        return sum(self.sizes)

    def split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Split (..., D) into {name: (..., *shape)}."""
        parts = torch.split(flat, self.sizes, dim=-1)
        shapes = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape((*flat.shape[:-1], *shape)) for name, part, shape in shapes}

    def join(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Concatenate a state dict, which may hold more names, to (D,)."""
        missing = [name for name in self.names if name not in parts]
        if missing:
            raise ValueError(f"`states` must hold the parameter {missing[0]!r}")
        return torch.cat([tensor(parts[name], f"states[{name!r}]").flatten().to(self.theta) for name in self.names])

    def outputs(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The model's outputs at parameters (D,)."""
        with _fitting(x):
            out: torch.Tensor = self._function(self.split(theta), x)
        return out

    def _tried(self, x: torch.Tensor) -> Any:
        """Outputs at the model's present parameters; its buffers stay unchanged."""
        with lock_of(self.model):
            buffers = {name: b.clone() for name, b in self.model.named_buffers()}
            return self._function({**buffers, **self.split(self.theta)}, x)

    def require_no_draws(self, x: torch.Tensor) -> None:
        """Require that the model draws no random numbers for a row, x (1, ...), outside its layers.

        What `torch.func.vmap` cannot evaluate for another reason passes.

        Raises:
            ValueError: if it draws random numbers.
        """
        try:
            with quiet(), torch.no_grad():
                copies = 2 if self._mixing else 1  # a batch norm in training mode takes no single row
                torch.func.vmap(lambda row: self._tried(torch.stack([row] * copies)), randomness="error")(x)
        except Exception as why:
            if "random operation" in str(why):
                raise ValueError(
                    "`model` must not draw random numbers as it runs, which no seed controls (call model.eval(); "
                    "functional.dropout takes training=self.training)"
                ) from why

    def calls(self, x: torch.Tensor) -> list[tuple[nn.Module, Any]]:
        """(module, its input) of each call of a module with parameters of its own, in one pass of x."""
        calls: list[tuple[nn.Module, Any]] = []
        here = threading.get_ident()

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() != here:  # another thread evaluates the model meanwhile
                return
            fed = args[0] if args else kwargs.get("input")
            # A copy, for a later layer may work in place.
            calls.append((module, fed.detach().clone() if isinstance(fed, torch.Tensor) else fed))

        own = [module for module in self.model.modules() if any(True for _ in module.parameters(recurse=False))]
        with lock_of(self.model):
            handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in own]
            try:
                with _fitting(x), torch.no_grad():
                    self._tried(x.clone())
            finally:
                for handle in handles:
                    handle.remove()
        return calls

    def gradient(self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """(D,), the gradient of the loss of the whole batch; differentiable in x and y."""
        flat: torch.Tensor = torch.func.grad(lambda t: self._one_number(self.loss(self.outputs(t, x), y)))(theta)
        return flat

    @staticmethod
    def _one_number(loss: Any) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ValueError(f"`loss` must return one number for a batch, as reduction='mean' does, got {what}")
        return loss

    def per_sample(self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """(B, D), the gradient of each row's loss; differentiable in x and y. Random draws differ between rows."""
        rows: torch.Tensor = torch.func.vmap(
            lambda a, b: self.gradient(theta, a[None], b[None]), randomness="different"
        )(x, y)
        return rows
