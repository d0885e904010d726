"""Batches that DataLoaders of this process draw and hand out, told to listeners, with the draw that each is part of."""

from __future__ import annotations

import collections
import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import dataloader


class Draw:
    """One batch of a batch sampler, which reaches the loop whole, or in parts (Opacus's BatchMemoryManager).

    Attributes:
        optimizer: the one that Opacus tells of the parts; None if the batch comes whole.
        parts: indices of each part so far.
        complete: whether no part follows.
    """

    def __init__(self, optimizer: Any = None) -> None:
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self.parts: list[tuple[int, ...] | None] = []
        self.complete = False

    @property
    def optimizer(self) -> Any:
        return None if self._optimizer is None else self._optimizer()

    def add(self, indices: Any, *, last: bool) -> Part:
        """The next part. None: its indices were not seen."""
        self.parts.append(_numbers(indices))
        self.complete = last
        return Part(self, len(self.parts) - 1)


@dataclasses.dataclass(frozen=True)
class Part:
    """A batch that a DataLoader hands out: part `number` of a draw."""

    draw: Draw
    number: int

    @property
    def indices(self) -> tuple[int, ...] | None:
        return self.draw.parts[self.number]

    @property
    def is_last(self) -> bool:
        return self.draw.complete and self.number == len(self.draw.parts) - 1


Listener = Callable[[Any, Any, Part], None]


class _Drawing:
    """What one iterator drew and has not handed out.

    Attributes:
        order: the sampler's iterator, another one in every epoch.
        late: whether the iterator had drawn before anybody listened, or hands out batches in another order.
    """

    def __init__(self, iterator: Any) -> None:
        self.order = iterator._sampler_iter
        begun = iterator._num_yielded or getattr(iterator, "_send_idx", 0)
        self.late = bool(begun) or not getattr(iterator, "_in_order", True)
        self.waiting: collections.deque[Part] = collections.deque()
        self.open: Draw | None = None

    def drew(self, indices: Any, splitting: Any) -> None:
        """The iterator drew these indices; `splitting` divides its batches, unless it is None."""
        if splitting is None:
            self.waiting.append(Draw().add(indices, last=True))
            return
        if self.open is None:
            self.open = Draw(splitting.optimizer)
        flags = splitting.optimizer._step_skip_queue
        take = getattr(splitting.optimizer, "_take_signal", None)
        more = bool(flags[-1]) if take is None else take()
        self.waiting.append(self.open.add(indices, last=not more))
        if not more:
            self.open = None


_lock = threading.Lock()
_listeners: list[weakref.WeakMethod[Listener]] = []
_drawings: weakref.WeakKeyDictionary[Any, _Drawing] = weakref.WeakKeyDictionary()
_originals: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None


class Drawing:
    """Calls a listener with (iterator, batch, part) for every batch that a DataLoader's iterator gives.

    The listener is a bound method, to which only a weak reference is stored. torch offers no hook here, so `__next__`
    and `_next_index` of its iterators are replaced until `remove`. Iterators draw lists of indices ahead of the batches
    that workers prepare, and hand these out in the order of the lists.
    """

    def __init__(self, listener: Listener) -> None:
        global _originals
        self._listener = weakref.WeakMethod(listener)
        kind = dataloader._BaseDataLoaderIter
        with _lock:
            if kind.__next__ is not _next:
                _drawings.clear()
                _originals = kind.__next__, kind._next_index
                kind.__next__ = _next  # type: ignore[assignment, method-assign]
                kind._next_index = _next_index  # type: ignore[method-assign]
            _listeners.append(self._listener)

    def remove(self) -> None:
        _forget(self._listener)


def _forget(listener: weakref.WeakMethod[Listener]) -> None:
    kind = dataloader._BaseDataLoaderIter
    with _lock:
        _listeners[:] = [other for other in _listeners if other is not listener]
        if not _listeners and kind.__next__ is _next:
            assert _originals is not None
            kind.__next__, kind._next_index = _originals  # type: ignore[assignment, method-assign]


def _numbers(indices: Any) -> tuple[int, ...] | None:
    """Indices that are numbers; None for others, or none."""
    if isinstance(indices, (torch.Tensor, np.ndarray)):
        indices = indices.tolist()
    if not isinstance(indices, (list, tuple)):
        return None
    return tuple(int(i) for i in indices) if all(isinstance(i, (int, np.integer)) for i in indices) else None


def _splitting(iterator: Any) -> Any:
    """The sampler by which Opacus divides the batches of this iterator; None if they come whole."""
    from opacus.utils.batch_memory_manager import BatchSplittingSampler

    batches = getattr(iterator, "_index_sampler", None)
    return batches if isinstance(batches, BatchSplittingSampler) else None


def _next_index(iterator: Any) -> Any:
    assert _originals is not None
    indices = _originals[1](iterator)
    drawing = _drawings.get(iterator)
    if drawing is None or drawing.order is not iterator._sampler_iter:
        drawing = _drawings[iterator] = _Drawing(iterator)
    drawing.drew(indices, _splitting(iterator))
    return indices


def _next(iterator: Any) -> Any:
    assert _originals is not None
    batch = _originals[0](iterator)
    drawing = _drawings.get(iterator)
    part = None
    if drawing is not None and drawing.order is iterator._sampler_iter and drawing.waiting:
        part = drawing.waiting.popleft()
    if drawing is None or drawing.late or part is None:  # of parts nobody knows where they belong
        part = Draw().add(None, last=_splitting(iterator) is None)
    for reference in list(_listeners):
        listener = reference()
        if listener is None:
            _forget(reference)
        else:
            listener(iterator, batch, part)
    return batch
