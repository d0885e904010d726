"""Observe and repeat parts of a training loop, and leave it, its objects and every random stream unchanged."""

from __future__ import annotations

import collections
import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore.gradients import State, global_generators, lock_of

_thread = threading.local()
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BARED = (*_HOOKS, "forward", "training")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@contextlib.contextmanager
def pause_recording() -> Iterator[None]:
    """Within the block, modules that this thread calls belong to no recorded loop."""
    before, _thread.paused = is_paused(), True
    try:
        yield
    finally:
        _thread.paused = before


def is_paused() -> bool:
    """Whether this thread is within `pause_recording`."""
    return getattr(_thread, "paused", False)


class Uncopied:
    """A callable on a module or an optimizer of the user's, which belongs to leakcore and not to that object.

    A copy of the object (`copy.deepcopy`, an average of the weights) and a pickle of it (`torch.save`) hold a function
    of the standard library in its place that does nothing. They neither take along what leakcore knows of the run nor
    need leakcore to be loaded.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch.compile does not compile it
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Randomness:
    """The state of the global generators of torch (each device in use), NumPy and Python."""

    def __init__(self, states: list[Any]) -> None:
        self._states = states

    @classmethod
    def now(cls) -> Randomness:
        arrays = np.random.get_state()  # noqa: NPY002  # the generator that a user's model may draw from
        return cls([*(g.get_state() for g in global_generators()), arrays, random.getstate()])

    def set(self) -> None:
        """Continue from this state."""
        *devices, arrays, numbers = self._states
        for generator, state in zip(global_generators(), devices, strict=False):
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


@contextlib.contextmanager
def preserve_state(root: nn.Module | None, *others: Any, evaluating: bool = False) -> Iterator[State]:
    """Afterwards the module, the others (modules, functions) and the global generators are as before, by `State`.

    Within the block the module, in evaluation mode if `evaluating`, has copies of its buffers, and is without the hooks
    and replaced forward passes of Opacus and of this package. Other hooks may be a part of what it computes, and stay.
    """
    with contextlib.ExitStack() as stack:
        before = Randomness.now()
        stack.callback(before.set)
        if root is not None:
            stack.enter_context(lock_of(root))
            stack.enter_context(_bare(root, evaluating))
        state = State([holder for holder in (root, *others) if holder is not None])
        stack.callback(state.restore)
        yield state


@contextlib.contextmanager
def _bare(root: nn.Module, evaluating: bool) -> Iterator[None]:
    modules = list(root.modules())
    before = [{name: m.__dict__[name] for name in _BARED if name in m.__dict__} for m in modules]
    tables = [hooks for p in root.parameters() for name in _HOOKS_OF_TENSORS if (hooks := getattr(p, name, None))]
    hooks_of_tensors = [dict(table) for table in tables]
    buffers = [dict(m._buffers) for m in modules]
    copies = {id(b): b.clone() for own in buffers for b in own.values() if b is not None}
    try:
        for m, own in zip(modules, buffers, strict=True):
            m._buffers.update({name: copies[id(b)] for name, b in own.items() if b is not None})
            for name in _HOOKS:
                others = {key: hook for key, hook in m.__dict__[name].items() if not _is_ours(hook)}
                m.__dict__[name] = collections.OrderedDict(others)
            if _is_ours(m.__dict__.get("forward")):
                del m.__dict__["forward"]
            m.training = m.training and not evaluating
        for table in tables:  # emptied in place: autograd holds them
            table.clear()
        yield
    finally:
        for m, own, own_buffers in zip(modules, before, buffers, strict=True):
            m.__dict__.update(own)
            m._buffers.update(own_buffers)
        for table, hooks in zip(tables, hooks_of_tensors, strict=True):
            table.update(hooks)


def _is_ours(hook: Any) -> bool:
    """Whether a hook, or a replaced forward pass, belongs to Opacus or to this package."""
    function = getattr(hook, "func", hook)
    owner = getattr(function, "__self__", function)
    return any(kind.__module__.partition(".")[0] in ("opacus", "leakcore") for kind in type(owner).__mro__)
