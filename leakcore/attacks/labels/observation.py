"""What the attacker sees: an aggregated gradient, or how one step of SGD changes the weights.

A difference is turned back into the gradient behind it. That is possible for torch's SGD with momentum, dampening,
Nesterov's variant and weight decay. Adaptive methods divide each coordinate by a history and are refused.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from leakcore._base import validate
from leakcore.attacks.labels.passed_arrays import parts_of_layers
from leakcore.attacks.labels.sgd import SGD
from leakcore.attacks.stored_precision import stored_roundoff


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Aggregate:
    """How the batch's gradients became one."""

    reduction: Literal["mean", "sum"] = "mean"
    batch_size: float | None = None

    def __post_init__(self) -> None:
        rule = validate.one_of("mean", "sum", reduction=self.reduction)
        if self.batch_size is not None:
            if rule == "sum":
                raise ValueError(
                    f"`batch_size={self.batch_size!r}` is allowed only with reduction='mean'; a sum is not divided"
                )
            object.__setattr__(self, "batch_size", validate.positive(batch_size=self.batch_size))

    def divisor(self, rows: int) -> float:
        """What the sum over this many rows was divided by."""
        return 1.0 if self.reduction == "sum" else float(rows) if self.batch_size is None else self.batch_size


@dataclasses.dataclass(frozen=True, eq=False)
class GradientObservation(_Aggregate):
    """An aggregated gradient and how it was aggregated; an array alone stands for `GradientObservation(array)`.

    Args:
        gradient: aggregated dL/dW, of the shape that the attack states.
        bias_gradient: dL/db of the same layer, one value per weight vector: it adds a column of ones to the system. For
            `last_layer` and `second_last_layer`.
        reduction: "mean": the sum over samples divided by batch_size. "sum": not divided, as `clip_and_noise(...).sum`.
            Residuals (and what known probabilities make of them) depend on it, signs do not.
        batch_size: with "mean": the divisor, if not the number N of rows (Opacus divides by the *expected* batch size).

    Raises:
        ValueError: for another reduction, and for a batch_size that is not positive or comes with "sum".
        ValueError, TypeError: for anything but an array of real numbers on the CPU. The attack checks shapes.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> labels.GradientObservation(np.ones(8), reduction="sum").reduction
        'sum'
    """

    gradient: Any
    bias_gradient: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _read_fields(self, "gradient", "bias_gradient")


@dataclasses.dataclass(frozen=True, eq=False)
class WeightDifference(_Aggregate):
    """The weights after one step of SGD minus those before it; the attack computes the gradient behind them.

    Args:
        weight_difference: of the shape that the attack states for a gradient.
        optimizer: a `labels.SGD` (plain: `SGD(lr)`), or a torch.optim.SGD without momentum, whose settings are read at
            once. Adaptive optimisers are refused.
        bias_difference: likewise for the bias, as `GradientObservation.bias_gradient`.
        weights: the weights before the step, of the difference's shape, with the bias last where it is observed. Their
            rounding limits the precision of a difference. They are taken from the model where the attacker knows it;
            without either the result is an estimate.
        reduction: of the gradient in that step, as in `GradientObservation`.
        batch_size: of the gradient in that step, as in `GradientObservation`.

    Raises:
        ValueError, TypeError: for optimisers whose steps do not give the gradient back, and as `GradientObservation`.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> step = labels.WeightDifference(np.full(8, -0.1), labels.SGD(lr=0.1), weights=np.zeros(8))
        >>> step.optimizer.lr
        0.1
    """

    weight_difference: Any
    optimizer: Any
    bias_difference: Any = dataclasses.field(default=None, kw_only=True)
    weights: Any = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.optimizer, SGD):
            object.__setattr__(self, "optimizer", SGD.of(self.optimizer))
        _read_fields(self, "weight_difference", "bias_difference", "weights")


def _read_fields(observation: Any, needed: str, *others: str) -> None:
    """Read the arrays of an observation when it is created, in the precision in which they were passed."""
    for name in (needed, *others):
        value = getattr(observation, name)
        if name == needed or value is not None:
            object.__setattr__(observation, name, parts_of_layers(name, value))


def read_observation(observation: Any, *, without: tuple[str, ...] = (), why: str = "") -> Any:
    """The observation as one of the two classes; ValueError with `why` where it holds what the attack does not read."""
    if not isinstance(observation, GradientObservation | WeightDifference):
        if observation is None:
            raise TypeError(
                "`observation` must be a gradient, labels.GradientObservation or labels.WeightDifference, got None"
            )
        observation = GradientObservation(observation)
    for name in without:
        if getattr(observation, name, None) is not None:
            raise ValueError(f"{name}: {why}")
    return observation


@dataclasses.dataclass(frozen=True, eq=False)
class ObservedGradient:
    """values: (S, K, d) aggregated gradients of S steps and K weight vectors, with the bias last where it is observed.

    roundoff: coarsest unit roundoff of the inputs, as their types or the numbers themselves show it. stored: (S, K, d)
    error of each coordinate due to the rounding of stored weights: 0 for a gradient, None for a difference whose
    weights are not known. source: what was observed.
    """

    values: np.ndarray
    roundoff: float
    stored: np.ndarray | None
    with_bias: bool
    what: str
    source: GradientObservation | WeightDifference


