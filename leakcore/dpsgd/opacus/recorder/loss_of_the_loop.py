"""The loss of a training loop, found by watching the modules that it calls, and what it makes of the rows' values."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from leakcore.dpsgd.opacus.recorder.aside import aside
from leakcore.dpsgd.opacus.recorder.forward_passes import Output, number_of
from leakcore.dpsgd.opacus.row_check.left_alone import left_alone
from leakcore.gradients import Reached

_NAME_IT = "pass criterion=, a function (outputs, targets)"
_MIXED = (
    "criterion: {name} over several rows is neither the mean nor the sum of what it is for each: a row's gradient "
    "depends on the others in its batch (a mean by class weights or without ignored targets, targets of another shape "
    "than the outputs), which no ε is proved for; let it give a value per row (reduction='none') and take the mean of "
    "these"
)


def how_reduced(
    values: torch.Tensor, function: Callable[..., torch.Tensor], rows: tuple[Any, ...], owner: Any = None
) -> str:
    """Whether `values`, function(*rows), is "mean" or "sum" of what it is for each row; "mixed" if neither.

    "" where that does not show: a single row, arguments that are no rows, values that are not finite, or all zero.
    owner: the module of which the function is a method, left as it is.
    """
    if not all(isinstance(r, torch.Tensor) and r.ndim > 0 and len(r) == len(rows[0]) for r in rows):
        return ""
    if not rows or len(rows[0]) < 2 or not values.isfinite().all():
        return ""
    given = tuple(r.detach() for r in rows)
    with left_alone(None, owner) as state:
        try:
            alone = torch.func.vmap(lambda *row: function(*(r[None] for r in row)).sum())(*given)
        except Exception:  # what vmap cannot do
            try:
                state.restore()
                alone = torch.stack([function(*(r[k : k + 1] for r in given)).sum() for k in range(len(given[0]))])
            except Exception:  # not row by row: the candidates, of which it will be asked too, say why
                return ""
    total, whole_value = float(alone.double().sum()), float(values.double().sum())
    error = (4 * torch.finfo(values.dtype).eps + 1e-5) * float(alone.double().abs().sum())
    mean, whole = abs(whole_value * len(alone) - total) <= error, abs(whole_value - total) <= error
    if mean and whole:
        return ""
    return "mean" if mean else "sum" if whole else "mixed"


def require_of_rows(criterion: Callable[..., torch.Tensor], outputs: Any, targets: torch.Tensor) -> None:
    """ValueError where the criterion mixes rows."""
    leaves, form = tree_flatten(outputs)

    def function(*rows: Any) -> torch.Tensor:
        return criterion(tree_unflatten(rows[:-1], form), rows[-1])

    if how_reduced(criterion(outputs, targets), function, (*leaves, targets), criterion) == "mixed":
        raise ValueError(_MIXED.format(name=getattr(criterion, "__name__", type(criterion).__name__)))


@dataclasses.dataclass
class _LossCall:
    """One call of a loss. inside: the module that is no model and called it. output: the model's that it was given;
    None where it was given what is made of the model's outputs, in place of being them, or where these are unknown.
    made: whether it was the former. reduced: what `how_reduced` says of it. targets: what stood next to the outputs.
    number: of its value's node. together: the calls that one backward pass goes through. part: whether that pass
    reaches the model's outputs around the loss, too. weights: of its values in what the loop went back from, at the
    first backward pass; None before it."""

    loss: nn.Module
    inside: nn.Module | None
    output: Output | None
    made: bool
    reduced: str
    targets: torch.Tensor | None
    number: int
    together: int = 1
    part: bool = False
    weights: torch.Tensor | None = None

    def went_back(self, gradient: torch.Tensor) -> None:
        if self.weights is None:  # ghost clipping goes back once more, with clipped weights
            self.weights = gradient.detach().double()
            if self.output is not None:
                self.output.of.targets = self.targets

    @property
    def rows(self) -> int:
        """As many values as rows are one for each row."""
        assert self.weights is not None
        known = self.output is not None and self.output.of.rows is not None
        if known and self.weights.numel() % max(1, len(self.output.of.rows)) == 0:  # type: ignore[union-attr, arg-type]
            return len(self.output.of.rows)  # type: ignore[union-attr, arg-type]
        return len(self.weights) if self.weights.ndim else 1


class CalledLoss:
    """Hooks `before` and `after` every module's forward pass, and `go_back` every backward pass; `take` at every step.
    A loss counts only if the loop went back through it, so metrics do not.

    named: the one module that is the loss. None: every loss of `torch.nn` may be it."""

    def __init__(self, is_model: Callable[[nn.Module], bool], named: nn.Module | None = None) -> None:
        self._is_model, self._named = is_model, named
        self._running: list[nn.Module] = []
        self._calls: list[_LossCall] = []
        self._outputs: list[Output] = []

    def before(self, module: nn.Module) -> None:
        self._running.append(module)

    def gave(self, outputs: list[Output]) -> None:
        """The model's. A loss that neither they nor what is made of them goes into is another's."""
        self._outputs += outputs

    def after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not any(m is module for m in self._running):
            return
        while self._running.pop() is not module:
            pass
        if not self._is_loss(module) or not isinstance(output, torch.Tensor) or not output.requires_grad:
            return
        if any(self._is_loss(m) for m in self._running):  # part of that one
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
                reduced = how_reduced(output.detach(), module.forward, inputs, module)
        targets = tensors[1].detach().clone() if len(tensors) == 2 and tensors[1].ndim > 0 else None
        call = _LossCall(module, inside, given, made, reduced, targets, number_of(output))
        output.register_hook(functools.partial(_LossCall.went_back, call))  # type: ignore[no-untyped-call]
        self._calls.append(call)

    def go_back(self, roots: list[Any]) -> None:
        """A backward pass begins at these nodes."""
        calls = {c.number: c for c in self._calls if c.weights is None}
        reached = Reached(roots, calls)
        for number in reached.stopped:
            calls[number].together = len(reached.stopped)
            calls[number].part = any(o.number in reached.inner for o in self._outputs)

    def clear(self) -> None:
        """A step ended."""
        self._calls, self._running, self._outputs = [], [], []

    def take(self, loss_reduction: str) -> Callable[..., torch.Tensor] | None:
        """The loss of the step that ends here, as a function of what the model gives; None if none was in it.

        loss_reduction: "mean" or "sum", Opacus's. Raises ValueError where what was called need not be what the loop
        minimises, mixes rows, or is reduced otherwise than Opacus was told.
        """
        calls = [c for c in self._calls if c.weights is not None]
        self.clear()
        for call in calls:
            if not _alike(call.loss, calls[0].loss):
                name, other = type(call.loss).__name__, type(calls[0].loss).__name__
                raise ValueError(f"criterion: {other} and another {name} are in one step: {_NAME_IT}")
        for call in calls:
            _require_whole(call)
        units = [_unit(call, loss_reduction) for call in calls]
        if not calls:
            return None
        leaves = {c.output.leaf for c in calls if c.output is not None}
        if len(leaves) > 1 or any(not math.isclose(u, units[0], rel_tol=1e-2) for u in units):
            raise ValueError(
                f"criterion: {type(calls[0].loss).__name__} is of several outputs of the model, or of rows of several "
                f"lengths: {_NAME_IT}"
            )
        leaf = leaves.pop() if leaves else None
        loss = calls[0].loss
        return loss if leaf is None and units[0] == 1 else functools.partial(_of_leaf, loss, leaf, units[0])

    def _is_loss(self, module: nn.Module) -> bool:
        return isinstance(module, _Loss) if self._named is None else module is self._named


def _of_leaf(loss: nn.Module, leaf: int | None, factor: float, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """A loss of one of the tensors that the model gives, times a factor."""
    values: torch.Tensor = loss(outputs if leaf is None else tree_leaves(outputs)[leaf], targets)
    return values * factor


def _require_whole(call: _LossCall) -> None:
    """ValueError where the loop goes back from more than this call, or gives it other than the model's outputs."""
    name = type(call.loss).__name__
    if call.inside is not None:
        raise ValueError(
            f"criterion: {name} is called inside {type(call.inside).__name__}, whose loss may be another: {_NAME_IT}"
        )
    if call.made:
        raise ValueError(
            f"criterion: {name} is given what the loop makes of the model's outputs (a temperature, a log_softmax): "
            f"{_NAME_IT}, that begins with the outputs themselves"
        )
    if call.together > 1:
        raise ValueError(
            f"criterion: {name} goes into one backward pass {call.together} times, and is only a part of the loss each "
            f"time: {_NAME_IT}, that adds them up; go back from every forward pass of other rows by itself"
        )
    if call.part:
        raise ValueError(
            f"criterion: {name} is only a part of the loss: the loop adds to it what goes back to the model's outputs "
            f"as well (a penalty on them, a second loss): {_NAME_IT}"
        )


