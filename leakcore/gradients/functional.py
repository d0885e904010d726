"""A torch module as a function of some of its parameters, which several threads may evaluate at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leakcore.gradients.module_lock import lock_of

if TYPE_CHECKING:
    import torch


def evaluate(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], inputs: Any) -> Any:
    """The outputs with these parameters and buffers, by the names of `named_parameters`; the model is left as it was.

    A tensor goes wherever the model holds the one of that name (tied weights), once to each place: of a module that
    stands under several names `functional_call` would swap the same place twice, and put back what it swapped in.
    """
    import torch

    names_of: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        for own in (module.named_parameters, module.named_buffers):
            for name, tensor in own(prefix, recurse=False, remove_duplicate=False):
                names_of.setdefault(id(tensor), []).append(name)
    places = {names[0]: names for names in names_of.values()}
    replaced = {place: tensor for name, tensor in tensors.items() for place in places.get(name, (name,))}
    return torch.func.functional_call(model, replaced, (inputs,), tie_weights=False)


class Functional:
    """own: {name: tensor} of the parameters named (None: that require grad), detached, as they are now.

    Called with other values of theirs and with inputs, it gives the module's outputs; all else of the module, buffers
    too, stays as it is now.
    """

    def __init__(self, model: torch.nn.Module, names: Iterable[str] | None = None) -> None:
        self._model = model
        with lock_of(model):
            tensors_of_model = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            if names is None:
                names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.own = {name: tensors_of_model[name].detach() for name in names}
        self._fixed = {name: p.detach() for name, p in tensors_of_model.items() if name not in self.own}

    def __call__(self, parameters: Mapping[str, torch.Tensor], inputs: Any) -> Any:
        with lock_of(self._model):
            return evaluate(self._model, {**self._fixed, **parameters}, inputs)
