"""Steps before and between recordings: Opacus's accountant, and the wrapped optimizer's own count."""

from __future__ import annotations

import functools
import inspect
import math
import types
import weakref
from typing import Any

import torch

_DEPTH = 6
_PLAIN = (str, bytes, int, float, bool, list, tuple, dict, set, type(None))
_COUNTING = tuple(
    getattr(torch.optim, name)
    for name in (
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "ASGD",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SparseAdam",
    )
)
"""Optimizers of torch whose state counts their steps, also after it was loaded from a checkpoint."""


def accountants_of(hook: Any) -> list[Any]:
    """The accountants that an optimizer's step hook can inform, also through hooks and objects around them."""
    from opacus.accountants.accountant import IAccountant

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


def step_count(optimizer: torch.optim.Optimizer) -> StepCount:
    """The count of this optimizer, shared by all its recorders."""
    if optimizer not in _COUNTS:
        _COUNTS[optimizer] = StepCount(optimizer)
    return _COUNTS[optimizer]