def _unit(call: _LossCall, loss_reduction: str) -> float:
    """What the sum of a row's values is multiplied by to be the row's loss, of which Opacus takes the mean or the sum.
    ValueError where the loop multiplies the loss, mixes rows, or reduces it otherwise than Opacus was told."""
    assert call.weights is not None
    name, weights = type(call.loss).__name__, call.weights.reshape(-1)
    count = len(weights)
    if count == 0:
        return 1.0
    first, each = float(weights[0]), max(1, count // max(1, call.rows))
    units: dict[str, float] = {}
    if bool(((weights - first).abs() <= 0.01 * abs(first)).all()):
        sizes = (("sum", 1, 1.0), ("mean", count, 1.0 / each), ("mean", count // each, 1.0))
        units = {reduction: unit for reduction, size, unit in sizes if abs(first * size - 1) < 0.01}
    if not units:
        times = first * (count if loss_reduction == "mean" else 1)
        raise ValueError(
            f"criterion: {name} is only a part of the loss, or multiplied (by {times:.4g}): the loop goes back neither "
            f"from its mean nor from its sum: {_NAME_IT}, that multiplies it likewise"
        )
    if call.reduced == "mixed":
        raise ValueError(_MIXED.format(name=name))
    if count == 1 and not call.reduced:
        return 1.0
    if call.reduced:
        units = {call.reduced: 1.0}
    if loss_reduction not in units:
        raise ValueError(
            f"criterion: the loop goes back from the {next(iter(units))} of {name} over rows, and Opacus was "
            f"told loss_reduction={loss_reduction!r}, by which it scales the gradients before it clips them: "
            "make them the same"
        )
    return units[loss_reduction]


def _alike(a: nn.Module, b: nn.Module) -> bool:
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
