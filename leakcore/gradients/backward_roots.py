"""The roots of a loop's backward passes, and what their graphs reach."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

Listener = Callable[[list[torch.Tensor]], None]

_lock = threading.Lock()
_listeners: list[weakref.WeakMethod[Listener]] = []
_original: Callable[..., Any] | None = None


class Listening:
    """Calls a listener with the roots of every backward pass that this process begins.

    The listener is a bound method. Listening ends with `remove`, or when the listener's object is deleted, because only
    a weak reference to it is stored. torch offers no hook here, so `torch.autograd.backward`, which `Tensor.backward`
    calls, is replaced in the meantime.
    """

    def __init__(self, listener: Listener) -> None:
        global _original
        self._listener = weakref.WeakMethod(listener)
        with _lock:
            if torch.autograd.backward is not _backward:
                _original = torch.autograd.backward
                torch.autograd.backward = _backward
            _listeners.append(self._listener)

    def remove(self) -> None:
        _forget(self._listener)


def _forget(listener: weakref.WeakMethod[Listener]) -> None:
    with _lock:
        _listeners[:] = [other for other in _listeners if other is not listener]
        if not _listeners and torch.autograd.backward is _backward:
            assert _original is not None
            torch.autograd.backward = _original


def _backward(tensors: Any, *arguments: Any, **settings: Any) -> Any:
    if torch._C._current_graph_task_id() == -1:  # else of a checkpoint, within another backward pass
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        for reference in list(_listeners):
            listener = reference()
            if listener is None:
                _forget(reference)
            else:
                listener([t for t in roots if isinstance(t, torch.Tensor)])
    assert _original is not None
    return _original(tensors, *arguments, **settings)


class Reached:
    """What the graphs of some tensors reach, without going past the nodes numbered in `stop`.

    Nodes are identified by autograd's numbers, so that nothing here keeps a graph alive.
    """

    def __init__(self, nodes: Iterable[Any], stop: Iterable[int] = ()) -> None:
        ends = set(stop)
        self.stopped: set[int] = set()
        self.inner: set[int] = set()
        self.leaves: dict[int, torch.Tensor] = {}
        self.cut: list[Any] = []
        todo, known = [n for n in nodes if n is not None], set()
        while todo:
            node = todo.pop()
            if node in known:
                continue
            known.add(node)
            if type(node).__name__ == "AccumulateGrad":
                self.leaves[id(node.variable)] = node.variable
                continue
            number = node._sequence_nr()
            if number in ends:
                self.stopped.add(number)
                self.cut.append(node)
                continue
            self.inner.add(number)
            todo += [n for n, _ in node.next_functions if n is not None]


def around(roots: Iterable[Any], outputs: Iterable[int], own: set[int]) -> tuple[str, bool]:
    """How the graph of `roots` reaches leaves in `own` (their ids) without passing through the nodes numbered in
    `outputs`.

    Returns:
        First "" if it does not; "layers" if it does through nodes that also lead to the outputs, as a penalty on
        activations does; "parameters" if it does from the leaves alone, as weight decay added to a loss does. Second,
        whether the graph reaches the outputs.
    """
    reached = Reached(roots, outputs)
    if own.isdisjoint(reached.leaves):
        return "", bool(reached.cut)
    behind = Reached(following for node in reached.cut for following, _ in node.next_functions)
    return "layers" if reached.inner & behind.inner else "parameters", bool(reached.cut)
