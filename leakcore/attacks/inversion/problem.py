"""One inversion, everything read and checked: model, released gradient, what is known of labels, and the objective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore import kernels
from leakcore._base import memory_limit, validate
from leakcore._base.process_wide import quiet_batching
from leakcore.attacks import labels as label_attacks
from leakcore.attacks.arguments import read_gradient
from leakcore.attacks.inversion.batch_norm import (
    Statistics,
    batchwise,
    guess_statistics,
    mixes,
    read_statistics,
    statistics_distance,
    steps_statistics,
)
from leakcore.attacks.inversion.objectives import L2, Cosine, DPSGDSteps, LocalSteps
from leakcore.gradients import FlatModule, mean_cross_entropy, require_classes, tensor


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

    ValueError or TypeError names a value that is not allowed; the attack checks shapes against the model.

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
        object.__setattr__(self, "gradient", read_gradient(self.gradient))
        validate.callback(loss=self.loss)
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", validate.integer(1, None, batch_size=self.batch_size))


def read_release(gradient: Any) -> ReleasedGradient:
    """The release as it is, or a gradient alone with the defaults."""
    return gradient if isinstance(gradient, ReleasedGradient) else ReleasedGradient(gradient)


Objective = L2 | Cosine | DPSGDSteps | LocalSteps


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One inversion to search.

    states, released: (T, D). known_labels: (B,) classes with −1 for the unknown, or (B, ...) targets of a custom loss,
    or None (all unknown). targets: shape of the model's output for one input, (K,). total_variation: the present weight
    of the prior, one of the objective's `weights`, through which a search goes one by one. recovered: whether the label
    was read from the gradient's signs. statistics: of the batch at its batch norms, where known.
    """

    flat: FlatModule
    objective: Objective
    states: torch.Tensor
    released: torch.Tensor
    shape: tuple[int, ...]
    batch: int
    known_labels: torch.Tensor | None
    own_loss: bool
    targets: tuple[int, ...]
    total_variation: float
    recovered: bool
    statistics: Statistics | None

    @property
    def labels_from(self) -> str:
        """Where labels that are not searched for come from."""
        return "reads the label from the signs of the last layer's gradient" if self.recovered else "knows the labels"

    @property
    def free_labels(self) -> bool:
        """Whether any label is optimised."""
        return self.known_labels is None or (not self.own_loss and bool((self.known_labels < 0).any()))

    def targets_of(self, free: torch.Tensor) -> torch.Tensor:
        """The loss's targets: from (B, *targets) numbers that the search moves, and the labels that are known."""
        if self.own_loss:
            return free if self.known_labels is None else self.known_labels
        if self.known_labels is not None and not self.free_labels:
            return self.known_labels
        soft = free.sigmoid() if self.targets == (1,) else free.softmax(-1)
        if self.known_labels is None:
            return soft
        known = self.known_labels.clamp(min=0)
        hard = (
            known[:, None].to(soft) if self.targets == (1,) else nn.functional.one_hot(known, self.targets[0]).to(soft)
        )
        return torch.where((self.known_labels >= 0)[:, None], hard, soft)

    def labels_of(self, free: torch.Tensor) -> torch.Tensor:
        """(B,) classes, or targets as they are."""
        targets = self.targets_of(free)
        if self.own_loss or not targets.is_floating_point():
            return targets
        return (targets[:, 0] > 0.5).long() if self.targets == (1,) else targets.argmax(-1)

    def distance(self, x: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
        """Distance (a scalar) of one guess (B, *shape) and its free labels, without the prior."""
        objective, targets = self.objective, self.targets_of(free)
        if self.statistics is None or isinstance(objective, DPSGDSteps):
            return objective.distance(self, x, targets)
        if isinstance(objective, LocalSteps):
            *thetas, last = objective.path(self, x, targets)
            value = objective.change(self, last)
            guess = steps_statistics(self.flat, thetas, objective.batches(len(x)), x, self.statistics)
        else:
            value = objective.distance(self, x, targets)
            guess = guess_statistics(self.flat, self.states[0], x, self.statistics)
        return value + objective.statistics_weight * statistics_distance(guess, self.statistics)

    def penalised(self, x: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
        """`distance` and the prior on images: mean absolute difference of neighbouring pixels."""
        value = self.distance(x, free)
        if self.total_variation:
            rough = (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
            value = value + self.total_variation * rough
        return value


def read(model: Any, release: ReleasedGradient, shape: Sequence[int], *, labels: Any, objective: Objective) -> Problem:
    """Everything checked, before any work."""
    whole = not isinstance(objective, DPSGDSteps)  # which clips each row's own gradient
    flat = FlatModule(batchwise(model) if whole else model, release.loss, release.parameters, mixing=whole)
    sizes = validate.sizes(shape=shape)
    memory_limit.require(16 * math.prod(sizes), shape=sizes)
    if any(objective.weights) and (len(sizes) < 2 or min(sizes[-2:]) < 2):
        raise ValueError(
            f"`total_variation` must be 0 for inputs that are not images, got {objective.total_variation} "
            f"and shape {sizes}"
        )
    states = _states(flat, release.states)
    if isinstance(objective, LocalSteps):
        if len(states) > 1:
            raise ValueError(f"`states` must be one with LocalSteps, where the steps began, got {len(states)}")
        if isinstance(labels, str):
            raise ValueError("`labels='recover'` reads signs of one gradient, which a change of several steps is not")
    if isinstance(labels, str) and mixes(flat.model):
        raise ValueError("`labels='recover'` reads one row's gradient, and a batch norm in training mode needs several")
    released = released_rows(flat, release.gradient, len(states))
    if not isinstance(objective, DPSGDSteps) and not bool((released != 0).any()):
        raise ValueError("`gradient` must not be zero throughout: it would say nothing about the batch")
    own_loss = release.loss is not None
    targets = _targets(flat, sizes)
    fixed, rows = _labels(flat, released, labels, release.batch_size, sizes, targets, own_loss)
    if release.statistics is not None and (isinstance(objective, DPSGDSteps) or len(states) > 1):
        raise ValueError(
            "`statistics` must be None with DPSGDSteps, as batch norms have no gradients of single rows, and with "
            "several states, as they are of one"
        )
    batches = set(objective.batches(rows)) if isinstance(objective, LocalSteps) else {(0, rows)}
    tried = [flat.theta.new_zeros((end - start, *sizes)) for start, end in sorted(batches)]
    if mixes(flat.model):
        with torch.no_grad():
            for x in tried:  # a batch of one row may be too small
                flat.outputs(flat.theta, x)
    statistics = read_statistics(flat, release.statistics, tried)
    if isinstance(objective, DPSGDSteps):
        released = released - _of_known(flat, states, objective.known, objective.max_grad_norm)
    return Problem(
        flat=flat,
        objective=objective,
        states=states,
        released=released,
        shape=sizes,
        batch=rows,
        known_labels=fixed,
        own_loss=own_loss,
        targets=targets,
        total_variation=objective.weights[0],
        recovered=isinstance(labels, str),
        statistics=statistics,
    )


def _states(flat: FlatModule, states: Any) -> torch.Tensor:
    if states is None:
        return flat.theta[None]
    if isinstance(states, Mapping):
        states = [states]
    rows = [
        _joined(flat, s, f"states[{i}]") if isinstance(s, Mapping) else tensor(s, "states").to(flat.theta)
        for i, s in enumerate(states)
    ]
    for i, row in enumerate(rows):
        if tuple(row.shape) != (len(flat),):
            raise ValueError(
                f"`states[{i}]` must be a state dict or have shape ({len(flat)},), got shape {tuple(row.shape)}"
            )
        if not bool(row.isfinite().all()):
            raise ValueError(f"`states[{i}]` must hold finite numbers")
    if not rows:
        raise ValueError("`states` must hold at least one vector of parameters")
    return torch.stack(rows)


def _joined(flat: FlatModule, parts: Mapping[str, Any], what: str) -> torch.Tensor:
    """(D,) from tensors by name, each of its parameter's shape: the numbers of a transposed one would fit as well."""
    for name, shape in zip(flat.names, flat.shapes, strict=True):
        if name not in parts:
            raise ValueError(f"`{what}` must hold the parameter {name!r}")
        actual = tuple(tensor(parts[name], f"{what}[{name!r}]").shape)
        if actual != shape:
            raise ValueError(f"`{what}[{name!r}]` must have the parameter's shape, {shape}, got {actual}")
    return flat.join(parts)


def released_rows(flat: FlatModule, gradient: Any, steps: int) -> torch.Tensor:
    """(T, D) from what `read_gradient` returns."""
    if isinstance(gradient, Mapping):
        flat_gradient = _joined(flat, gradient, "gradient")
    elif isinstance(gradient, tuple) and steps == 1:
        shapes = [tuple(part.shape) for part in gradient]
        if shapes != flat.shapes:
            raise ValueError(f"`gradient` must have parts of the parameters' shapes, {flat.shapes}, got {shapes}")
        flat_gradient = flat.join(dict(zip(flat.names, gradient, strict=True)))
    else:
        flat_gradient = tensor(gradient, "gradient")
    out = flat_gradient.detach().to(flat.theta)
    out = out[None] if out.ndim == 1 else out
    if tuple(out.shape) != (steps, len(flat)):
        raise ValueError(
            f"`gradient` must have shape ({len(flat)},), one number for each of the model's parameters in "
            f"their order, or ({steps}, {len(flat)}) for {steps} states, got {tuple(flat_gradient.shape)}"
        )
    if not bool(torch.isfinite(out).all()):
        raise ValueError("`gradient` must hold finite numbers")
    return out


def _targets(flat: FlatModule, shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        with torch.no_grad():
            out = flat.outputs(flat.theta, flat.theta.new_zeros((2, *shape)))
    except RuntimeError as why:
        raise ValueError(f"`shape` must fit the model, got {shape} ({why})") from why
    if not isinstance(out, torch.Tensor) or out.ndim < 1 or len(out) != 2:
        raise ValueError(f"`model` must return one tensor of outputs, row by row, for inputs (B, {shape})")
    return tuple(out.shape[1:])


def _labels(
    flat: FlatModule,
    released: torch.Tensor,
    labels: Any,
    batch_size: int | None,
    shape: tuple[int, ...],
    targets: tuple[int, ...],
    own_loss: bool,
) -> tuple[torch.Tensor | None, int]:
    if not own_loss and len(targets) != 1:
        raise ValueError(f"`loss` is required for outputs of shape {targets}")
    if isinstance(labels, str):
        validate.one_of("recover", labels=labels)
        if (batch_size or 1) != 1 or len(released) > 1 or own_loss:
            raise ValueError(
                "`labels='recover'` is allowed only with one row, one state and cross-entropy; for a batch pass a "
                "result of attacks.labels"
            )
        labels = _recovered(flat, released[0], shape, targets[0])
    if labels is None:
        return None, batch_size or 1
    values = tensor(getattr(labels, "labels", labels), "labels")
    if values.ndim == 0 or len(values) == 0:
        raise ValueError(
            f"`labels` must have shape (B,), B at least 1, got {tuple(values.shape)}: an empty batch has no gradient"
        )
    if batch_size is not None and len(values) != batch_size:
        raise ValueError(f"`labels` must have batch_size={batch_size} rows, got shape {tuple(values.shape)}")
    if own_loss:
        return values.to(flat.theta) if values.is_floating_point() else values.to(flat.theta.device), len(values)
    if values.ndim != 1 or values.is_floating_point() or values.dtype == torch.bool:
        raise ValueError(
            f"`labels` must be (B,) integers, −1 where unknown, got shape {tuple(values.shape)}, {values.dtype}"
        )
    classes = max(2, targets[0])
    if int(values.min()) < -1 or int(values.max()) >= classes:
        raise ValueError(
            f"`labels` must lie in [-1, {classes - 1}], got values in [{int(values.min())}, {int(values.max())}]"
        )
    return values.long().to(flat.theta.device), len(values)


def _recovered(flat: FlatModule, gradient: torch.Tensor, shape: tuple[int, ...], classes: int) -> np.ndarray:
    """iDLG on the last linear layer; −1, to be optimised, where its signs do not decide."""
    name = _output_layer(flat, shape)
    parts = flat.split(gradient)
    key = f"{name}." if name else ""
    if name is None or f"{key}weight" not in parts or len(parts[f"{key}weight"]) != classes:
        raise ValueError(
            "`labels='recover'` needs a model that ends in an nn.Linear, used once, whose outputs are the logits, and "
            "a gradient that includes that layer's"
        )
    bias = parts.get(f"{key}bias")
    if bias is None and classes <= 2:
        return np.array([-1])  # the signs of two rows decide only where no input of the layer is negative
    signs = label_attacks.idlg(
        parts[f"{key}weight"][None].cpu().double().numpy(),
        bias_gradients=None if bias is None else bias[None].cpu().double().numpy(),
    )
    return signs.labels.astype(np.int64)


def input_probe(shape: tuple[int, ...]) -> torch.Tensor:
    """(1, *shape) of uniforms, the same at every call, to see which modules a model calls."""
    return torch.rand((1, *shape), generator=kernels.torch_generator(0, kernels.Stream.INPUT_PROBE))


def _output_layer(flat: FlatModule, shape: tuple[int, ...]) -> str | None:
    """The linear layer whose outputs are the model's, "" for the model itself; None without one."""
    x = input_probe(shape).to(flat.theta)
    calls = flat.calls(x)
    if not calls or not isinstance(calls[-1][0], nn.Linear):
        return None
    last, fed = calls[-1]
    with torch.no_grad():
        logits, out = last(fed).flatten(), flat.outputs(flat.theta, x).flatten()
        # Close, not equal: rounding depends on where in memory the parameters lie.
        same = logits.shape == out.shape and torch.allclose(logits, out, rtol=1e-3, atol=1e-3 * float(out.abs().max()))
        if not same or sum(module is last for module, _ in calls) > 1:
            return None
    return next(str(name) for name, module in flat.model.named_modules() if module is last)


def _of_known(flat: FlatModule, states: torch.Tensor, known: Any, limit: float) -> torch.Tensor:
    """(T, D) Σ clip_C of the rows the attacker knows."""
    if known is None:
        return torch.zeros_like(states)
    x, y = (tensor(part, f"known[{i}]") for i, part in enumerate(known))
    x = x.to(flat.theta)
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise ValueError(
            f"`known` must hold inputs (n, ...) and labels (n,), got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if not bool(x.isfinite().all() and y.isfinite().all()):
        raise ValueError("`known` must hold finite numbers")
    if flat.loss is mean_cross_entropy:
        with torch.no_grad():
            outputs = flat.outputs(flat.theta, x[:1])
        require_classes(y, outputs, "known labels")
        if y.is_floating_point() and y[:1].numel() != outputs.numel():
            raise ValueError(f"`known` must hold integer labels (n,), got {y.dtype} and shape {tuple(y.shape)}")
    if len(x) == 0:
        return torch.zeros_like(states)
    out = []
    with quiet_batching():
        for theta in states:
            rows = flat.per_sample(theta, x, y.to(x.device))
            factor = (limit / rows.norm(dim=1, keepdim=True)).clamp(max=1)
            out.append((rows * factor).sum(0))
    return torch.stack(out).detach()
