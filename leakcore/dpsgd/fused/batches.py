"""Batches of DataLoaders: the draw that each is part of, the forward pass that trains on it, the sum that it is in."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import dataloader

from leakcore.dpsgd.opacus.recorder.aside import is_aside
from leakcore.dpsgd.trace.trace import Sampling

Path = tuple[Any, ...]
"""The keys and places that lead to a leaf of a tree."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments and keywords of a call."""


def leaves_of(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf of nested mappings, lists and tuples, with its path; a packed sequence is a leaf."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves_of(value, (*path, key))
    elif isinstance(tree, (list, tuple)) and not isinstance(tree, PackedSequence):
        for place, value in enumerate(tree):
            yield from leaves_of(value, (*path, place))
    else:
        yield path, tree


def rows_of(arguments: Arguments) -> torch.Tensor | None:
    """The first tensor of a call that has dimensions."""
    return next((v for _, v in leaves_of(arguments) if isinstance(v, torch.Tensor) and v.ndim), None)


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


_HELD = 8
"""Batches that are held though the loop holds them no more, as it does with copies on another device."""
_AHEAD = 2
"""Of the newest batches, the loop uses one: wrappers of loaders fetch one ahead."""


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSource:
    """The loader and the pass over the data from which a batch came.

    Attributes:
        divided: whether the sampler gives each process of the run a share of the rows.
    """

    sampling: Sampling
    number: int
    divided: bool = False


@dataclasses.dataclass(frozen=True)
class BatchUse:
    """Rows of a part of a draw, on which a forward pass trains.

    Attributes:
        start: of the rows within the part.
        stop: likewise; None: to the end.
    """

    source: BatchSource
    part: Part
    start: int = 0
    stop: int | None = None


class _Delivered:
    """A batch that a loader handed out. used: rows that forward passes have used, None for all."""

    def __init__(self, source: BatchSource, part: Part, batch: Any) -> None:
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

    def delivered(self, source: BatchSource, part: Part, batch: Any) -> None:
        """A loader handed out this batch."""
        if len(self._recent) == _HELD:
            oldest = self._recent.popleft()
            oldest.held = None
            self._older = [d for d in [*self._older, oldest] if d.tensors]
        self._recent.append(_Delivered(source, part, batch))

    def use_of(self, rows: torch.Tensor | None) -> BatchUse | None:
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
        return BatchUse(fits[0].source, fits[0].part)

    def _with_values(self, rows: torch.Tensor) -> BatchUse | None:
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
                    return BatchUse(d.source, d.part, *place)
        return None

    def _all(self) -> Iterator[_Delivered]:
        yield from self._older
        yield from self._recent


def _equal(values: torch.Tensor, rows: torch.Tensor) -> bool:
    return values is rows or torch.equal(values.detach().to(rows.device, rows.dtype).reshape(rows.shape), rows)


_log = logging.getLogger(__name__)
_FROM = BatchSource(Sampling(), 0)


class LogicalBatch:
    """Follows the parts that Opacus's `BatchMemoryManager` hands out for one optimizer, from draw to release.

    Opacus gives each part a flag in a queue, and takes one in each step. A part without a step (an exception, a
    `break`) shifts them, so that rows of several draws come into one sum. Here a part keeps its own flag, and the part
    of a step is the one that its forward pass had. A batch with a part that was refused, left out or used twice is
    void: every further step on its parts is refused, and the next batch begins with an empty sum.

    Args:
        is_mine: whether an optimizer is the one that sums. It must not keep it alive.

    Attributes:
        is_fresh: whether the present step begins a sum.
    """

    def __init__(self, is_mine: Callable[[Any], bool]) -> None:
        self._is_mine = is_mine
        self._deliveries = Deliveries()
        self._drawing = Drawing(self._delivered)
        self._of_call: Part | None = None
        self._draw: Draw | None = None
        self._summed = 0
        self._void = ""
        self._elsewhere = False
        self.is_fresh = True

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called."""
        if not module.training or not torch.is_grad_enabled() or is_aside() or not self._deliveries.any:
            return
        use = self._deliveries.use_of(rows_of((args, kwargs)))
        self._of_call = self._deliveries.newest() if use is None else use.part

    def begin(self, is_skipped: Callable[[], bool]) -> bool:
        """A step begins; `is_skipped` takes a flag from Opacus's queue. Returns whether the step only sums."""
        part, self._of_call = self._of_call or self._deliveries.newest(), None
        elsewhere, self._elsewhere = self._elsewhere, False
        draw = None if part is None else part.draw
        if part is None and self._draw is not None and not elsewhere:
            draw, skip = self._draw, True
            self._void = self._void or "another step was made on the same part of it"
        else:
            skip = is_skipped() if part is None else not part.is_last
        self.is_fresh = self._summed == 0 or draw is not self._draw
        if draw is not self._draw:
            if self._summed:
                _log.warning(
                    "FusedDPOptimizer: a batch was broken off after %d of its parts. Their sum is dropped, so that it "
                    "is not released together with another batch.",
                    self._summed,
                )
            self._draw, self._summed, self._void = draw, 0, ""
        if part is not None and part.number != self._summed and not self._void:
            which = "was left out" if part.number > self._summed else "was used twice"
            self._void = f"a part of it {which}"
        return skip

    def require_whole(self) -> None:
        """ValueError if nothing of the batch may be released."""
        if self._void:
            raise ValueError(
                f"this batch is divided into parts, and {self._void}: nothing of it is released, its other parts are "
                "refused, and the next batch begins with an empty sum"
            )

    def end(self, *, only_summed: bool) -> None:
        """The step ended."""
        self._summed += 1
        if not only_summed:
            self._draw, self._summed, self._void = None, 0, ""

    def refuse(self, *, only_summed: bool) -> None:
        """The step was refused: the batch is void up to its last part."""
        self._void = self._void or "one was refused"
        self.end(only_summed=only_summed)

    def _delivered(self, iterator: Any, batch: Any, part: Part) -> None:
        if self._is_mine(part.draw.optimizer):
            self._deliveries.delivered(_FROM, part, batch)
        else:
            self._elsewhere = True
