"""Statistics of a batch at a model's batch norms: from running ones before and after a step, and of a guess."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from leakcore._base import validate
from leakcore.gradients import FlatModule, lock_of, tensor

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
Statistics = dict[str, tuple[torch.Tensor, torch.Tensor]]


def batch_statistics(model: nn.Module, after: Any, steps: int = 1) -> Statistics:
    """Mean and variance of a client's batch at each batch norm, from its running statistics before and after a step.

    A batch norm moves its running statistics by its momentum m, new = (1 − m)·old + m·batch, so that
    batch = old + (new − old)/m (m = 1/k at the k-th batch where `momentum=None`). After several steps the mean of their
    batches' statistics is known, with weights that grow as (1 − m)⁻ʲ. For `ReleasedGradient(..., statistics=...)`.

    Args:
        model: what the server sent, with the running statistics before the step and each layer's momentum.
        after: what came back after the steps in training mode: the client's module or its state dict.
        steps: how many, at least 1.

    Returns:
        {name of the layer: (mean, variance)}, each (channels,) float64. The variance is unbiased, divided by n − 1, as
        torch's `running_var` holds it. Layers whose count of batches stands still were frozen, and are left out.

    Raises:
        ValueError: if there is no batch norm with running statistics, if its momentum is 0, if nothing changed, if the
            count of batches grew by another number than `steps`, or if no batches give these numbers.

    Guarantees:
        Exact up to the rounding of the running statistics, divided by m (1 − (1 − m)ᵏ after k steps). Deterministic.

    Example:
        >>> import copy, torch
        >>> from leakcore.attacks import inversion
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).double()
        >>> client = copy.deepcopy(model).train()
        >>> _ = client(torch.tensor([[1.0, 5.0], [3.0, 5.0]]).double())
        >>> mean, variance = inversion.batch_statistics(model, client)["0"]
        >>> mean.round(decimals=9).tolist(), variance.round(decimals=9).tolist()
        ([2.0, 5.0], [2.0, 0.0])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(after, nn.Module | Mapping):
        raise TypeError(f"`after` must be a torch.nn.Module or a state dict, got {type(after).__name__}")
    count = validate.integer(1, 1 << 20, steps=steps)
    layers = _layers(model)
    if not layers:
        raise ValueError("`model` must have a batch norm, or no statistics of a batch are kept")
    layers = {name: layer for name, layer in layers.items() if layer.running_mean is not None}
    if not layers:
        raise ValueError("`model` must have a batch norm with track_running_stats=True, or none are kept")
    with lock_of(model):
        before = {name: value.detach().clone() for name, value in model.named_buffers()}
    later = dict(after.named_buffers()) if isinstance(after, nn.Module) else after
    each = {name: _of_layer(name, layer, before, later, count) for name, layer in layers.items()}
    out = {name: moments for name, moments in each.items() if moments is not None}
    if not out:
        raise ValueError("`after` must differ from `model` in its running statistics: no layer saw a batch")
    return out


def _layers(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, _BATCH_NORM)}


