"""What the attacker sees: an aggregated gradient, or the difference that one step of SGD makes to the weights.

A difference is turned back into the gradient behind it. That is possible for torch's SGD with momentum, dampening,
Nesterov's variant and weight decay; adaptive methods divide each coordinate by a history and are refused.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import validate

FIRST_STEP = "first"


@dataclasses.dataclass(frozen=True, eq=False)
class SGD:
    """One step of `torch.optim.SGD`: W ← W − lr·u, with g̃ = g + weight_decay·W and

        b ← momentum·b + (1 − dampening)·g̃   (b ← g̃ in the very first step),   u = g̃ + momentum·b if nesterov else b.

    momentum_buffer: b before the step, of the weights' shape (bias last, as in `weights=`), or "first" for the very
        first step; must be given with momentum > 0. Two consecutive differences give it too: without nesterov it is
        −(previous ΔW)/(previous lr).

    With weight_decay > 0 the attack also needs the weights before the step. The gradient is then
    g = (u − momentum·b)/(1 − dampening) − weight_decay·W, or (u − momentum²·b)/(1 + momentum) − weight_decay·W with
    nesterov. Raises ValueError for values that torch refuses as well.
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    momentum_buffer: Any = None

    def __post_init__(self) -> None:
        validate.positive(lr=self.lr)
        validate.non_negative(momentum=self.momentum)
        validate.non_negative(weight_decay=self.weight_decay)
        validate.below_one(dampening=self.dampening)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov=True: needs momentum > 0 and dampening=0")
        if self.momentum > 0 and self.momentum_buffer is None:
            raise ValueError(
                "momentum_buffer: must be given with momentum > 0: the buffer before the step, or 'first' for the very "
                "first step"
            )
        if self.momentum == 0 and self.momentum_buffer is not None:
            raise ValueError("momentum_buffer: only with momentum > 0")
        if isinstance(self.momentum_buffer, str) and self.momentum_buffer != FIRST_STEP:
            raise ValueError(f"momentum_buffer={self.momentum_buffer!r}: must be an array or 'first'")

    @classmethod
    def of(cls, optimizer: Any, *, momentum_buffer: Any = None) -> SGD:
        """The settings of a `torch.optim.SGD`, the same in all its parameter groups.

        Raises TypeError for any other optimiser: the differences of adaptive methods are not a linear function of the
        gradient. Raises ValueError for differing groups and for maximize=True.
        """
        import torch

        if not isinstance(optimizer, torch.optim.SGD):
            raise TypeError(
                f"optimizer={type(optimizer).__name__}: must be torch.optim.SGD or labels.SGD; the difference that an "
                "adaptive optimiser makes does not give the gradient back"
            )
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        settings = [{name: group[name] for name in names} for group in optimizer.param_groups]
        if any(s != settings[0] for s in settings):
            raise ValueError(f"optimizer: its parameter groups differ in {', '.join(names)}; pass labels.SGD(...)")
        if settings[0].pop("maximize"):
            raise ValueError("optimizer: maximize=True is not supported")
        return cls(**settings[0], momentum_buffer=momentum_buffer)


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """values: (S, K, d) aggregated gradients of S steps and K weight vectors, the bias's last where it is seen.

    roundoff: coarsest unit roundoff of what was given. stored: (S, K, d) error of each coordinate due to the rounding
    of stored weights: 0 for a gradient, None for a difference whose weights are not known.
    """

    values: np.ndarray
    roundoff: float
    stored: np.ndarray | None
    with_bias: bool
    what: str


