"""The loss of a training loop, recognised by the modules that the loop calls, and how it reduces the rows' values."""

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
    """Whether `values` = function(*rows) is the "mean" or the "sum" of the function's values for each row, or "mixed".

    It is "" if that cannot be seen: a single row, arguments that are not rows, values that are not finite or all zero.
    `owner` is the module whose method the function is; it stays unchanged.
    """
    if not all(isinstance(r, torch.Tensor) and r.ndim > 0 and len(r) == len(rows[0]) for r in rows):
        return ""
    if not rows or len(rows[0]) < 2 or not values.isfinite().all():
        return ""
    detached = tuple(r.detach() for r in rows)
    with left_alone(None, owner) as state:
        try:
            alone = torch.func.vmap(lambda *row: function(*(r[None] for r in row)).sum())(*detached)
        except Exception:  # what vmap cannot do
            try:
                state.restore()
                alone = torch.stack(
                    [function(*(r[k : k + 1] for r in detached)).sum() for k in range(len(detached[0]))]
                )
            except Exception:  # not row by row; the candidates, which are tried as well, say why
                return ""
    total, whole_value = float(alone.double().sum()), float(values.double().sum())
    error = (4 * torch.finfo(values.dtype).eps + 1e-5) * float(alone.double().abs().sum())
    mean, whole = abs(whole_value * len(alone) - total) <= error, abs(whole_value - total) <= error
    if mean and whole:
        return ""
    return "mean" if mean else "sum" if whole else "mixed"


def require_of_rows(criterion: Callable[..., torch.Tensor], outputs: Any, targets: torch.Tensor) -> None:
    """ValueError if the criterion mixes rows."""
    leaves, form = tree_flatten(outputs)

    def function(*rows: Any) -> torch.Tensor:
        return criterion(tree_unflatten(rows[:-1], form), rows[-1])

    if how_reduced(criterion(outputs, targets), function, (*leaves, targets), criterion) == "mixed":
        raise ValueError(_MIXED.format(name=getattr(criterion, "__name__", type(criterion).__name__)))


@dataclasses.dataclass
class _LossCall:
    """One call of a loss.

    Attributes:
        inside: the module, other than the model, that called it.
        output: the model's output that it received; None if it received something derived from outputs, or if these are
            unknown.
        derived: whether it received something derived from the model's outputs.
        reduced: what `how_reduced` says of it.
        targets: the argument next to the outputs.
        number: of the node of its value.
        together: the calls that one backward pass goes through.
        part: whether that pass also reaches the model's outputs around the loss.
        weights: of its values in what the loop went back from, at the first backward pass; None before it.
    """

    loss: nn.Module
    inside: nn.Module | None
    output: Output | None
    derived: bool
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
        """The number of values that are one value for each row."""
        assert self.weights is not None
        known = self.output is not None and self.output.of.rows is not None
        if known and self.weights.numel() % max(1, len(self.output.of.rows)) == 0:  # type: ignore[union-attr, arg-type]
            return len(self.output.of.rows)  # type: ignore[union-attr, arg-type]
        return len(self.weights) if self.weights.ndim else 1


