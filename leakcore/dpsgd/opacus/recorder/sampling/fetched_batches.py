"""Batches that DataLoaders of this process hand out, told to listeners."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

Listener = Callable[[Any, Any], None]

_lock = threading.Lock()
_listeners: list[weakref.WeakMethod[Listener]] = []
_original: Callable[[Any], Any] | None = None


class Fetching:
    """Calls a listener with (iterator, batch) for every batch that a DataLoader's iterator gives.

    The listener is a bound method, to which only a weak reference is stored. torch offers no hook here, so `__next__`
    of its iterators is replaced until `remove`.
    """

    def __init__(self, listener: Listener) -> None:
        global _original
        self._listener = weakref.WeakMethod(listener)
        kind = dataloader._BaseDataLoaderIter
        with _lock:
            if kind.__next__ is not _next:
                _original = kind.__next__
                kind.__next__ = _next  # type: ignore[assignment, method-assign]
            _listeners.append(self._listener)

    def remove(self) -> None:
        _forget(self._listener)


def _forget(listener: weakref.WeakMethod[Listener]) -> None:
    kind = dataloader._BaseDataLoaderIter
    with _lock:
        _listeners[:] = [other for other in _listeners if other is not listener]
        if not _listeners and kind.__next__ is _next:
            assert _original is not None
            kind.__next__ = _original  # type: ignore[assignment, method-assign]


def _next(iterator: Any) -> Any:
    assert _original is not None
    batch = _original(iterator)
    for reference in list(_listeners):
        listener = reference()
        if listener is None:
            _forget(reference)
        else:
            listener(iterator, batch)
    return batch
