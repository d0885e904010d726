"""The steps of an optimizer, told to its recorders, and which forward passes are in the sum that it releases."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from leakcore.dpsgd.opacus.recorder.forward_passes import ForwardPass
from leakcore.dpsgd.opacus.row_check.uncopied import Uncopied

Entries = Sequence[tuple[ForwardPass, ...]]
"""What each summed gradient was computed from: the forward passes of one backward pass."""


class Listener(Protocol):
    """What is told of every step."""

    def before_step(self, optimizer: Any) -> None:
        """A step begins. An error ends it before anything is summed."""

    def after_step(self, optimizer: Any, released: bool | None) -> None:
        """The step made its release, or only summed; None: it was refused."""


class Steps:
    """Tells listeners of the steps of one optimizer, whichever of them comes or goes first.

    `pre_step` of the optimizer is replaced while there are listeners: Opacus calls it in every step, and afterwards
    updates the parameters. Hooks of the optimizer stay as they are.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._listeners = optimizer, []  # type: Any, list[Listener]
        self._outer: Any = None
        self._own: Any = None

    @classmethod
    def listen(cls, optimizer: Any, listener: Listener) -> Callable[[], None]:
        """Begin to tell this listener; returns what ends it."""
        steps = getattr(vars(optimizer).get("pre_step"), "steps", None) or cls(optimizer)
        if not steps._listeners:
            steps._attach()
        steps._listeners.append(listener)
        return lambda: steps._forget(listener)

    @staticmethod
    def listeners_of(optimizer: Any) -> list[Listener]:
        """Those of this optimizer."""
        steps = getattr(vars(optimizer).get("pre_step"), "steps", None)
        return [] if steps is None else list(steps._listeners)

    def _attach(self) -> None:
        self._outer = vars(self._optimizer).get("pre_step")
        self._original = self._optimizer.pre_step
        self._own = Uncopied(self._pre_step)
        self._own.steps = self
        self._optimizer.pre_step = self._own

    def _forget(self, listener: Listener) -> None:
        self._listeners = [other for other in self._listeners if other is not listener]
        if not self._listeners and vars(self._optimizer).get("pre_step") is self._own:
            if self._outer is None:
                del self._optimizer.pre_step
            else:
                self._optimizer.pre_step = self._outer

    def _pre_step(self, closure: Any = None) -> Any:
        reached: list[Listener] = []
        released = None
        try:
            for listener in list(self._listeners):
                reached.append(listener)
                listener.before_step(self._optimizer)
            released = self._original(closure)
        finally:
            self._end(reached, None if released is None else bool(released))
        return released

    def _end(self, reached: list[Listener], released: bool | None) -> None:
        error: BaseException | None = None
        for listener in reached:
            try:
                listener.after_step(self._optimizer, released)
            except Exception as why:  # the other listeners learn of the step as well
                error = error or why
        if error is not None:
            raise error


class Sums:
    """The tensors that hold the clipped sum of an optimizer, so that a sum is recognised."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._known: list[weakref.ref[torch.Tensor]] = []

    @property
    def are_empty(self) -> bool:
        """Whether nothing is summed."""
        return not self._now()

    @property
    def are_spent(self) -> bool:
        """Whether Opacus released the sum already, and refuses to do so again."""
        return any(hasattr(s, "_processed") for s in self._now())

    @property
    def are_known(self) -> bool:
        """Whether the sum is the one that was there when `know` was called."""
        now = self._now()
        return len(now) == len(self._known) and all(r() is s for r, s in zip(self._known, now, strict=True))

    def know(self) -> None:
        """Recognise the present sum from now on."""
        self._known = [weakref.ref(s) for s in self._now()]

    def _now(self) -> list[torch.Tensor]:
        return [s for p in self._optimizer.params if (s := getattr(p, "summed_grad", None)) is not None]


class SummedPasses:
    """Which forward passes are in the sum of an optimizer: the ones whose gradients it clipped since it was empty.

    A gradient is known by its tensor, a sum by the tensors that hold it. So it does not matter who clears which of
    them, when, and how often.

    Args:
        optimizer: the one that sums.
        passes: gives the forward passes since the last step.
    """

    def __init__(self, optimizer: Any, passes: Callable[[], Iterable[ForwardPass]]) -> None:
        from opacus.optimizers import DPOptimizerFastGradientClipping

        self._optimizer, self._passes = optimizer, passes
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._gradients: dict[int, tuple[weakref.ref[Any], tuple[ForwardPass, ...]]] = {}
        self._clipped: list[tuple[ForwardPass, ...]] | None = []
        """Of ghost clipping, which are in `p.grad`; None: others are, too."""
        self._summed: list[tuple[ForwardPass, ...]] | None = []
        self._sums = Sums(optimizer)
        self._coming: list[tuple[ForwardPass, ...]] | None = []
        self._begun: list[ForwardPass] = []

    def before_backward(self) -> None:
        """A backward pass begins."""
        self._note()
        self._begun = list(self._passes())
        if self._ghost and all(p.grad is None or not bool(p.grad.any()) for p in self._optimizer.params):
            self._clipped = []

    def before_step(self) -> None:
        """The gradients that there are will be summed."""
        self._note()
        self._coming = self._clipped if self._ghost else self._of_gradients()
        if self._sums.are_empty:
            self._summed = []
        elif not self._sums.are_known:
            self._summed = None

    def after_step(self, released: bool | None) -> Entries | None:
        """They were summed. Gives what the sum holds, by gradients; None if it holds others, too."""
        if released is None:  # in the middle of summing, perhaps
            self._summed = None
        elif getattr(self._optimizer, "sum_is_fresh", False):
            self._summed = self._coming
        elif self._summed is not None:
            self._summed = None if self._coming is None else [*self._summed, *self._coming]
        self._sums.know()
        summed = self._summed
        if released:
            self._clipped = self._summed = None  # until both are cleared
        return summed

    @property
    def holds_others(self) -> bool:
        """Before a step: whether the sum holds rows already, which did not come of these passes, and is not spent."""
        return self._summed is None and not self._sums.are_spent

    def _note(self) -> None:
        """The gradients that are new belong to the passes that a loss went back through since the last call."""
        gone = tuple(p for p in self._passes() if p.went_back and (not p.is_opaque or p in self._begun))
        if self._ghost:
            if gone and self._clipped is not None:
                self._clipped = [*self._clipped, gone]
        else:
            present = {id(g): g for p in self._optimizer.params for g in _gradients_of(p)}
            self._gradients = {k: v for k, v in self._gradients.items() if k in present and v[0]() is present[k]}
            for key, gradient in present.items():
                if key not in self._gradients and gone:
                    self._gradients[key] = weakref.ref(gradient), gone
        for one in gone:
            one.went_back = False

    def _of_gradients(self) -> list[tuple[ForwardPass, ...]] | None:
        most: collections.Counter[int] = collections.Counter()
        known: dict[int, tuple[ForwardPass, ...]] = {}
        for p in self._optimizer.params:
            own: collections.Counter[int] = collections.Counter()
            for gradient in _gradients_of(p):
                if id(gradient) not in self._gradients:
                    return None
                passes = self._gradients[id(gradient)][1]
                known[id(passes)] = passes
                own[id(passes)] += 1
            most |= own
        return [known[key] for key, count in most.items() for _ in range(count)]


def _gradients_of(parameter: Any) -> list[Any]:
    samples = getattr(parameter, "grad_sample", None)
    return samples if isinstance(samples, list) else [] if samples is None else [samples]
