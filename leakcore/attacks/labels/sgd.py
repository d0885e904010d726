"""The rule by which one SGD step moves the weights, so that a weight difference can be turned back into a gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

from leakcore._base import validate
from leakcore.attacks.labels.passed_arrays import parts_of_layers

FIRST_STEP = "first"


@dataclasses.dataclass(frozen=True, eq=False)
class SGD:
    """One step of `torch.optim.SGD`, from which the gradient behind a weight difference is computed.

    The step is W ← W − lr·u, with g̃ = g + weight_decay·W and

        b ← momentum·b + (1 − dampening)·g̃   (b ← g̃ in the very first step),   u = g̃ + momentum·b if nesterov else b.

    The gradient is then g = (u − momentum·b)/(1 − dampening) − weight_decay·W, or (u − momentum²·b)/(1 + momentum) −
    weight_decay·W with nesterov. With weight_decay > 0 the attack also needs the weights before the step.

    Args:
        lr: learning rate, > 0; plain SGD needs nothing else.
        momentum: of the running mean of gradients, at least 0.
        dampening: in [0, 1).
        weight_decay: at least 0.
        nesterov: Nesterov's variant, which needs momentum > 0 and dampening = 0.
        momentum_buffer: b before the step, of the weights' shape (bias last, as in `WeightDifference.weights`), or
            "first" for the very first step. Required with momentum > 0. Two consecutive differences also give it:
            without nesterov it is −(previous ΔW)/(previous lr).

    Raises:
        ValueError: for values that torch refuses as well.

    Example:
        >>> from leakcore.attacks import labels
        >>> labels.SGD(lr=0.1, momentum=0.9, momentum_buffer="first").momentum
        0.9
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    momentum_buffer: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", validate.positive(lr=self.lr))
        validate.non_negative(momentum=self.momentum)
        validate.non_negative(weight_decay=self.weight_decay)
        validate.below_one(dampening=self.dampening)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("`nesterov=True` needs momentum > 0 and dampening=0")
        if self.momentum > 0 and self.momentum_buffer is None:
            raise ValueError(
                "`momentum_buffer` must be given with momentum > 0: the buffer before the step, or 'first' for "
                "the very first step"
            )
        if self.momentum == 0 and self.momentum_buffer is not None:
            raise ValueError("`momentum_buffer` is allowed only with momentum > 0")
        if isinstance(self.momentum_buffer, str) and self.momentum_buffer != FIRST_STEP:
            raise ValueError(f"`momentum_buffer` must be an array or 'first', got {self.momentum_buffer!r}")
        if self.momentum > 0 and not isinstance(self.momentum_buffer, str):
            object.__setattr__(self, "momentum_buffer", parts_of_layers("momentum_buffer", self.momentum_buffer))

    @classmethod
    def of(cls, optimizer: Any, *, momentum_buffer: Any = None) -> SGD:
        """The settings of a `torch.optim.SGD`, which must be the same in all its parameter groups.

        Raises TypeError for any other optimiser: how an adaptive method changes the weights is not a linear function of
        the gradient. Raises ValueError for differing groups and for maximize=True.
        """
        import torch

        if not isinstance(optimizer, torch.optim.SGD):
            raise TypeError(
                f"`optimizer` must be torch.optim.SGD or labels.SGD, got {type(optimizer).__name__}; the "
                "difference that an adaptive optimiser makes does not give the gradient back"
            )
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        settings = [{name: group[name] for name in names} for group in optimizer.param_groups]
        if any(s != settings[0] for s in settings):
            raise ValueError(
                f"`optimizer` must have the same {', '.join(names)} in all parameter groups; pass labels.SGD(...)"
            )
        if settings[0].pop("maximize"):
            raise ValueError("`optimizer` must have maximize=False, got True")
        return cls(**settings[0], momentum_buffer=momentum_buffer)