def observe(
    observation: GradientObservation | WeightDifference,
    width: int,
    *,
    known_weights: np.ndarray | None,
    weights_roundoff: float,
    steps: int | None = None,
) -> ObservedGradient:
    """The observed gradient, or the gradient behind an observed difference, checked.

    steps=None: one step, without a leading axis; known_weights: (S, K, d + 1) of the model. weights_roundoff: unit
    roundoff of the victim's stored weights, as far as anything but these arrays shows it.
    """
    if isinstance(observation, GradientObservation):
        bias = observation.bias_gradient
        values, roundoff = _joined(steps, width, ("gradient", observation.gradient), ("bias_gradient", bias))
        roundoff = stored_roundoff(values, roundoff)
        exact = np.zeros(values.shape)
        return ObservedGradient(values, roundoff, exact, bias is not None, "the aggregated gradient", observation)
    bias, rule = observation.bias_difference, observation.optimizer
    difference, roundoff = _joined(
        steps, width, ("weight_difference", observation.weight_difference), ("bias_difference", bias)
    )
    # A difference of float32 weights that was computed in float64 still carries their rounding.
    roundoff = max(roundoff, weights_roundoff)
    weights = known_weights
    if observation.weights is not None:
        weights, coarse = _wide(difference.shape, steps, weights=observation.weights)
        roundoff = max(roundoff, coarse)
    elif weights is not None:
        weights = np.broadcast_to(weights[..., : difference.shape[2]], difference.shape)
    past: np.ndarray | float = 0.0
    if rule.momentum > 0 and not isinstance(rule.momentum_buffer, str):
        past, coarse = _wide(difference.shape, steps, momentum_buffer=rule.momentum_buffer)
        roundoff = max(roundoff, coarse)
    values, stored = _undo(rule, difference, weights, past, roundoff)
    what = "the weight difference of one SGD step"
    return ObservedGradient(values, roundoff, stored, bias is not None, what, observation)


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
            raise ValueError("`weights` must be given with weight_decay > 0: the step adds weight_decay·weights")
        gradient = gradient - rule.weight_decay * weights
    if weights is None:
        return gradient, None
    # The updated weight is rounded once, its step once, and the difference once more.
    error = roundoff * (np.abs(weights) + 3.0 * np.abs(difference)) / rule.lr
    # The optimiser rounds decay, history and their sums in its own precision.
    inside = 4.0 * roundoff * (np.abs(past) + share * rule.weight_decay * np.abs(weights))
    return gradient, (error + inside) / share


def _joined(steps: int | None, width: int, main: tuple[str, Any], bias: tuple[str, Any]) -> tuple[np.ndarray, float]:
    """(S, K, d) array of the weights' part, with the bias as one more column where it is passed."""
    name, value = main
    array, roundoff = validate.host_array(**{name: value})
    axes = 1 if steps is None else 2
    lead = () if steps is None else (steps,)
    if array.ndim not in {axes, axes + 1} or array.shape[-1] != width or array.shape[: len(lead)] != lead:
        leading = "".join(f"{s}, " for s in lead)
        one = f"({leading}{width})" if lead else f"({width},)"
        raise ValueError(
            f"`{name}` must have shape {one} or ({leading}K, {width}) to match the activations, got {array.shape}"
        )
    array = array.reshape(1 if steps is None else steps, -1, width)
    if bias[1] is None:
        return array, roundoff
    constant, coarse = validate.host_array(**{bias[0]: bias[1]})
    if constant.size != array.shape[0] * array.shape[1]:
        raise ValueError(
            f"`{bias[0]}` must hold one value per weight vector{'' if steps is None else ' and step'}, "
            f"{array.shape[0] * array.shape[1]} in all, got shape {constant.shape}"
        )
    return np.concatenate([array, constant.reshape(*array.shape[:2], 1)], axis=2), max(roundoff, coarse)


def _wide(shape: tuple[int, ...], steps: int | None, **kwargs: Any) -> tuple[np.ndarray, float]:
    """Weights (or a momentum buffer) of the difference's shape, with their unit roundoff.

    A last column for the bias may be there even though the bias is not observed; it is dropped.
    """
    ((name, _),) = kwargs.items()
    array, roundoff = validate.host_array(**kwargs)
    for width in (shape[2], shape[2] + 1):
        lead = () if steps is None else (shape[0],)
        if array.shape in {(*lead, width), (*lead, shape[1], width)} and (array.size == shape[0] * shape[1] * width):
            return array.reshape(shape[0], shape[1], width)[..., : shape[2]], roundoff
    raise ValueError(
        f"`{name}` must have the difference's shape {shape[1:] if steps is None else shape}, with the "
        f"bias last where it is observed, got {array.shape}"
    )
