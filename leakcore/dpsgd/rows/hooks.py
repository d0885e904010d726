"""The hooks through which a training loop is observed, and the batches that its loaders hand out.

Each is created with its callback, observes from then on, and ends by `remove`: `ForwardHook` (every module),
`ModelHook` (the model, with its keywords), `leakcore.gradients.BackwardHook` (every backward pass), `LoaderHook` (every
batch of a DataLoader) and `StepHook` (every step of an optimizer).
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import dataloader

from leakcore.dpsgd.rows.preserve_state import Randomness, Uncopied, is_paused
from leakcore.dpsgd.trace.trace import Sampling

Path = tuple[Any, ...]
"""The keys and places that lead to a leaf of a tree."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments and keywords of a call."""
_lock = threading.Lock()
_listeners: list[weakref.WeakMethod[_LoaderCallback]] = []
_originals: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None
_HELD = 8
"""Batches that are held though the loop holds them no more, as it does with copies on another device."""
_AHEAD = 2
"""Of the newest batches, the loop uses one: wrappers of loaders fetch one ahead."""


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


def mapped(function: Callable[[Path, Any], Any], tree: Any, path: Path = ()) -> Any:
    """The tree with other leaves, from their paths and values. Mappings and tuples stay of their type."""
    if isinstance(tree, Mapping):
        new = {key: mapped(function, value, (*path, key)) for key, value in tree.items()}
        return new if type(tree) is dict else type(tree)(new)  # type: ignore[call-arg]
    if isinstance(tree, (list, tuple)) and not isinstance(tree, PackedSequence):
        values = [mapped(function, value, (*path, place)) for place, value in enumerate(tree)]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return function(path, tree)


def copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments with copies of their tensors."""
    both = mapped(lambda _, v: v.detach().clone() if isinstance(v, torch.Tensor) else v, (args, kwargs))
    return both[0], both[1]


def rows_of(arguments: Arguments) -> torch.Tensor | None:
    """The first tensor of a call that has dimensions."""
    return next((v for _, v in leaves_of(arguments) if isinstance(v, torch.Tensor) and v.ndim), None)


def number_of(tensor: torch.Tensor) -> int:
    """The number, in autograd's order, of the node that created the tensor; -1 if none did."""
    return -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()


class Hook(Protocol):
    """What calls back until it is removed."""

    def remove(self) -> None: ...


