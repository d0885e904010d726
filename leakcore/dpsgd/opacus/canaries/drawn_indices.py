"""Which rows the batches of a planted data set hold: the lists of indices, in the order in which a loop gets them."""

from __future__ import annotations

import collections
import threading
import weakref
from typing import Any

from torch.utils.data import dataloader

from leakcore.dpsgd.opacus.recorder.sampling.fetched_batches import Fetching

_WAITING = 64
"""Batches that a loop may have fetched and not used."""
_lock = threading.Lock()
_watching: list[DrawnIndices] = []
_original: Any = None


class DrawnIndices:
    """The indices of each batch that DataLoaders draw from a planted data set, until `stop`.

    Loaders draw lists ahead of the batches that workers prepare, and hand these out in the order of the lists. torch
    offers no hook here, so `_next_index` of its iterators is replaced meanwhile.
    """

    def __init__(self, planted: Any) -> None:
        global _original
        self._planted = planted
        self._drawn: weakref.WeakKeyDictionary[Any, tuple[Any, collections.deque[list[int]]]]
        self._drawn = weakref.WeakKeyDictionary()
        self._fetched: collections.deque[list[int]] = collections.deque(maxlen=_WAITING)
        kind = dataloader._BaseDataLoaderIter
        with _lock:
            if kind._next_index is not _next_index:
                _original = kind._next_index
                kind._next_index = _next_index  # type: ignore[method-assign]
            _watching.append(self)
        self._fetching = Fetching(self._came)

    def stop(self) -> None:
        """Watch no longer."""
        self._fetching.remove()
        kind = dataloader._BaseDataLoaderIter
        with _lock:
            if self in _watching:
                _watching.remove(self)
            if not _watching and kind._next_index is _next_index:
                kind._next_index = _original  # type: ignore[method-assign]

    def of_batch(self, rows: int) -> list[int] | None:
        """The indices of the first waiting batch with this number of rows. The loop left out the ones before it."""
        place = next((i for i, indices in enumerate(self._fetched) if len(indices) == rows), None)
        if place is None:
            return None
        for _ in range(place):
            self._fetched.popleft()
        return self._fetched.popleft()

    def drew(self, iterator: Any, indices: Any) -> None:
        """An iterator drew the indices of a batch."""
        if iterator._dataset is not self._planted:
            return
        order, lists = self._drawn.get(iterator, (None, collections.deque()))
        if order is not iterator._sampler_iter:  # of a new epoch; what was drawn ahead in the last one is gone
            lists = collections.deque()
        lists.append([int(i) for i in indices])
        self._drawn[iterator] = iterator._sampler_iter, lists

    def _came(self, iterator: Any, batch: Any) -> None:
        if iterator._dataset is self._planted and iterator in self._drawn:
            lists = self._drawn[iterator][1]
            if lists:
                self._fetched.append(lists.popleft())


def _next_index(iterator: Any) -> Any:
    indices = _original(iterator)
    for listener in list(_watching):
        listener.drew(iterator, indices)
    return indices
