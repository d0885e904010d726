"""The loss of a training loop, found by watching the modules that it calls."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

_NAME_IT = "pass criterion=, a function (outputs, targets)"


@dataclasses.dataclass
class _Call:
    """One call of a loss. inside: the module that is no model and called it. weights: of its values in what the loop
    went back from, at the first backward pass; None before it."""

    loss: _Loss
    inside: nn.Module | None
    weights: torch.Tensor | None = None

    def went_back(self, gradient: torch.Tensor) -> None:
        if self.weights is None:  # ghost clipping goes back once more, with clipped weights
            self.weights = gradient.detach().double()

    def is_whole(self) -> bool:
        """Whether the loop went back from the mean of its values, or their sum."""
        assert self.weights is not None
        n = self.weights.numel()
        return any(bool(((self.weights * unit - 1).abs() < 0.01).all()) for unit in (1, n))


class CalledLoss:
    """Hooks `before` and `after` every module's forward pass; `take` at every step. A loss counts only if the loop
    went back through it, so metrics do not."""

    def __init__(self, is_model: Callable[[nn.Module], bool]) -> None:
        self._is_model = is_model
        self._running: list[nn.Module] = []
        self._calls: list[_Call] = []

    def before(self, module: nn.Module) -> None:
        self._running.append(module)

    def after(self, module: nn.Module, output: Any) -> None:
        if not any(m is module for m in self._running):
            return
        while self._running.pop() is not module:
            pass
        if not isinstance(module, _Loss) or not isinstance(output, torch.Tensor) or not output.requires_grad:
            return
        if any(isinstance(m, _Loss) for m in self._running):  # part of that one
            return
        call = _Call(module, next((m for m in self._running if not self._is_model(m)), None))
        output.register_hook(functools.partial(_Call.went_back, call))  # type: ignore[no-untyped-call]
        self._calls.append(call)

    def take(self) -> _Loss | None:
        """The loss of the step that ends here, None if no loss of `torch.nn` was in it.

        Raises ValueError where what was called need not be what the loop minimises.
        """
        calls, self._calls, self._running = [c for c in self._calls if c.weights is not None], [], []
        for call in calls:
            name = type(call.loss).__name__
            if not _alike(call.loss, calls[0].loss):
                other = type(calls[0].loss).__name__
                raise ValueError(f"criterion: {other} and another {name} are in one step: {_NAME_IT}")
            if call.inside is not None:
                raise ValueError(
                    f"criterion: {name} is called inside {type(call.inside).__name__}, whose loss may be another: "
                    f"{_NAME_IT}"
                )
            if not call.is_whole():
                raise ValueError(
                    f"criterion: {name} is only a part of the loss, or multiplied: the loop goes back neither from its "
                    f"mean nor from its sum: {_NAME_IT}"
                )
        return calls[0].loss if calls else None


def _alike(a: _Loss, b: _Loss) -> bool:
    """The same function: one module, or two of one class with equal settings and buffers."""
    if a is b:
        return True
    if type(a) is not type(b) or next(a.children(), None) is not None or next(b.children(), None) is not None:
        return False
    ours, theirs = ({k: v for k, v in vars(m).items() if not k.startswith("_")} for m in (a, b))
    if ours.keys() != theirs.keys() or not all(_equal(ours[k], theirs[k]) for k in ours):
        return False
    state, other = a.state_dict(), b.state_dict()
    return state.keys() == other.keys() and all(torch.equal(state[k], other[k]) for k in state)


def _equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, (str, int, float)) and isinstance(b, (str, int, float)) and a == b)
