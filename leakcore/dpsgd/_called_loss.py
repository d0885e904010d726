"""The loss of a training loop, found by watching the modules that it calls, and what it makes of the rows' values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

_NAME_IT = "pass criterion=, a function (outputs, targets)"
_MIXED = (
    "criterion: {name} over several rows is neither the mean nor the sum of what it is for each: a row's gradient "
    "depends on the others in its batch (a mean by class weights or without ignored targets, targets of another shape "
    "than the outputs), which no ε is proved for; let it give a value per row (reduction='none') and take the mean of "
    "these"
)

_thread = threading.local()


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Modules that are called in this thread meanwhile are no part of any loop that is watched."""
    before, _thread.aside = is_aside(), True
    try:
        yield
    finally:
        _thread.aside = before


def is_aside() -> bool:
    """Whether this thread is within `aside`."""
    return getattr(_thread, "aside", False)


def how_reduced(values: torch.Tensor, function: Callable[..., torch.Tensor], rows: tuple[Any, ...]) -> str:
    """Whether `values`, function(*rows), is "mean" or "sum" of what it is for each row; "mixed" if neither.

    "" where that does not show: a single row, arguments that are no rows, values that are not finite, or all zero.
    """
    if not all(isinstance(r, torch.Tensor) and r.ndim > 0 and len(r) == len(rows[0]) for r in rows):
        return ""
    if not rows or len(rows[0]) < 2 or not values.isfinite().all():
        return ""
    given = tuple(r.detach() for r in rows)
    try:
        alone = torch.func.vmap(lambda *row: function(*(r[None] for r in row)).sum())(*given)
    except Exception:  # not row by row: the candidates, of which it will be asked too, say why
        return ""
    total, found, size = float(alone.double().sum()), float(values.double().sum()), float(alone.double().abs().sum())
    error = (4 * torch.finfo(values.dtype).eps + 1e-5) * size
    mean, whole = abs(found * len(alone) - total) <= error, abs(found - total) <= error
    if mean and whole:
        return ""
    return "mean" if mean else "sum" if whole else "mixed"


