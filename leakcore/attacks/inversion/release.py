"""The gradient that an attacker inverts, and how it came about where the defaults do not hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from leakcore._base import validate


@dataclasses.dataclass(frozen=True, eq=False)
class ReleasedGradient:
    """A released gradient and how it came about; a gradient alone stands for `ReleasedGradient(gradient)`.

    Args:
        gradient: (D,) or (T, D), a list of tensors (one per parameter, as `torch.autograd.grad` returns), a dict by
            name, or what `defenses.release` returned. For `DPSGDSteps`: ḡ_t, the noisy *sum* of clipped gradients.
        batch_size: B, where the labels do not show it; None: 1.
        loss: loss(outputs, targets), mean over rows; None: cross-entropy (of a logit, where there is one output).
        parameters: names of the parameters whose gradient was observed, in that order; None: all that require grad.
        states: (T, D) parameters, or state dicts, at which the T gradients were computed; None: the model's present
            ones.
        statistics: {batch norm's name: (mean, unbiased variance)} of the batch at its inputs, as `batch_statistics`
            computes them (with `LocalSteps`, over its steps); None: unknown.

    With statistics, the distance of a guess with means μ and variances σ² grows by `statistics_weight` times the mean
    over layers of ‖μ − μ*‖²/Σσ*² + ‖σ² − σ*²‖²/‖σ*²‖², with * for the known ones: R_BN of Yin et al. 2021, whose norms
    are neither squared nor relative. The guess passes the model in its own mode, which must be the client's: in
    training mode a batch norm normalises by the batch, in eval mode by its running statistics.

    Raises:
        ValueError: for a value that is not allowed. The attack checks shapes against the model.
        TypeError: for anything that does not hold real numbers.

    Example:
        >>> import torch
        >>> from leakcore.attacks import inversion
        >>> released = inversion.ReleasedGradient(torch.zeros(2, 6), states=torch.zeros(2, 6))  # two steps
        >>> released.gradient.shape
        torch.Size([2, 6])
    """

    gradient: Any
    _: dataclasses.KW_ONLY
    batch_size: int | None = None
    loss: Callable[[Any, Any], Any] | None = None
    parameters: Sequence[str] | None = None
    states: Any = None
    statistics: Mapping[str, tuple[Any, Any]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradient", _read_gradient(self.gradient))
        validate.callback(loss=self.loss)
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", validate.integer(1, None, batch_size=self.batch_size))


def _read_gradient(gradient: Any) -> Any:
    """One tensor, a tuple of them, or a dictionary of them; ValueError or TypeError that names `gradient`."""
    from leakcore.gradients import tensor

    gradient = getattr(gradient, "gradient", gradient)  # of `defenses.release`
    if isinstance(gradient, Mapping):
        return {name: tensor(part, f"gradient[{name!r}]") for name, part in gradient.items()}
    if not isinstance(gradient, list | tuple) or all(isinstance(part, float | int | np.number) for part in gradient):
        return tensor(gradient, "gradient")
    parts = tuple(tensor(part, f"gradient[{i}]") for i, part in enumerate(gradient))
    return torch.stack(parts) if all(part.ndim == 0 for part in parts) else parts


def read_release(gradient: Any) -> ReleasedGradient:
    """The release as it is, or a gradient alone with the defaults."""
    return gradient if isinstance(gradient, ReleasedGradient) else ReleasedGradient(gradient)