def read_seen(
    width: int,
    *,
    gradient: Any,
    bias_gradient: Any = None,
    weight_difference: Any,
    bias_difference: Any = None,
    lr: float | None,
    optimizer: Any,
    weights: Any,
    known_weights: np.ndarray | None = None,
    steps: int | None = None,
    unit_roundoff: float,
) -> Seen:
    """Read and check it. steps=None: one step, without a leading axis; known_weights: (S, K, d + 1) of the model.

    unit_roundoff: of the victim's stored weights, as far as anything but these arrays tells.
    """
    if (gradient is None) == (weight_difference is None):
        raise ValueError("gradient, weight_difference: give exactly one of them")
    if gradient is not None:
        for name, value in (
            ("bias_difference", bias_difference),
            ("lr", lr),
            ("optimizer", optimizer),
            ("weights", weights),
        ):
            if value is not None:
                raise ValueError(f"{name}: only with weight_difference=")
        values, roundoff = _joined(steps, width, ("gradient", gradient), ("bias_gradient", bias_gradient))
        return Seen(values, roundoff, np.zeros(values.shape), bias_gradient is not None, "the aggregated gradient")
    if bias_gradient is not None:
        raise ValueError("bias_gradient: only with gradient=; use bias_difference=")
    if (lr is None) == (optimizer is None):
        raise ValueError("lr, optimizer: exactly one of them must be given with weight_difference=")
    rule = SGD(lr=validate.positive(lr=lr)) if lr is not None else _rule(optimizer)
    difference, roundoff = _joined(
        steps, width, ("weight_difference", weight_difference), ("bias_difference", bias_difference)
    )
    # A difference of float32 weights that was taken in float64 still holds their rounding.
    roundoff = max(roundoff, unit_roundoff)
    held = known_weights
    if weights is not None:
        held, coarse = _wide(difference.shape, steps, weights=weights)
        roundoff = max(roundoff, coarse)
    elif held is not None:
        held = np.broadcast_to(held[..., : difference.shape[2]], difference.shape)
    past: np.ndarray | float = 0.0
    if rule.momentum > 0 and not isinstance(rule.momentum_buffer, str):
        past, coarse = _wide(difference.shape, steps, momentum_buffer=rule.momentum_buffer)
        roundoff = max(roundoff, coarse)
    values, stored = _undo(rule, difference, held, past, roundoff)
    return Seen(values, roundoff, stored, bias_difference is not None, "the weight difference of one SGD step")


def _rule(optimizer: Any) -> SGD:
    return optimizer if isinstance(optimizer, SGD) else SGD.of(optimizer)


def _undo(
    rule: SGD, difference: np.ndarray, weights: np.ndarray | None, history: np.ndarray | float, roundoff: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """The gradient behind a difference, and the error of its coordinates."""
    update = -difference / rule.lr
    first = isinstance(rule.momentum_buffer, str) or rule.momentum == 0
    if rule.nesterov:
        share = 1.0 + rule.momentum
        past = rule.momentum**2 * history
    else:
        share = 1.0 if first else 1.0 - rule.dampening
        past = rule.momentum * history
    gradient = (update - past) / share
    if rule.weight_decay > 0:
        if weights is None:
            raise ValueError("weights: must be given with weight_decay > 0: the step adds weight_decay·weights")
        gradient = gradient - rule.weight_decay * weights
    if weights is None:
        return gradient, None
    # The updated weight is rounded once, its step once, and the difference once more.
    error = roundoff * (np.abs(weights) + 3.0 * np.abs(difference)) / rule.lr
    # The optimiser rounds decay, history and their sums in its own precision.
    inside = 4.0 * roundoff * (np.abs(past) + share * rule.weight_decay * np.abs(weights))
    return gradient, (error + inside) / share


def _joined(steps: int | None, width: int, main: tuple[str, Any], bias: tuple[str, Any]) -> tuple[np.ndarray, float]:
    """(S, K, d) array of the weights' part, with the bias's as one more column where it is given."""
    name, value = main
    array, roundoff = validate.host_array(**{name: value})
    axes = 1 if steps is None else 2
    lead = () if steps is None else (steps,)
    if array.ndim not in {axes, axes + 1} or array.shape[-1] != width or array.shape[: len(lead)] != lead:
        shown = "".join(f"{s}, " for s in lead)
        one = f"({shown}{width})" if lead else f"({width},)"
        raise ValueError(
            f"{name} of shape {array.shape}: must be {one} or ({shown}K, {width}) to match the activations"
        )
    array = array.reshape(1 if steps is None else steps, -1, width)
    if bias[1] is None:
        return array, roundoff
    constant, coarse = validate.host_array(**{bias[0]: bias[1]})
    if constant.size != array.shape[0] * array.shape[1]:
        raise ValueError(
            f"{bias[0]} of shape {constant.shape}: must hold {array.shape[0] * array.shape[1]} values, one per weight "
            f"vector{'' if steps is None else ' and step'}"
        )
    return np.concatenate([array, constant.reshape(*array.shape[:2], 1)], axis=2), max(roundoff, coarse)


def _wide(shape: tuple[int, ...], steps: int | None, **kwargs: Any) -> tuple[np.ndarray, float]:
    """Weights (or their buffer) of the difference's shape, whose bias's column may be there though it is not seen; and
    their unit roundoff."""
    ((name, _),) = kwargs.items()
    array, roundoff = validate.host_array(**kwargs)
    for width in (shape[2], shape[2] + 1):
        lead = () if steps is None else (shape[0],)
        if array.shape in {(*lead, width), (*lead, shape[1], width)} and (array.size == shape[0] * shape[1] * width):
            return array.reshape(shape[0], shape[1], width)[..., : shape[2]], roundoff
    raise ValueError(
        f"{name} of shape {array.shape}: must have the difference's shape {shape[1:] if steps is None else shape}, "
        "bias last where it is seen"
    )
