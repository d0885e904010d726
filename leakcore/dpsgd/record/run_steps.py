"""The place of the recorded steps in their run, and the steps of the run that were not recorded."""

from __future__ import annotations

import functools
import inspect
import math
import types
import weakref
from typing import Any

import numpy as np
import torch
from opacus.accountants.accountant import IAccountant

from leakcore._base.digest import digest
from leakcore.dpsgd.trace.trace import Origin, Stretch, between, settings_of

_DEPTH = 6
_PLAIN = (str, bytes, int, float, bool, list, tuple, dict, set, type(None))
_COUNTED = "Adadelta Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SparseAdam"
_COUNTING = tuple(getattr(torch.optim, name) for name in _COUNTED.split())
"""Optimizers of torch whose state counts their steps, also after it was loaded from a checkpoint."""
Place = tuple[int, int]
"""Steps before this one: as the accountant counts, and as the wrapped optimizer does."""


def accountants_of(hook: Any) -> list[Any]:
    """The accountants that an optimizer's step hook can inform, also through hooks and objects around them."""
    accountants: dict[int, Any] = {}
    looked_at: set[int] = set()
    waiting = [(hook, 0)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, IAccountant):
            accountants[id(value)] = value
        elif not isinstance(value, _PLAIN) and id(value) not in looked_at and depth < _DEPTH:
            looked_at.add(id(value))
            waiting += [(inner, depth + 1) for inner in _behind(value)]
    return list(accountants.values())


def _behind(value: Any) -> list[Any]:
    """What a function closes over or reads from its module, or what a method's object or another object holds."""
    if inspect.isfunction(value):
        empty = types.CellType()  # of a name that is not bound yet
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != empty]
        return [*cells, *(value.__globals__[n] for n in value.__code__.co_names if n in value.__globals__)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (type, types.ModuleType, torch.nn.Module, torch.Tensor)):
        return []
    attributes = getattr(value, "__dict__", None)
    return list(attributes.values()) if isinstance(attributes, dict) else []


def read_history(accountant: Any) -> list[tuple[float, float | None, int]] | None:
    """(σ, q, steps) in the order of the run; None for an accountant of another kind.

    A rate above 1 (Opacus multiplies q by the number of batches that a step accumulates) is None.
    """
    out: list[tuple[float, float | None, int]] = []
    history = getattr(accountant, "history", None)
    if not isinstance(history, list):
        return None
    try:
        for sigma, rate, steps in history:
            q = min(1.0, float(rate)) if 0 <= rate <= 1 + 1e-9 else None
            if not (math.isfinite(sigma) and sigma >= 0 and steps == int(steps) and steps >= 1):
                return None
            out.append((float(sigma), q, int(steps)))
    except (TypeError, ValueError):
        return None
    return out


