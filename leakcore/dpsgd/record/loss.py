"""The loss of a training loop: recognised by the modules that it calls, how it reduces rows, and its other terms."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from leakcore.dpsgd.record.forward_passes import ForwardPass, Output
from leakcore.dpsgd.rows.hooks import number_of
from leakcore.dpsgd.rows.preserve_state import pause_recording, preserve_state
from leakcore.gradients import Criterion, Reached, around

_NARROW = (torch.float16, torch.bfloat16)
_NAME_IT = "pass criterion=, a function (outputs, targets)"
_MIXED = (
    "criterion: {name} over several rows is neither the mean nor the sum of what it is for each: a row's gradient "
    "depends on the others in its batch (a mean by class weights or without ignored targets, targets of another shape "
    "than the outputs); this has no DP guarantee. Let it give a value per row (reduction='none') and take the mean of "
    "these"
)
_OTHERWISE = (
    "criterion: the loop calls backward() on the {reduced} of {name} over rows, but Opacus has "
    "loss_reduction={loss_reduction!r}, by which it scales the gradients before it clips them: make them the same"
)
_log = logging.getLogger(__name__)


def how_reduced(
    values: torch.Tensor, function: Callable[..., torch.Tensor], rows: tuple[Any, ...], owner: Any = None
) -> str:
    """Whether `values` = function(*rows) is the "mean" or the "sum" of the function's values for each row, or "mixed".

    It is "" if that cannot be seen: a single row, arguments that are not rows, values that are not finite or all zero.
    `owner`, the module whose method the function is, stays unchanged.
    """
    if not all(isinstance(r, torch.Tensor) and r.ndim > 0 and len(r) == len(rows[0]) for r in rows):
        return ""
    if not rows or len(rows[0]) < 2 or not values.isfinite().all():
        return ""
    detached = tuple(r.detach().float() if r.dtype in _NARROW else r.detach() for r in rows)
    with preserve_state(None, owner) as state:
        try:
            if any(r.dtype in _NARROW for r in rows):  # whose rounding would hide what is mixed
                values = function(*detached)
                state.restore()
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


def require_of_rows(criterion: Callable[..., torch.Tensor], outputs: Any, targets: Any, loss_reduction: str) -> bool:
    """Whether the criterion is known to be a mean or a sum over rows.

    ValueError if it mixes rows, or if one number of all rows is reduced otherwise than Opacus assumes.
    """
    leaves, form = tree_flatten((outputs, targets))

    def function(*rows: Any) -> torch.Tensor:
        return criterion(*tree_unflatten(rows, form))

    values = criterion(outputs, targets)
    reduced = how_reduced(values, function, tuple(leaves), criterion)
    if reduced == "mixed":
        raise ValueError(_MIXED.format(name=_name(criterion)))
    if values.numel() == 1 and reduced not in ("", loss_reduction):
        raise ValueError(_OTHERWISE.format(reduced=reduced, name=_name(criterion), loss_reduction=loss_reduction))
    return bool(reduced)


def require_reduced(
    criterion: Callable[..., torch.Tensor], together: torch.Tensor, alone: torch.Tensor, loss_reduction: str
) -> None:
    """ValueError unless the criterion's value for rows together is the mean or the sum, as said, of those alone."""
    values, whole = alone.double(), float(together.double())
    error = (8 * torch.finfo(together.dtype).eps + 1e-4) * float(values.abs().sum()) / len(values)
    if not values.isfinite().all() or (abs(whole - float(values.mean())) <= error and loss_reduction == "mean"):
        return
    if abs(whole - float(values.sum())) <= error * len(values):
        if loss_reduction == "mean" and len(values) > 1:
            raise ValueError(_OTHERWISE.format(reduced="sum", name=_name(criterion), loss_reduction=loss_reduction))
        return
    raise ValueError(_MIXED.format(name=_name(criterion)))


def _name(criterion: Any) -> str:
    function = getattr(criterion, "func", criterion)
    return "the model's own loss" if function is _in_model else getattr(function, "__name__", type(function).__name__)


