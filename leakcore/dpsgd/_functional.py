"""A torch module as a function of some of its parameters, which several threads may evaluate at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leakcore.dpsgd._module_lock import lock_of

if TYPE_CHECKING:
    import torch


class Functional:
    """own: {name: tensor} of the parameters named (None: that require grad), detached, as they are now.

    Called with other values of theirs and with inputs, it gives the module's outputs; all else of the module, buffers
    too, stays as it is now.
    """

    def __init__(self, model: torch.nn.Module, names: Iterable[str] | None = None) -> None:
        self._model = model
        with lock_of(model):
            held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            if names is None:
                names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.own = {name: held[name].detach() for name in names}
        self._fixed = {name: p.detach() for name, p in held.items() if name not in self.own}

    def __call__(self, parameters: Mapping[str, torch.Tensor], inputs: Any) -> Any:
        import torch

        with lock_of(self._model):
            return torch.func.functional_call(self._model, {**self._fixed, **parameters}, (inputs,))
