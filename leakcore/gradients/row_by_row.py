"""Gradients of rows one at a time by plain autograd, for models that torch's vmap cannot take; the roots of a loop's
backward passes, and what their graphs reach.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from leakcore.gradients.module_state import State

Criterion = Callable[[Any, Any], torch.Tensor]
Feed = Callable[[list[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any], Any]]
"""From the leaves of some rows to the module's arguments and keywords, and the criterion's targets."""


class RowError(Exception):
    """An exception that the model or the criterion raised for one row; `row` is its place in the call."""

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {first_line(error)}")
        self.row = row


def first_line(error: BaseException) -> str:
    """The first sentence of an exception's message, for use in another message."""
    return str(error).strip().partition("\n")[0].partition(". ")[0][:200] or type(error).__name__


class RowByRow:
    """The gradient of the criterion for each row alone, as far as it passes through the model's outputs.

    These are Opacus's per-sample gradients: a term of the criterion in the parameters themselves is not part of them.
    Nothing that one row changes in the module (a buffer, a cache, drawn numbers) reaches the next row.
    """

    def __init__(self, module: nn.Module, criterion: Criterion, parameters: Sequence[torch.Tensor], mean: bool) -> None:
        self._module, self._criterion, self._parameters, self._mean = module, criterion, list(parameters), mean
        self._twice = False

    def gradients(
        self, leaves: list[torch.Tensor], feed: Feed, seeds: Sequence[tuple[int, int]], state: State
    ) -> torch.Tensor:
        """(len(seeds), D), parameters in order. Row k draws its random numbers from seeds[k].

        Raises:
            RowError: if the model or the criterion fails for a row.
        """
        columns = sum(p.numel() for p in self._parameters)
        rows = torch.empty(len(seeds), columns, dtype=self._parameters[0].dtype, device=self._parameters[0].device)
        for k in range(len(seeds)):
            start = 0
            for p, gradient in zip(self._parameters, self._of_row(k, leaves, feed, seeds[k], state), strict=True):
                if gradient is None:
                    rows[k, start : start + p.numel()] = 0
                else:
                    dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
                    rows[k, start : start + p.numel()] = dense.detach().reshape(-1)
                start += p.numel()
            state.restore(parameters=k == 0 or state.writes_parameters)
        return rows

    def _of_row(
        self, k: int, leaves: list[torch.Tensor], feed: Feed, seed: tuple[int, int], state: State
    ) -> Sequence[torch.Tensor | None]:
        """The gradient of the row alone, or of a batch that holds it twice, because some models drop a batch of one.
        Once the second way was needed, it is used for all further rows."""
        first: Exception | None = None
        for twice in (True,) if self._twice else (False, True):
            try:
                state.seed(*seed)
                gradients = self._gradient([leaf[k : k + 1] for leaf in leaves], feed, twice)
                self._twice = twice
                return gradients
            except Exception as error:
                first = first or error
                state.restore()
        assert first is not None
        raise RowError(k, first) from first

    def _gradient(self, row: list[torch.Tensor], feed: Feed, twice: bool) -> Sequence[torch.Tensor | None]:
        rows = [torch.cat([t, t]) if twice else t.clone() for t in row]  # which the model may write into
        args, kwargs, y = feed(rows)
        with torch.enable_grad():
            outputs = self._module(*args, **kwargs)
            leaves, form = tree_flatten(outputs)
            through = [k for k, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.requires_grad]
            if not through and not all(isinstance(t, (torch.Tensor, int, float, str, type(None))) for t in leaves):
                return self._arriving([self._loss(outputs, y, twice)], [None])  # outputs of unknown form
            cut = {k: leaves[k].detach().requires_grad_() for k in through}
            copied = [cut[k].clone() if k in cut else t for k, t in enumerate(leaves)]
            loss = self._loss(tree_unflatten(copied, form), y, twice)
            if not cut or not loss.requires_grad:
                return [None] * len(self._parameters)
            arriving = torch.autograd.grad(loss, list(cut.values()), allow_unused=True)
            pairs = [(leaves[k], g) for k, g in zip(cut, arriving, strict=True) if g is not None]
            return self._arriving([t for t, _ in pairs], [g for _, g in pairs])

    def _arriving(self, tensors: list[torch.Tensor], gradients: list[Any]) -> list[torch.Tensor | None]:
        every = [*self._parameters, *self._module.parameters()]
        return vector_jacobian(tensors, gradients, every)[: len(self._parameters)]

    def _loss(self, outputs: Any, y: Any, twice: bool) -> torch.Tensor:
        """The criterion of one row. For two equal rows a mean is unchanged; a sum, or one value per row, is twice as
        large."""
        values = self._criterion(outputs, y)
        return values.sum() / 2 if twice and (values.numel() > 1 or not self._mean) else values.sum()


def vector_jacobian(
    tensors: Sequence[torch.Tensor], gradients: Sequence[Any], parameters: Sequence[torch.Tensor], again: bool = False
) -> list[torch.Tensor | None]:
    """What arrives at the parameters by `backward`; every leaf's own gradient is set aside.

    `torch.autograd.grad` ignores what a checkpoint with use_reentrant=True computes. `again` retains the graph.
    """
    leaves = [*Reached(t.grad_fn for t in tensors).leaves.values(), *parameters]
    every = list({id(p): p for p in leaves}.values())
    before = [p.grad for p in every]
    try:
        for p in every:
            p.grad = None
        torch.autograd.backward(tensors, gradients, retain_graph=again)
        return [p.grad for p in parameters]
    finally:
        for p, gradient in zip(every, before, strict=True):
            p.grad = gradient


Listener = Callable[[list[torch.Tensor]], None]

_lock = threading.Lock()
_listeners: list[weakref.WeakMethod[Listener]] = []
_original: Callable[..., Any] | None = None


class BackwardHook:
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