class CalledLoss:
    """Hooks `before` and `after` every module's forward pass, and `go_back` every backward pass; `take` at every step.

    A loss counts only if the loop went back through it, so metrics do not count.

    Args:
        named: the module that is the loss. None: any loss of `torch.nn` may be it.
    """

    def __init__(self, is_model: Callable[[nn.Module], bool], named: nn.Module | None = None) -> None:
        self._is_model, self._named = is_model, named
        self._running: list[nn.Module] = []
        self._calls: list[_LossCall] = []
        self._outputs: list[Output] = []

    def before(self, module: nn.Module) -> None:
        self._running.append(module)

    def gave(self, outputs: list[Output]) -> None:
        """Note outputs of the model.

        A loss that receives neither these nor something derived from them belongs to another model.
        """
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
        output_used = next((o for o in self._outputs if tensors and o.is_given(tensors[0])), None)
        derived = bool(self._outputs and tensors) and output_used is None
        if derived and not any(o.led_to(t) for o in self._outputs for t in tensors):
            return
        inside = next((m for m in self._running if not self._is_model(m)), None)
        reduced = ""
        if output.numel() == 1:
            with aside(), torch.no_grad():
                reduced = how_reduced(output.detach(), module.forward, inputs, module)
        targets = tensors[1].detach().clone() if len(tensors) == 2 and tensors[1].ndim > 0 else None
        call = _LossCall(module, inside, output_used, derived, reduced, targets, number_of(output))
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
        """The loss of the step that ends here, as a function of the model's output; None if the step had no loss.

        Args:
            loss_reduction: "mean" or "sum", Opacus's.

        Raises:
            ValueError: if the call may not be what the loop minimises, if it mixes rows, or if it is reduced in another
                way than Opacus assumes.
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
                f"criterion: {type(calls[0].loss).__name__} depends on several outputs of the model, or on rows of "
                f"several lengths: {_NAME_IT}"
            )
        leaf = leaves.pop() if leaves else None
        loss = calls[0].loss
        return loss if leaf is None and units[0] == 1 else functools.partial(_of_leaf, loss, leaf, units[0])

    def _is_loss(self, module: nn.Module) -> bool:
        return isinstance(module, _Loss) if self._named is None else module is self._named


def _of_leaf(loss: nn.Module, leaf: int | None, factor: float, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """A loss of one of the tensors that the model returns, times a factor."""
    values: torch.Tensor = loss(outputs if leaf is None else tree_leaves(outputs)[leaf], targets)
    return values * factor


def _require_whole(call: _LossCall) -> None:
    """ValueError if the loop goes back from more than this call, or passes it other things than the model's outputs."""
    name = type(call.loss).__name__
    if call.inside is not None:
        raise ValueError(
            f"criterion: {name} is called inside {type(call.inside).__name__}, whose loss may be another: {_NAME_IT}"
        )
    if call.derived:
        raise ValueError(
            f"criterion: {name} receives something derived from the model's outputs (a temperature, a log_softmax): "
            f"{_NAME_IT}, that begins with the outputs themselves"
        )
    if call.together > 1:
        raise ValueError(
            f"criterion: {name} is called {call.together} times for one backward pass, and is only a part of the loss "
            f"each time: {_NAME_IT}, that adds them; call backward() for each forward pass separately"
        )
    if call.part:
        raise ValueError(
            f"criterion: {name} is only a part of the loss: the loop adds a term that also goes back to the model's "
            f"outputs (a penalty on them, a second loss): {_NAME_IT}"
        )


def _unit(call: _LossCall, loss_reduction: str) -> float:
    """The factor that turns the sum of a row's values into the row's loss; Opacus takes the mean or the sum of these
    losses.

    Raises:
        ValueError: if the loop multiplies the loss, mixes rows, or reduces it in another way than Opacus assumes.
    """
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
            f"criterion: {name} is only a part of the loss, or multiplied (by {times:.4g}): the loop calls backward() "
            f"neither on its mean nor on its sum: {_NAME_IT}, with the same factor"
        )
    if call.reduced == "mixed":
        raise ValueError(_MIXED.format(name=name))
    if count == 1 and not call.reduced:
        return 1.0
    if call.reduced:
        units = {call.reduced: 1.0}
    if loss_reduction not in units:
        raise ValueError(
            f"criterion: the loop calls backward() on the {next(iter(units))} of {name} over rows, but Opacus has "
            f"loss_reduction={loss_reduction!r}, by which it scales the gradients before it clips them: "
            "make them the same"
        )
    return units[loss_reduction]


def _alike(a: nn.Module, b: nn.Module) -> bool:
    """Whether they are the same function: one module, or two of one class with equal settings and buffers."""
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