@dataclasses.dataclass
class _LossCall:
    """One call of a loss: the module, other than the model, that called it (`inside`); the model's output that it
    received (None: unknown, or something `derived` from outputs); what `how_reduced` says of it; the argument next to
    the outputs; autograd's number of its value, and the sum of its values.

    A backward pass fills in how many calls it goes through (`together`), whether it also reaches the model's outputs
    around the loss (`part`), each value's weight in what the loop first went back from, and that number itself
    (`root`).
    """

    loss: nn.Module
    inside: nn.Module | None
    output: Output | None
    derived: bool
    reduced: str
    targets: torch.Tensor | None
    number: int
    total: float
    together: int = 1
    part: bool = False
    weights: torch.Tensor | None = None
    root: float | None = None

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


class LoopLoss:
    """The loss of a loop: `before` and `after` every module's forward pass, `go_back` at every backward pass, `take` at
    every step. A loss counts only if the loop went back through it, so metrics do not count.

    `criterion` is the loss, as far as it is known: a module, or a function, with which no call is observed. None: any
    loss of `torch.nn` may be it. `is_model` tells a module that holds the trained parameters.
    """

    def __init__(self, is_model: Callable[[nn.Module], bool], criterion: Criterion | None = None) -> None:
        self.criterion = criterion
        self.is_observed = criterion is None or isinstance(criterion, nn.Module)
        self._is_model, self._named = is_model, criterion
        self._running: list[nn.Module] = []
        self._calls: list[_LossCall] = []
        self._outputs: list[Output] = []
        self._unit: float | None = None

    def before(self, module: nn.Module) -> None:
        if self.is_observed:
            self._running.append(module)

    def gave(self, outputs: list[Output]) -> None:
        """Note outputs of the model. A loss that gets nothing that derives from them belongs to another model."""
        if self.is_observed:
            self._outputs += outputs

    def after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not any(m is module for m in self._running):
            return
        while self._running.pop() is not module:
            pass
        if not self._is_loss(module) or not isinstance(output, torch.Tensor) or not output.requires_grad:
            return
        if any(self._is_loss(m) or self._is_model(m) for m in self._running):  # part of that one
            return
        tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
        output_used = next((o for o in self._outputs if tensors and o.is_given(tensors[0])), None)
        derived = bool(self._outputs and tensors) and output_used is None
        if derived and not any(o.led_to(t) for o in self._outputs for t in tensors):
            return
        inside = next((m for m in self._running if not self._is_model(m)), None)
        reduced = ""
        if output.numel() == 1:
            with pause_recording(), torch.no_grad():
                reduced = how_reduced(output.detach(), module.forward, inputs, module)
        targets = tensors[1].detach().clone() if len(tensors) == 2 and tensors[1].ndim > 0 else None
        total = float(output.detach().double().sum())
        call = _LossCall(module, inside, output_used, derived, reduced, targets, number_of(output), total)
        output.register_hook(functools.partial(_LossCall.went_back, call))  # type: ignore[no-untyped-call]
        self._calls.append(call)

    def go_back(self, tensors: list[torch.Tensor]) -> None:
        """A backward pass begins at these tensors."""
        if not self.is_observed:
            return
        roots = [t.grad_fn for t in tensors if t.grad_fn is not None]
        root = float(tensors[0].detach().double()) if len(tensors) == 1 and tensors[0].numel() == 1 else None
        calls = {c.number: c for c in self._calls if c.weights is None}
        reached = Reached(roots, calls)
        for number in reached.stopped:
            calls[number].together, calls[number].root = len(reached.stopped), root
            calls[number].part = any(o.number in reached.inner for o in self._outputs)
        losses = {o.number: o for o in self._outputs if o.is_loss}
        reached = Reached(roots, losses)
        for number in reached.stopped:
            losses[number].root = root
            losses[number].part = len(reached.stopped) > 1 or any(o.number in reached.inner for o in self._outputs)

    def clear(self) -> None:
        """A step ended."""
        self._calls, self._running, self._outputs = [], [], []

    def take(self, loss_reduction: str) -> None:
        """A step ends: its loss, if it had one, is the criterion.

        ValueError if the call may not be what the loop minimises, if it mixes rows, or if it is reduced otherwise than
        by Opacus's `loss_reduction`.
        """
        self.criterion = self._of_step(loss_reduction) or self.criterion

    def _of_step(self, loss_reduction: str) -> Callable[..., torch.Tensor] | None:
        """The loss as a function of the model's output and the targets; None if there was none."""
        calls = [c for c in self._calls if c.weights is not None]
        losses = [o for o in self._outputs if o.is_loss and o.arrived is not None]
        self.clear()
        _require_finite(
            [(type(c.loss).__name__, c.total) for c in calls if not _is_empty(c.output, c.targets)]
            + [("the model's own", float(o.value)) for o in losses if not _is_empty(o, None)]
        )
        for call in calls:
            if not _alike(call.loss, calls[0].loss):
                name, other = type(call.loss).__name__, type(calls[0].loss).__name__
                raise ValueError(f"criterion: {other} and another {name} are in one step: {_NAME_IT}")
        for call in calls:
            _require_whole(call)
        if calls and losses:
            raise ValueError(
                f"criterion: the model's own loss and {type(calls[0].loss).__name__} are in one step: {_NAME_IT}"
            )
        units = [_unit(call, loss_reduction) for call in calls] or [_unit_of_output(o) for o in losses]
        if not units:
            return None
        leaves = {c.output.leaf for c in calls if c.output is not None} | {o.leaf for o in losses}
        name = type(calls[0].loss).__name__ if calls else "the model's own loss"
        if len(leaves) > 1 or any(not math.isclose(u, units[0], rel_tol=1e-2) for u in units):
            raise ValueError(
                f"criterion: {name} depends on several outputs of the model, or on rows of several lengths: {_NAME_IT}"
            )
        if self._unit is not None and not math.isclose(self._unit, units[0], rel_tol=1e-2):
            raise ValueError(
                f"criterion: the loop multiplies {name} by {units[0]:.4g} in this step and by {self._unit:.4g} before: "
                "a factor that changes (with the batch's size, or by a gradient scaler) makes a row's clipped gradient "
                "depend on the others: this has no DP guarantee"
            )
        self._unit = units[0]
        leaf = leaves.pop() if leaves else None
        if losses:
            return functools.partial(_in_model, leaf, units[0])
        loss = calls[0].loss
        return loss if leaf is None and units[0] == 1 else functools.partial(_of_leaf, loss, leaf, units[0])

    def _is_loss(self, module: nn.Module) -> bool:
        return isinstance(module, _Loss) if self._named is None else module is self._named


