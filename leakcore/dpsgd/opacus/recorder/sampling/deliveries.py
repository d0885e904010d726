"""Which batch of a DataLoader a forward pass trains on, or which rows of it."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from leakcore.dpsgd.opacus.recorder.candidates.given_rows import leaves_of
from leakcore.dpsgd.opacus.recorder.sampling.drawn_batches import Part
from leakcore.dpsgd.trace.trace import Sampling

_HELD = 8
"""Batches that are held though the loop holds them no more, as it does with copies on another device."""
_AHEAD = 2
"""Of the newest batches, the loop uses one: wrappers of loaders fetch one ahead."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The loader and the pass over the data from which a batch came.

    Attributes:
        divided: whether the sampler gives each process of the run a share of the rows.
    """

    sampling: Sampling
    number: int
    divided: bool = False


@dataclasses.dataclass(frozen=True)
class Use:
    """Rows of a part of a draw, on which a forward pass trains.

    Attributes:
        start: of the rows within the part.
        stop: likewise; None: to the end.
    """

    source: Source
    part: Part
    start: int = 0
    stop: int | None = None


class _Delivered:
    """A batch that a loader handed out. used: rows that forward passes have used, None for all."""

    def __init__(self, source: Source, part: Part, batch: Any) -> None:
        self.source, self.part = source, part
        tensors = [t for _, t in leaves_of(batch) if isinstance(t, torch.Tensor) and t.ndim]
        self._tensors = [weakref.ref(t) for t in tensors]
        self.held: list[torch.Tensor] | None = tensors
        self.used: int | None = 0

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [t for reference in self._tensors if (t := reference()) is not None]

    def place(self, rows: torch.Tensor, start: int) -> tuple[int, int | None] | None:
        """Where in this batch these rows are; None: they are not. `start`: where a piece of the batch would begin."""
        for values in self.tensors:
            if values.shape[:1] == rows.shape[:1] and values.numel() == rows.numel():
                if _equal(values, rows):
                    return 0, None
            elif 0 < len(rows) <= len(values) - start and values.shape[1:] == rows.shape[1:]:
                piece = values[start : start + len(rows)]
                if _equal(piece, rows):
                    return start, start + len(rows) if start + len(rows) < len(values) else None
        return None

    def may_be(self, rows: torch.Tensor | None) -> bool:
        return rows is None or any(t.shape[:1] == rows.shape[:1] for t in self.tensors)


class Deliveries:
    """`delivered` for every batch of a DataLoader, `use_of` for every forward pass in training."""

    def __init__(self) -> None:
        self._recent: collections.deque[_Delivered] = collections.deque()
        self._older: list[_Delivered] = []

    @property
    def any(self) -> bool:
        """Whether any batch was handed out."""
        return bool(self._recent)

    def newest(self) -> Part | None:
        """The newest batch if it was not used; it, and the ones before it, are used now."""
        if not self._recent or self._recent[-1].used != 0:
            return None
        for d in self._recent:
            d.used = None
        return self._recent[-1].part

    def delivered(self, source: Source, part: Part, batch: Any) -> None:
        """A loader handed out this batch."""
        if len(self._recent) == _HELD:
            oldest = self._recent.popleft()
            oldest.held = None
            self._older = [d for d in [*self._older, oldest] if d.tensors]
        self._recent.append(_Delivered(source, part, batch))

    def use_of(self, rows: torch.Tensor | None) -> Use | None:
        """What these rows are; None if no loader gave them, or that cannot be told.

        Rows that were changed on the way are taken for the older of the last two batches that was not used, if it has
        as many rows and one loader is in use.
        """
        if rows is not None and (use := self._with_values(rows)) is not None:
            return use
        unused = [d for d in self._recent if d.used == 0]
        fits = [d for d in list(self._recent)[-_AHEAD:] if d.used == 0 and d.may_be(rows)]
        if not fits or len({d.source.sampling for d in unused}) > 1:
            return None
        for earlier in unused[: unused.index(fits[0]) + 1]:  # the loop left them out, and trains on this one
            earlier.used = None
        return Use(fits[0].source, fits[0].part)

    def _with_values(self, rows: torch.Tensor) -> Use | None:
        for again in (False, True):  # a batch that was not used comes before one that is used again
            for d in self._all():
                if (d.used is None) is not again:
                    continue
                place = d.place(rows, 0 if again else d.used or 0)
                if place is None and not again and d.used:
                    place = d.place(rows, 0)
                if place is not None:
                    if not again:
                        d.used = place[1]
                    return Use(d.source, d.part, *place)
        return None

    def _all(self) -> Iterator[_Delivered]:
        yield from self._older
        yield from self._recent


def _equal(values: torch.Tensor, rows: torch.Tensor) -> bool:
    return values is rows or torch.equal(values.detach().to(rows.device, rows.dtype).reshape(rows.shape), rows)
