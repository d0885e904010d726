"""What the attacker sees, an aggregated gradient or a difference of weights, and how it came about."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from leakcore._base import array_memory, validate
from leakcore.attacks.arguments import stored_roundoff


def parts_of_layers(name: str, value: Any) -> Any:
    """An array, a tuple of arrays or a dictionary of them, one per layer, of the numbers and roundoff of `value`."""
    if isinstance(value, Mapping):
        return {key: parts_of_layers(name, part) for key, part in value.items()}
    if not isinstance(value, list | tuple) or all(type(part) is float or type(part) is int for part in value):
        return _one(name, value)
    parts = tuple(parts_of_layers(name, part) for part in value)
    if all(getattr(part, "shape", None) == () for part in parts):  # numbers that form one array
        joined = _one(name, parts)
        return joined if validate.roundoff(parts) <= validate.roundoff(joined) else parts
    return parts


def _one(name: str, value: Any) -> Any:
    array = array_memory.array(name, value)
    if array.dtype.kind == "O":
        array, _ = validate.host_array(finite=False, **{name: array})  # objects that are numbers
    array = validate.plain_array(**{name: array})
    # Only bfloat16, which NumPy lacks, is finer as an array than it was as a tensor.
    return array_memory.plain_tensor(name, value) if validate.roundoff(value) > validate.roundoff(array) else array


@dataclasses.dataclass(frozen=True)
class Noise:
    """Independent Gaussian noise in each coordinate of the gradient that the attacker sees.

    Every label attack takes it. With std > 0 a label counts as determined only beyond a threshold,
    std·batch_size·√v_r·Φ⁻¹(1 − (1 − confidence)/n), with v the leverages and n the number of identifiable residuals
    (union bound). With known probabilities the threshold comes from the χ quantile of the whole noise vector.

    Args:
        std: standard deviation, in the units of the gradient; for a weight difference, of the gradient that it implies.
            0: the gradient is exact up to rounding.
        confidence: the probability, over the noise, that *no* determined label is wrong, in (0, 1 − 1e-12]. Required
            with std > 0, and refused with std = 0.
    """

    std: float
    confidence: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", validate.non_negative(std=self.std))
        if self.std > 0:
            if self.confidence is None:
                raise ValueError("`confidence` must be given with std > 0, for example 0.99")
            object.__setattr__(self, "confidence", validate.confidence(confidence=self.confidence))
        elif self.confidence is not None:
            raise ValueError("`confidence` is allowed only with std > 0")


@dataclasses.dataclass(frozen=True, eq=False)
class Clipping:
    """Each sample's gradient was multiplied by min(1, C/(norm + clip_slack)), as DP-SGD clips.

    `last_layer` and `general` take it, with known_probs and one logit. Each residual is then one of two values that C
    fixes as well, and determined labels are proved as without clipping. Without known_probs it is not needed, because
    clipping keeps every sign.

    Args:
        max_grad_norm: C > 0.
        grad_norms: (2, N), or (S, 2, N) for S steps: joint norms of each sample's gradient under both labels, in either
            order, over all parameters that were clipped together. None: the observed weights alone were clipped.
        clip_slack: what was added to the norm, at least 0; Opacus adds 1e-6.
    """

    max_grad_norm: float
    grad_norms: Any = None
    clip_slack: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_grad_norm", validate.positive(max_grad_norm=self.max_grad_norm))
        object.__setattr__(self, "clip_slack", validate.non_negative(clip_slack=self.clip_slack))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """The arithmetic of victim and attacker, where the arrays do not show it.

    Every label attack takes it.

    Args:
        unit_roundoff: unit roundoff of the arithmetic that computed the gradient, 2⁻²⁴ for float32. None: the coarsest
            among the arrays and the model. Set it where the arithmetic was coarser than the dtype shows (2⁻¹¹ for
            TF32), or where a float64 weight difference is of weights that were stored more coarsely and neither a model
            nor `weights` show it.
        rcond: singular values below rcond times the largest count as zero, in [0, 1). None: 2·max(N, d)·unit_roundoff.
    """

    unit_roundoff: float | None = None
    rcond: float | None = None

    def __post_init__(self) -> None:
        if self.unit_roundoff is not None:
            object.__setattr__(self, "unit_roundoff", validate.open_probability(unit_roundoff=self.unit_roundoff))
        if self.rcond is not None:
            object.__setattr__(self, "rcond", validate.below_one(rcond=self.rcond))

    def stored(self, roundoff: float) -> float:
        """Unit roundoff of stored weights: the coarser of what model and arrays show and what the caller states."""
        return roundoff if self.unit_roundoff is None else max(roundoff, self.unit_roundoff)


def read_precision(precision: Precision | None) -> Precision:
    """The caller's precision, checked, or one that is read off the arrays."""
    if precision is None:
        return Precision()
    validate.instance(Precision, precision=precision)
    return precision


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
        momentum: share of the running mean of gradients that each step keeps, at least 0.
        dampening: in [0, 1).
        weight_decay: at least 0.
        nesterov: Nesterov's variant, which needs momentum > 0 and dampening = 0.
        momentum_buffer: b before the step, of the weights' shape (bias last, as in `WeightDifference.weights`), or
            "first" for the very first step. Required with momentum > 0. Two consecutive differences also give it:
            without nesterov it is −(previous ΔW)/(previous lr).
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
        weight_difference: array of the shape that the attack states for a gradient.
        optimizer: a `labels.SGD` (plain: `SGD(lr)`), or a torch.optim.SGD without momentum, whose settings are read at
            once. Adaptive optimisers are refused.
        bias_difference: likewise for the bias, as `GradientObservation.bias_gradient`.
        weights: the weights before the step, of the difference's shape, with the bias last where it is observed. Their
            rounding limits the precision of a difference. They are taken from the model where the attacker knows it;
            without either the result is an estimate.
        reduction: how that step reduced its gradient, as in `GradientObservation`.
        batch_size: what that step divided by, as in `GradientObservation`.

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


def read_observation(
    observation: Any, *, without: tuple[str, ...] = (), why: str = ""
) -> GradientObservation | WeightDifference:
    """The observation as one of the two classes; ValueError with `why` where it holds what the attack does not read."""
    if observation is None:
        raise TypeError(
            "`observation` must be a gradient, labels.GradientObservation or labels.WeightDifference, got None"
        )
    known = isinstance(observation, GradientObservation | WeightDifference)
    read: GradientObservation | WeightDifference = observation if known else GradientObservation(observation)
    for name in without:
        if getattr(read, name, None) is not None:
            raise ValueError(f"{name}: {why}")
    return read


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
    observation: Any, width: int, *, known_weights: np.ndarray | None, weights_roundoff: float, steps: int | None = None
) -> ObservedGradient:
    """The observed gradient, or the gradient behind an observed difference, checked. steps=None: one step, without a
    leading axis; known_weights: (S, K, d + 1) of the model. weights_roundoff: unit roundoff of the victim's stored
    weights, as far as anything but these arrays shows it."""
    observation = read_observation(observation)
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
    """Weights or a momentum buffer of the difference's shape, without an unobserved bias, and their unit roundoff."""
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