def _is_empty(output: Output | None, targets: torch.Tensor | None) -> bool:
    """Whether a batch has no rows, as Poisson sampling may leave it: its mean is NaN, and nothing is wrong."""
    rows = targets if output is None or output.of.rows is None else output.of.rows
    return rows is not None and len(rows) == 0


def _require_finite(losses: list[tuple[str, float]]) -> None:
    """ValueError for a loss that is not finite: nothing else that is said of such a step would be its cause."""
    for name, value in losses:
        if not math.isfinite(value):
            raise ValueError(
                f"the loop's loss ({name}) is {value} in this step: a row of the batch is not finite, or the "
                "parameters are not since an earlier step. Look for NaN and infinity in the data, "
                "or for a learning rate that is too large"
            )


def _of_leaf(loss: nn.Module, leaf: int | None, factor: float, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """A loss of one of the tensors that the model returns, times a factor."""
    values: torch.Tensor = loss(outputs if leaf is None else tree_leaves(outputs)[leaf], targets)
    return values * factor


def _in_model(leaf: int | None, factor: float, outputs: Any, targets: Any) -> torch.Tensor:
    """The loss that the model returns, times a factor."""
    value: torch.Tensor = outputs if leaf is None else tree_leaves(outputs)[leaf]
    return value * factor


def _unit_of_output(output: Output) -> float:
    """The factor of the model's own loss in what the loop goes back from."""
    if output.part or output.arrived is None:
        raise ValueError(
            "criterion: the model's own loss is only a part of the loss: the loop adds a term that also goes back to "
            f"the model's outputs (a penalty on them, a second loss): {_NAME_IT}"
        )
    if output.arrived != 1 and not _is_multiple(output.root, output.arrived, float(output.value)):
        raise ValueError(
            "criterion: the loop goes back from another function of the model's own loss than a multiple of it: "
            f"{_NAME_IT}"
        )
    return output.arrived


def _is_multiple(root: float | None, factor: float, value: float) -> bool:
    """Whether what the loop went back from is that many times the value, and not a curve with that slope."""
    return root is not None and math.isclose(root, factor * value, rel_tol=1e-2)


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
    """The factor that turns the sum of a row's values into the row's loss, of which Opacus takes the mean or the sum.

    ValueError if the loop multiplies the loss, mixes rows, or reduces it in another way than Opacus assumes.
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
        if not bool(((weights - first).abs() <= 0.01 * abs(first)).all()) or first == 0:
            raise ValueError(
                f"criterion: {name} is only a part of the loss, or its rows have weights: the loop calls backward() "
                f"neither on its mean nor on its sum: {_NAME_IT}"
            )
        if not _is_multiple(call.root, first, call.total):
            raise ValueError(
                f"criterion: {name} is only a part of the loss, or the loop goes back from another function of it: "
                f"{_NAME_IT}"
            )
        if not call.reduced or call.reduced == loss_reduction:  # multiplied, as by 1 / accumulation_steps
            return first * (call.rows if loss_reduction == "mean" else 1)
    if call.reduced == "mixed":
        raise ValueError(_MIXED.format(name=name))
    if count == 1 and not call.reduced:
        return 1.0
    if call.reduced:
        units = {call.reduced: 1.0}
    if loss_reduction not in units:
        raise ValueError(_OTHERWISE.format(reduced=next(iter(units)), name=name, loss_reduction=loss_reduction))
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


class LossTerms:
    """Watches what every backward pass of a loop goes back to. own: ids of the parameters that are trained."""

    def __init__(self, own: set[int]) -> None:
        self._own = own
        self._outside = ""
        self._around: dict[str, bool] = {}
        self._warned = False

    def called(self, layer: nn.Module, within: bool) -> None:
        """A layer with some of the parameters runs in training; `within`: as a part of the model's forward pass."""
        if not within:
            self._outside = type(layer).__name__

    def go_back(self, roots: list[Any], passes: Iterable[ForwardPass]) -> None:
        """A backward pass begins at these nodes."""
        known = list(passes)
        if any(not p.outputs for p in known):  # of a kind that torch cannot look into
            return
        outputs = {o.number for p in known for o in p.outputs if o.number >= 0}
        kind, through = around(roots, outputs, self._own)
        if kind:
            kind = "layers" if self._outside else kind
            self._around[kind] = self._around.get(kind, False) or through

    def require_known(self, optimizer: Any) -> None:
        """ValueError if the step releases more than the criterion's gradients, or releases them unclipped."""
        terms, outside = self._around, self._outside
        self._around, self._outside = {}, ""
        if "layers" in terms:
            how = f"{outside} called by itself" if outside else "a penalty on activations"
            raise ValueError(
                f"criterion: the loop adds a term to the loss that goes back to the model's layers around its outputs "
                f"({how}): let the model also return what the term needs, and pass criterion=, a function (all that "
                "the model returns, targets)"
            )
        if "parameters" not in terms:
            return
        if hasattr(optimizer, "accumulate") and terms["parameters"]:
            raise ValueError(
                "criterion: the loop adds to the loss a penalty on the parameters themselves. Ghost clipping adds its "
                "gradient once for each row, unclipped, so that a row can move the release by more than max_grad_norm, "
                "and this has no DP guarantee: pass weight_decay= to the wrapped optimizer instead"
            )
        if not self._warned and not hasattr(optimizer, "accumulate"):
            self._warned = True
            _log.warning(
                "record: criterion: the loop adds to the loss a penalty on the parameters themselves (a regulariser), "
                "which is not part of any layer's per-sample gradients: Opacus does not release it, and it changes "
                "neither the model nor the candidates' gradients. Pass weight_decay= to the wrapped optimizer instead"
            )