class ForwardHook:
    """Calls `before` and `after` for every module of this process, outside of what torch.compile compiles."""

    def __init__(self, before: Callable[..., None], after: Callable[..., None] | None = None) -> None:
        self._handles = [torch_module.register_module_forward_pre_hook(Uncopied(before))]
        if after is not None:
            self._handles.append(torch_module.register_module_forward_hook(Uncopied(after), always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


class ModelHook:
    """Calls back with (model, arguments as they were before, output, whether random numbers were drawn)."""

    def __init__(self, returned: Callable[[nn.Module, Arguments, Any, bool], None]) -> None:
        self._returned = returned
        self._entered: list[tuple[tuple[Any, ...], dict[str, Any] | None, Randomness]] = []
        self._handles: list[Any] = []

    @property
    def is_running(self) -> bool:
        """Whether the model runs just now."""
        return bool(self._entered)

    def attach(self, model: nn.Module, inputs: tuple[Any, ...] | None = None) -> None:
        """Begin. `inputs`: the positional arguments of a call that has begun; torch shows its keywords at its end."""
        if inputs is not None:
            self._entered.append((copied(inputs, {})[0], None, Randomness.now()))
        self._handles = [
            model.register_forward_pre_hook(Uncopied(self._before), with_kwargs=True),
            model.register_forward_hook(Uncopied(self._after), with_kwargs=True, always_call=True),
        ]

    def clear(self) -> None:
        """A step ended: no call that began before it matters."""
        self._entered = []

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._entered = [], []

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_paused():
            self._entered.append((*copied(args, kwargs), Randomness.now()))

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if is_paused() or not self._entered:
            return
        inputs, settings, before = self._entered.pop()
        arguments = inputs, copied((), kwargs)[1] if settings is None else settings
        self._returned(module, arguments, output, before != Randomness.now())


class Draw:
    """One batch of a batch sampler, which reaches the loop whole, or in parts (Opacus's BatchMemoryManager).

    `parts` holds the indices of each part so far, and `complete` says that no part follows. `optimizer` is the one that
    Opacus tells of the parts; None if the batch comes whole.
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


_LoaderCallback = Callable[[Any, Any, Part], None]


class _Drawing:
    """What one iterator drew and has not handed out, in the present epoch.

    `late`: it had drawn before anybody listened, or hands out batches in another order.
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


_drawings: weakref.WeakKeyDictionary[Any, _Drawing] = weakref.WeakKeyDictionary()


class LoaderHook:
    """Calls a listener, a bound method that it does not keep alive, with (iterator, batch, part) for every loaded
    batch.

    torch offers no hook here, so `__next__` and `_next_index` of its iterators are replaced until `remove`. Iterators
    draw lists of indices ahead of the batches that workers prepare, and hand these out in the order of the lists.
    """

    def __init__(self, listener: _LoaderCallback) -> None:
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


def _forget(listener: weakref.WeakMethod[_LoaderCallback]) -> None:
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


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSource:
    """The loader and the pass from which a batch came. `divided`: each process draws from its share of the rows."""

    sampling: Sampling
    number: int
    divided: bool = False


@dataclasses.dataclass(frozen=True)
class UsedRows:
    """Rows of a part of a draw, from `start` to `stop` (None: its end), on which a forward pass trains."""

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

    def use_of(self, rows: torch.Tensor | None) -> UsedRows | None:
        """What these rows are; None if no loader gave them, or that cannot be told. Rows that were changed on the way
        are taken for the older of the last two batches that was not used, if it has as many rows and one loader is in
        use.
        """
        if rows is not None and (use := self._with_values(rows)) is not None:
            return use
        unused = [d for d in self._recent if d.used == 0]
        newest = [d for d in list(self._recent)[-_AHEAD:] if d.used == 0]
        fits = [d for d in newest if rows is None or any(t.shape[:1] == rows.shape[:1] for t in d.tensors)]
        if not fits or len({d.source.sampling for d in unused}) > 1:
            return None
        for earlier in unused[: unused.index(fits[0]) + 1]:  # the loop left them out, and trains on this one
            earlier.used = None
        return UsedRows(fits[0].source, fits[0].part)

    def _with_values(self, rows: torch.Tensor) -> UsedRows | None:
        for again in (False, True):  # a batch that was not used comes before one that is used again
            for d in (*self._older, *self._recent):
                if (d.used is None) is not again:
                    continue
                place = d.place(rows, 0 if again else d.used or 0)
                if place is None and not again and d.used:
                    place = d.place(rows, 0)
                if place is not None:
                    if not again:
                        d.used = place[1]
                    return UsedRows(d.source, d.part, *place)
        return None


def _equal(values: torch.Tensor, rows: torch.Tensor) -> bool:
    return values is rows or torch.equal(values.detach().to(rows.device, rows.dtype).reshape(rows.shape), rows)


class StepListener(Protocol):
    """What learns of every step of an optimizer."""

    def before_step(self, optimizer: Any) -> None:
        """A step begins. An error ends it before anything is summed."""

    def after_step(self, optimizer: Any, released: bool | None) -> None:
        """The step made its release, or only summed; None: it was refused."""


class StepHook:
    """Informs a listener of the steps of one optimizer until `remove`, whichever listener comes or goes first.

    Meanwhile `pre_step` of the optimizer, which Opacus calls in every step, is replaced. Its hooks stay as they are.
    """

    def __init__(self, optimizer: Any, listener: StepListener) -> None:
        self._steps = getattr(vars(optimizer).get("pre_step"), "steps", None) or _Steps(optimizer)
        self._listener = listener
        self._steps.listeners.append(listener)

    def remove(self) -> None:
        self._steps.forget(self._listener)


def listeners_of(optimizer: Any) -> list[StepListener]:
    """The listeners to the steps of this optimizer."""
    steps = getattr(vars(optimizer).get("pre_step"), "steps", None)
    return [] if steps is None else list(steps.listeners)


class _Steps:
    """Takes the place of an optimizer's `pre_step`, as long as there are listeners."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self.listeners = optimizer, []  # type: Any, list[StepListener]
        self._outer = vars(optimizer).get("pre_step")
        self._original = optimizer.pre_step
        own: Any = Uncopied(self._pre_step)
        own.steps = self
        self._own = optimizer.pre_step = own

    def forget(self, listener: StepListener) -> None:
        self.listeners = [other for other in self.listeners if other is not listener]
        if not self.listeners and vars(self._optimizer).get("pre_step") is self._own:
            if self._outer is None:
                del self._optimizer.pre_step
            else:
                self._optimizer.pre_step = self._outer

    def _pre_step(self, closure: Any = None) -> Any:
        reached: list[StepListener] = []
        released = None
        try:
            for listener in list(self.listeners):
                reached.append(listener)
                listener.before_step(self._optimizer)
            released = self._original(closure)
        finally:
            error: BaseException | None = None
            for listener in reached:
                try:
                    listener.after_step(self._optimizer, None if released is None else bool(released))
                except Exception as why:  # the other listeners learn of the step as well
                    error = error or why
            if error is not None:
                raise error
        return released
