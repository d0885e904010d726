"""A torch module as a function of some of its parameters, and the one lock under which a module is evaluated.

`functional_call` puts other parameters into the caller's own module: two threads that do so at once may each restore
the other's parameters, which would damage the module for good. Code that swaps parameters, registers hooks, or reads
parameters that another thread may have swapped holds the lock. torch is not imported before it is needed.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")

_locks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def lock_of(model: Any) -> Any:
    """The reentrant lock of this module, created on first use; an object without identity gets a lock of its own."""
    try:
        with _guard:
            lock = _locks.get(model)
            if lock is None:
                lock = _locks[model] = threading.RLock()
            return lock
    except TypeError:  # no weak references, or no hash: the caller says what is wrong with it
        return threading.RLock()


def locked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a function of `model`, its first argument, under that model's lock."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with lock_of(args[0] if args else kwargs.get("model")):
            return function(*args, **kwargs)

    return run


def _forked() -> None:
    """Reset the locks in a child process: it has none of its parent's threads, so nothing would ever release a lock."""
    global _locks, _guard
    _locks, _guard = weakref.WeakKeyDictionary(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def evaluate(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], *inputs: Any, **settings: Any) -> Any:
    """The outputs with these parameters and buffers, by the names of `named_parameters`; the model stays unchanged.

    A tensor replaces the one of that name everywhere in the model (tied weights), once in each place. If a module
    appears under several names, `functional_call` would swap the same place twice, and restore what it swapped in.
    """
    import torch

    names_by_id: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        for own in (module.named_parameters, module.named_buffers):
            for name, tensor in own(prefix, recurse=False, remove_duplicate=False):
                names_by_id.setdefault(id(tensor), []).append(name)
    places = {names[0]: names for names in names_by_id.values()}
    replaced = {place: tensor for name, tensor in tensors.items() for place in places.get(name, (name,))}
    return torch.func.functional_call(model, replaced, inputs, settings, tie_weights=False)


class Functional:
    """A module as a function of some of its parameters. Everything else, buffers included, stays as it is now.

    Called with other values of these parameters and with the module's arguments, it returns the module's outputs.

    Attributes:
        own: {name: tensor} of the parameters named (None: the ones that require grad), detached, as they are now.
    """

    def __init__(self, model: torch.nn.Module, names: Iterable[str] | None = None) -> None:
        self._model = model
        with lock_of(model):
            tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            if names is None:
                names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.own = {name: tensors[name].detach() for name in names}
        self._fixed = {name: p.detach() for name, p in tensors.items() if name not in self.own}

    def __call__(self, parameters: Mapping[str, torch.Tensor], *inputs: Any, **settings: Any) -> Any:
        with lock_of(self._model):
            return evaluate(self._model, {**self._fixed, **parameters}, *inputs, **settings)