def require_of_rows(criterion: Callable[..., torch.Tensor], outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """ValueError where the criterion mixes rows."""
    if how_reduced(criterion(outputs, targets), criterion, (outputs, targets)) == "mixed":
        raise ValueError(_MIXED.format(name=getattr(criterion, "__name__", type(criterion).__name__)))


class _Output:
    """What a forward pass of the model gave for `rows`, as it was then. Its graph is not kept: a loop may drop it."""

    def __init__(self, tensor: torch.Tensor, rows: torch.Tensor | None) -> None:
        self.rows = rows
        self._values, self._version = tensor.detach(), tensor._version
        self._number = -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()

    def is_given(self, value: torch.Tensor) -> bool:
        """Whether these are its numbers, in its order."""
        own = self._values
        if own._version != self._version or value.numel() != own.numel():
            return False
        return torch.equal(value.detach().reshape(-1).to(own.dtype), own.reshape(-1))

    def led_to(self, value: torch.Tensor) -> bool:
        """Whether the graph leads back from there: its nodes are numbered as they are made."""
        todo, known = [value.grad_fn], set()
        while todo and self._number >= 0:
            node = todo.pop()
            if node is None or node in known or node._sequence_nr() < self._number:
                continue
            if node._sequence_nr() == self._number:
                return True
            known.add(node)
            todo += [n for n, _ in node.next_functions]
        return False


@dataclasses.dataclass
class _Call:
    """One call of a loss. inside: the module that is no model and called it. made: whether its argument was made of the
    model's outputs, in place of being them. reduced: what `how_reduced` says of it. rows: what went into the model, and
    the targets beside them; None where that is not known. weights: of its values in what the loop went back from, at
    the first backward pass; None before it."""

    loss: _Loss
    inside: nn.Module | None
    made: bool
    reduced: str
    rows: tuple[torch.Tensor, torch.Tensor] | None = None
    weights: torch.Tensor | None = None

    def went_back(self, gradient: torch.Tensor) -> None:
        if self.weights is None:  # ghost clipping goes back once more, with clipped weights
            self.weights = gradient.detach().double()

    def gone_back_from(self) -> set[str]:
        """ "mean" or "sum" of its values: what the loop went back from, both where there is one; {} for another."""
        assert self.weights is not None
        units = {"sum": 1, "mean": self.weights.numel()}
        return {name for name, unit in units.items() if bool(((self.weights * unit - 1).abs() < 0.01).all())}


class CalledLoss:
    """Hooks `before` and `after` every module's forward pass; `take` at every step. A loss counts only if the loop
    went back through it, so metrics do not."""

    def __init__(self, is_model: Callable[[nn.Module], bool]) -> None:
        self._is_model = is_model
        self._running: list[nn.Module] = []
        self._calls: list[_Call] = []
        self._outputs: list[_Output] = []

    def before(self, module: nn.Module) -> None:
        self._running.append(module)

    def gave(self, output: torch.Tensor, rows: torch.Tensor | None) -> None:
        """The model's outputs for rows. A loss that neither they nor what is made of them goes into is another's."""
        self._outputs.append(_Output(output, rows))

    def after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not any(m is module for m in self._running):
            return
        while self._running.pop() is not module:
            pass
        if not isinstance(module, _Loss) or not isinstance(output, torch.Tensor) or not output.requires_grad:
            return
        if any(isinstance(m, _Loss) for m in self._running):  # part of that one
            return
        tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
        given = next((o for o in self._outputs if tensors and o.is_given(tensors[0])), None)
        made = bool(self._outputs and tensors) and given is None
        if made and not any(o.led_to(t) for o in self._outputs for t in tensors):
            return
        inside = next((m for m in self._running if not self._is_model(m)), None)
        reduced = ""
        if output.numel() == 1:
            with aside(), torch.no_grad():
                reduced = how_reduced(output.detach(), module.forward, inputs)
        call = _Call(module, inside, made, reduced)
        if given is not None and given.rows is not None and len(tensors) == 2 and tensors[1].ndim > 0:
            call.rows = given.rows, tensors[1].detach()
        output.register_hook(functools.partial(_Call.went_back, call))  # type: ignore[no-untyped-call]
        self._calls.append(call)

    def take(self, loss_reduction: str) -> tuple[_Loss | None, list[tuple[torch.Tensor, torch.Tensor]]]:
        """The loss of the step that ends here, None if no loss of `torch.nn` was in it; the rows and targets it was of.

        loss_reduction: "mean" or "sum", Opacus's. Raises ValueError where what was called need not be what the loop
        minimises, mixes rows, or is reduced otherwise than Opacus was told.
        """
        calls = [c for c in self._calls if c.weights is not None]
        self._calls, self._running, self._outputs = [], [], []
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
            if call.made:
                raise ValueError(
                    f"criterion: {name} is given what the loop makes of the model's outputs (a temperature, a "
                    f"log_softmax): {_NAME_IT}, that begins with the outputs themselves"
                )
            reductions = call.gone_back_from()
            if not reductions:
                raise ValueError(
                    f"criterion: {name} is only a part of the loss, or multiplied: the loop goes back neither from its "
                    f"mean nor from its sum: {_NAME_IT}"
                )
            if call.reduced == "mixed":
                raise ValueError(_MIXED.format(name=name))
            if call.reduced:
                reductions = {call.reduced}
            elif call.weights is not None and call.weights.numel() == 1:
                continue
            if loss_reduction not in reductions:
                raise ValueError(
                    f"criterion: the loop goes back from the {reductions.pop()} of {name} over rows, and Opacus was "
                    f"told loss_reduction={loss_reduction!r}, by which it scales the gradients before it clips them: "
                    "make them the same"
                )
        return calls[0].loss if calls else None, [c.rows for c in calls if c.rows is not None]


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
