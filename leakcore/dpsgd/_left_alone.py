"""Call a module of a training loop once more, and leave it, and every random stream, as they were."""

from __future__ import annotations

import collections
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore.dpsgd._module_lock import lock_of

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CONTAINERS = (list, dict, set, collections.deque)


class Randomness:
    """The state of the global generators of torch (each device in use), NumPy and Python."""

    def __init__(self, states: list[Any]) -> None:
        self._states = states

    @classmethod
    def now(cls) -> Randomness:
        arrays = np.random.get_state()  # noqa: NPY002  # the generator that a user's model may draw from
        return cls([*(g.get_state() for g in _generators()), arrays, random.getstate()])

    def set(self) -> None:
        """Go on from here."""
        *devices, arrays, numbers = self._states
        for generator, state in zip(_generators(), devices, strict=False):
            generator.set_state(state)
        np.random.set_state(arrays)  # noqa: NPY002
        random.setstate(numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Randomness) or len(self._states) != len(other._states):
            return False
        *ours, arrays, numbers = self._states
        *theirs, other_arrays, other_numbers = other._states
        same = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        words = zip(arrays, other_arrays, strict=True)
        return same and numbers == other_numbers and all(np.array_equal(a, b) for a, b in words)

    __hash__ = None  # type: ignore[assignment]


def _generators() -> list[torch.Generator]:
    devices = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.default_generator, *devices]


@contextlib.contextmanager
def left_alone(root: nn.Module, is_ours: Callable[[Any], bool]) -> Iterator[None]:
    """Afterwards the module is as before: attributes, buffers, the contents of lists and dictionaries that it holds,
    its generators, and the global ones. Meanwhile it is without the hooks, and without the forward pass put in place of
    a layer's own, that `is_ours` accepts; other hooks stay, because they may be a part of what it computes.
    """
    with lock_of(root):
        modules = list(root.modules())
        attributes = [(m, dict(m.__dict__)) for m in modules]
        buffers = [(m, dict(m._buffers)) for m in modules]
        held = [(v, copy_of(v)) for _, own in attributes for k, v in own.items() if k[:1] != "_" and _is_plain(v)]
        generators = [(v, v.get_state()) for _, own in attributes for v in own.values() if _is_generator(v)]
        hooks = [(p, p._backward_hooks) for p in root.parameters() if p._backward_hooks]
        before = Randomness.now()
        try:
            for m, own in attributes:
                for name in _HOOKS:
                    others = {key: hook for key, hook in own[name].items() if not is_ours(hook)}
                    m.__dict__[name] = collections.OrderedDict(others)
                if is_ours(own.get("forward")):
                    del m.__dict__["forward"]
                for name, buffer in list(m._buffers.items()):
                    m._buffers[name] = None if buffer is None else buffer.clone()
            for p, _ in hooks:
                p._backward_hooks = None
            yield
        finally:
            before.set()
            for p, own_hooks in hooks:
                p._backward_hooks = own_hooks
            for m, own in attributes:
                m.__dict__.clear()
                m.__dict__.update(own)
            for m, own in buffers:
                m._buffers.clear()
                m._buffers.update(own)
            for value, copy in held:
                value.clear()
                (value.extend if isinstance(value, (list, collections.deque)) else value.update)(copy)
            for generator, state in generators:
                generator.set_state(state)


def copy_of(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _is_plain(value: Any) -> bool:
    return type(value) in _CONTAINERS


def _is_generator(value: Any) -> bool:
    return isinstance(value, torch.Generator)