def _of_layer(
    name: str, layer: Any, before: Mapping[str, torch.Tensor], after: Mapping[str, Any], steps: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(mean, unbiased variance) of the batch; None where the layer saw none."""
    key = f"{name}." if name else ""
    moments, spacing = [], 0.0
    for kind in ("running_mean", "running_var"):
        old = before[key + kind]
        if key + kind not in after:
            raise ValueError(f"`after` must hold {key + kind!r}, as a state dict of `model` does")
        new = tensor(after[key + kind], f"after[{key + kind!r}]").to(old.device)
        if new.shape != old.shape:
            raise ValueError(
                f"`after[{key + kind!r}]` must have the shape of the model's, {tuple(old.shape)}, got "
                f"{tuple(new.shape)}"
            )
        if not bool((new.isfinite() & old.isfinite()).all()):
            raise ValueError(f"`after[{key + kind!r}]` must hold finite numbers, and the model's as well")
        spacing = max([spacing] + [torch.finfo(v.dtype).eps for v in (old, new) if v.is_floating_point()])
        moments.append((old.double(), new.double()))
    first = int(before[key + "num_batches_tracked"]) if key + "num_batches_tracked" in before else None
    last = after.get(key + "num_batches_tracked")
    batches = None if first is None or last is None else int(last) - first
    if batches == 0 or (batches is None and all(torch.equal(old, new) for old, new in moments)):
        return None
    if batches not in (None, steps):
        raise ValueError(f"`steps` must be what `after` took: layer {name} saw {batches} batches, got {steps}")
    if layer.momentum == 0:
        raise ValueError(f"`model` must have a momentum above 0 at layer {name}, or its running statistics stay")
    if layer.momentum is None and first is None:
        raise ValueError(f"`model` must count its batches at layer {name}, where momentum=None")
    share = 1 - (1 - float(layer.momentum)) ** steps if layer.momentum is not None else steps / ((first or 0) + steps)
    (mean, new_mean), (variance, new_variance) = moments
    mean = mean + (new_mean - mean) / share
    rounding = 8 * spacing * float(torch.maximum(variance, new_variance).max()) / share
    variance = variance + (new_variance - variance) / share
    if float(variance.min()) < -rounding:
        raise ValueError(
            f"`after` must be {steps} steps from `model`: the batch's variance at layer {name} would be "
            f"{float(variance.min()):.3g} with momentum {layer.momentum}"
        )
    return mean, variance.clamp(min=0)


def batchwise(model: Any) -> Any:
    """The model, or where batch norms would count the batch they normalise by, one like it of the same parameters."""
    if not isinstance(model, nn.Module):
        return model
    with lock_of(model):
        if not any(layer.training and layer.running_mean is not None for layer in _layers(model).values()):
            return model
        same = {id(value): value for value in (*model.parameters(), *model.buffers())}
        twin = copy.deepcopy(model, same)
    for layer in _layers(twin).values():
        if layer.training:
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
            layer.track_running_stats = False
    return twin


def mixes(model: nn.Module) -> bool:
    """Whether a batch norm of it normalises by the batch."""
    return any(layer.training or layer.running_mean is None for layer in _layers(model).values())


def guess_statistics(flat: FlatModule, theta: torch.Tensor, x: torch.Tensor, names: Any) -> Statistics:
    """The statistics of x (B, *shape) at these layers, in one pass in the model's own mode; differentiable in x."""
    observed: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    here = threading.get_ident()
    with lock_of(flat.model), contextlib.ExitStack() as hooks:
        for name in names:

            def note(_: nn.Module, args: tuple[Any, ...], name: str = name) -> None:
                if threading.get_ident() == here:
                    observed[name].append(args[0])

            hooks.enter_context(flat.model.get_submodule(name).register_forward_pre_hook(note))
        flat.outputs(theta, x)
    out = {}
    for name, fed in observed.items():
        if len(fed) != 1:
            raise ValueError(f"`statistics` must be of layers that the model calls once: {name} is called {len(fed)}×")
        over = [i for i in range(fed[0].ndim) if i != 1]
        if fed[0].numel() == fed[0].shape[1]:
            raise ValueError(f"`statistics` need at least two numbers per channel, got a batch with one at {name}")
        out[name] = (fed[0].mean(over), fed[0].var(over, correction=1))
    return out


def steps_statistics(
    flat: FlatModule, thetas: Sequence[torch.Tensor], batches: Sequence[tuple[int, int]], x: torch.Tensor, names: Any
) -> Statistics:
    """Running statistics' mean over several steps, of `guess_statistics` at each step's parameters and rows."""
    each = [
        guess_statistics(flat, theta, x[start:end], names) for theta, (start, end) in zip(thetas, batches, strict=True)
    ]
    layers, out = _layers(flat.model), {}
    for name in names:
        momentum = layers[name].momentum
        left = 1.0 if momentum is None else 1 - float(momentum)
        weights = [left ** (len(each) - 1 - j) for j in range(len(each))]
        parts = [[w / sum(weights) * part for part in one[name]] for w, one in zip(weights, each, strict=True)]
        mean, variance = (torch.stack(kind).sum(0) for kind in zip(*parts, strict=True))
        out[name] = (mean, variance)
    return out


def statistics_distance(guess: Statistics, known: Statistics) -> torch.Tensor:
    """Mean over layers of ‖μ − μ*‖²/Σσ*² + ‖σ² − σ*²‖²/‖σ*²‖², with the known mean μ* and variance σ*²."""
    terms = []
    for name, (mean, variance) in known.items():
        tiny = torch.finfo(variance.dtype).eps
        terms.append((guess[name][0] - mean).square().sum() / (variance.sum() + tiny))
        terms.append((guess[name][1] - variance).square().sum() / (variance.square().sum() + tiny))
    return torch.stack(terms).sum() / len(known)


def read_statistics(flat: FlatModule, statistics: Any, batches: Sequence[torch.Tensor]) -> Statistics | None:
    """The caller's statistics, checked against the model by one pass of each batch (B, *shape)."""
    if statistics is None:
        return None
    if not isinstance(statistics, Mapping):
        raise TypeError(f"`statistics` must be a dict, {{layer: (mean, variance)}}, got {type(statistics).__name__}")
    layers = _layers(flat.model)
    if not statistics or not set(statistics) <= set(layers):
        raise ValueError(
            f"`statistics` must name batch norms of the model, {', '.join(layers) or 'which has none'}, got "
            f"{', '.join(map(str, statistics)) or 'no name'}"
        )
    out = {}
    for name, pair in statistics.items():
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError(f"`statistics[{name!r}]` must be a pair, (mean, variance)")
        mean, variance = (tensor(part, f"statistics[{name!r}]").to(flat.theta) for part in pair)
        channels = (layers[name].num_features,)
        for part in (mean, variance):
            if tuple(part.shape) != channels:
                raise ValueError(f"`statistics[{name!r}]` must have shape {channels} each, got {tuple(part.shape)}")
            if not bool(part.isfinite().all()):
                raise ValueError(f"`statistics[{name!r}]` must hold finite numbers")
        if bool((variance < 0).any()):
            raise ValueError(f"`statistics[{name!r}]` must have variances of at least 0, got {float(variance.min())}")
        out[name] = (mean, variance)
    with torch.no_grad():
        for x in batches:
            guess_statistics(flat, flat.theta, x, out)
    return out
