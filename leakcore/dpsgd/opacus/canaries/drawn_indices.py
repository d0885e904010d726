"""Which rows the batches of a planted data set hold: the lists of indices, in the order in which a loop gets them."""

from __future__ import annotations

import collections
from typing import Any

from leakcore.dpsgd.opacus.recorder.sampling.drawn_batches import Drawing, Part

_WAITING = 64
"""Batches that a loop may have fetched and not used."""


class DrawnIndices:
    """The indices of each batch that DataLoaders draw from a planted data set, until `stop`."""

    def __init__(self, planted: Any) -> None:
        self._planted = planted
        self._fetched: collections.deque[Part] = collections.deque(maxlen=_WAITING)
        self._drawing = Drawing(self._came)

    def stop(self) -> None:
        """Watch no longer."""
        self._drawing.remove()

    def of_batch(self, rows: int) -> Part | None:
        """The first waiting batch with this number of rows. The loop left out the ones before it."""
        place = next((i for i, part in enumerate(self._fetched) if len(part.indices or ()) == rows), None)
        if place is None:
            return None
        for _ in range(place):
            self._fetched.popleft()
        return self._fetched.popleft()

    def _came(self, iterator: Any, batch: Any, part: Part) -> None:
        if iterator._dataset is self._planted and part.indices is not None:
            self._fetched.append(part)