class StepCount:
    """The steps of a torch optimizer: the count in its state, and the steps since the first recorder was created."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.complete = type(optimizer) in _COUNTING
        self._steps = 0
        optimizer.register_step_post_hook(self._after)

    def _after(self, *_: Any) -> None:
        self._steps += 1

    def read(self, optimizer: torch.optim.Optimizer) -> int:
        """Steps so far; if they are not `complete`, there may have been more before the first recorder was created."""
        self._steps = max([self._steps, *(_steps_of(state) for state in optimizer.state.values())])
        return self._steps


def _steps_of(state: Any) -> int:
    """The steps behind this state of a parameter: their number, or 1 for a momentum, which only a step leaves."""
    if not isinstance(state, dict):
        return 0
    count = state.get("step", state.get("n_iter"))
    if isinstance(count, (int, float, torch.Tensor)):
        return int(count)
    return int(state.get("momentum_buffer") is not None)


_COUNTS: weakref.WeakKeyDictionary[torch.optim.Optimizer, StepCount] = weakref.WeakKeyDictionary()
"""The count of each optimizer, shared by all its recorders."""


class RunSteps:
    """The recorded steps and their place among all steps of the run. The others come from the history of the accountant
    that the optimizer's hook informs, if that counts each recorded step once; else from the wrapped optimizer's own
    count.
    """

    def __init__(self, optimizer: Any, candidates: list[Any]) -> None:
        self._optimizer, self._candidates = optimizer, candidates
        self._wrapped = optimizer.original_optimizer
        if self._wrapped not in _COUNTS:
            _COUNTS[self._wrapped] = StepCount(self._wrapped)
        self._count = _COUNTS[self._wrapped]
        self._hook: Any = None
        self._accountant: Any = None
        self._accountants: list[Any] = []
        self._counted: list[int | None] = []
        self._agrees = True
        self._places: list[Place] = []
        self._known_candidates, self._before = "", ""
        self._after: tuple[int, str] | None = None

    def enter(self, hook: Any) -> None:
        """A recording begins; `hook` is what the optimizer calls at each step."""
        self._hook = hook
        self._accountants = accountants_of(hook)

    def leave(self) -> None:
        """A recording ends. If its last step was finished, the present parameters are the ones after that step."""
        if self._places and self._count.read(self._wrapped) == self._places[-1][1] + 1:
            self._after = len(self._places), digest(self._optimizer.params)

    def before(self) -> None:
        """A step begins, in which the optimizer's hook may inform accountants."""
        if self._optimizer.step_hook is not self._hook:
            self.enter(self._optimizer.step_hook)
        self._counted = [_total(a) for a in self._accountants]

    def account(self) -> Place:
        """The place of this step, which ends."""
        before, after = self._counted, [_total(a) for a in self._accountants]
        counted = [
            (b, a) for a, b, e in zip(self._accountants, before, after, strict=True) if b is not None and e == b + 1
        ]
        own = self._count.read(self._wrapped)
        if not self._places and counted:
            self._accountant = max(counted, key=lambda c: c[0])[1]
        mine = [b for b, accountant in counted if accountant is self._accountant]
        self._agrees = self._agrees and bool(mine)
        return mine[0] if mine else max([b for b in before if b is not None], default=own), own

    def take(self, place: Place) -> None:
        """The step at this place was recorded; the present parameters are the ones before it."""
        if not self._places:
            self._before = digest(self._optimizer.params)
        self._places.append(place)

    def candidates(self) -> str:
        """A digest of the candidates."""
        self._known_candidates = self._known_candidates or digest(self._candidates)
        return self._known_candidates

    def origin(self) -> Origin:
        """What identifies the trace of these steps."""
        after = self._after[1] if self._after is not None and self._after[0] == len(self._places) else None
        shapes = tuple(tuple(p.shape) for p in self._optimizer.params)
        return Origin(candidates=self.candidates(), shapes=shapes, before=self._before, after=after)

    def unrecorded(self, noise_multiplier: np.ndarray, sample_rate: float | None) -> tuple[tuple[Stretch, ...], bool]:
        """The run's steps up to now that were not recorded, and whether there can be no others."""
        if len(self._places) != len(noise_multiplier):  # interrupted in the middle of a step
            return (), False
        places, own = np.array(self._places, dtype=np.int64).T
        own_total = max(self._count.read(self._wrapped), int(own[-1]) + 1)
        history = read_history(self._accountant) if self._agrees else None
        if history is not None and _fits(history, places, noise_multiplier):
            total = sum(steps for *_, steps in history)
            stretches = settings_of(history, between(places, total))
            if sample_rate is not None and not _sampled(history, places, sample_rate):
                stretches = tuple(s._replace(sample_rate=None) for s in stretches)
            missing = max(int((own - places).max()), own_total - total)
            if missing > 0:  # the optimizer made steps that the accountant does not know
                return (Stretch(0, None, None, missing), *stretches), False
            return stretches, True
        if not (np.diff(own) > 0).all():
            return (), False
        counted = between(own, own_total)
        more = int(places[0]) - int(own[0])
        first = [Stretch(0, None, None, more)] if more > 0 else []
        rest = [Stretch(after, None, None, end - start) for after, start, end in counted]
        return (*first, *rest), self._count.complete and not self._accountants


def _total(accountant: Any) -> int | None:
    history = read_history(accountant)
    return None if history is None else sum(steps for *_, steps in history)


def _entries(history: list[tuple[float, float | None, int]], places: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum([steps for *_, steps in history]), places, side="right")


def _fits(history: list[tuple[float, float | None, int]], places: np.ndarray, noise_multiplier: np.ndarray) -> bool:
    """Whether the history still has every recorded step in its place."""
    if not (np.diff(places) > 0).all() or places[-1] >= sum(steps for *_, steps in history):
        return False
    sigma = np.array([s for s, *_ in history])[_entries(history, places)]
    return bool(np.allclose(sigma, noise_multiplier, rtol=1e-9, atol=0))


def _sampled(history: list[tuple[float, float | None, int]], places: np.ndarray, sample_rate: float) -> bool:
    """Whether the accountant and the recorder agree on how the recorded steps were sampled."""
    rates = np.array([np.nan if q is None else q for _, q, _ in history])[_entries(history, places)]
    return bool(np.allclose(rates, sample_rate, rtol=1e-9, atol=0))
