"""What a loop goes back from: the roots of its backward passes, and what their graphs reach."""

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
    """Calls `listener`, a bound method, with the roots before every backward pass that this process begins, until
    `remove`, or until its object is gone: nothing here keeps it.

    torch offers no hook there, so `torch.autograd.backward`, which `Tensor.backward` calls, is replaced meanwhile.
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
    """What the graphs of some tensors reach, not going on behind the nodes numbered in `stop`.

    Nodes are known by the numbers that autograd gives them, so that nothing here keeps a graph alive.
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
    """How the graph of `roots` reaches leaves in `own` (their ids) other than through the nodes numbered in `outputs`.

    "": it does not. "layers": through nodes that lead to the outputs as well, as a penalty on activations does.
    "parameters": from them alone, as weight decay that is added to a loss does. And whether it reaches the outputs.
    """
    reached = Reached(roots, outputs)
    if own.isdisjoint(reached.leaves):
        return "", bool(reached.cut)
    behind = Reached(following for node in reached.cut for following, _ in node.next_functions)
    return "layers" if reached.inner & behind.inner else "parameters", bool(reached.cut)
