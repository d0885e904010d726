"""Gradient inversion itself: a search from each start, and the best one chosen by what the attacker can see."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore._base import memory_limit, validate
from leakcore._base.results import attack_guarantee
from leakcore.attacks.inversion import search
from leakcore.attacks.inversion.batch_norm import batchwise, mixes
from leakcore.attacks.inversion.objectives import L2, LBFGS, Adam, Cosine, DPSGDSteps, LocalSteps
from leakcore.attacks.inversion.problem import input_probe, read, read_release, released_rows
from leakcore.attacks.inversion.result import Inversion, host
from leakcore.gradients import FlatModule, locked, require_classes, tensor

_KINKED = {
    **{name: name for name in "Threshold Hardsigmoid Hardswish Hardshrink Softshrink".split()},
    **{name: name.lower() for name in "Clamp Abs Sign Maximum".split()},
    **dict.fromkeys(("MaxPool", "AdaptiveMaxPool"), "max-pooling"),
    "Hardtanh": "Hardtanh, ReLU6",
    "Relu": "ReLU",
    "LeakyRelu": "LeakyReLU",
    "Prelu": "PReLU",
    "RreluWithNoise": "RReLU",
}
"""torch's name of the backward operation, without "Backward0" and dimensions. ELU and CELU are not here: their second
derivative jumps at 0, but is there and not zero, which suffices in practice."""


@locked
def kinked(model: nn.Module, x: torch.Tensor) -> tuple[str, ...]:
    """Piecewise linear operations between x (B, ...) and the model's output: "ReLU (layer 1)", "ReLU" of a function."""
    with torch.enable_grad():
        out: Any = model(x.detach().clone().requires_grad_())
    met: dict[str, None] = {}
    visited, waiting = set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        kind = re.sub(r"(\d+D(WithIndices)?)?Backward\d+$", "", node.name())
        if kind in _KINKED:
            met[_KINKED[kind]] = None
        waiting += [parent for parent, _ in node.next_functions]
    names = []
    for what in sorted(met):
        aliases = [alias.lower() for alias in what.replace("max-pooling", "MaxPool").split(", ")]
        kinds = {name: type(module).__name__ for name, module in model.named_modules()}
        places = [
            name
            for name, kind in kinds.items()
            if (kind == "ReLU" if aliases == ["relu"] else any(alias in kind.lower() for alias in aliases))
        ]
        names.append(f"{what} (layer {', '.join(places)})" if places else what)
    return tuple(names)


def warn_if_kinked(model: nn.Module, x: torch.Tensor) -> tuple[str, ...]:
    """Warn (UserWarning) with the names, which are returned."""
    names = kinked(model, x)
    if names:
        warnings.warn(
            f"model: {'; '.join(names)} not twice differentiable: the search follows the derivative of the gradient, "
            "which is zero or jumps there, and is expected to fail more often (softplus, GELU or sigmoid in its place "
            "would not hamper it)",
            UserWarning,
            stacklevel=4,
        )
    return names


def gradient(
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    parameters: Sequence[str] | None = None,
) -> torch.Tensor:
    """Gradient of the batch's loss at the model's present parameters, flat: what a client without a defence releases.

    `defenses.release` computes it under a defence.

    Args:
        model: a torch module in eval mode, or with batch norms in training mode, which then normalise by the batch and
            keep their running statistics as they are.
        inputs: (B, ...), B ≥ 1, finite.
        targets: (B,) classes, or what the loss takes.
        loss: loss(outputs, targets), mean over rows; None: cross-entropy (of a logit, where there is one output).
        parameters: names of the parameters to differentiate, in that order; None: all that require grad, in the order
            of `model.parameters()`.

    Returns:
        (D,) tensor of the model's type and device.

    Guarantees:
        Deterministic for a machine and torch build. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import torch
        >>> from leakcore.attacks import inversion
        >>> model = torch.nn.Linear(2, 2)
        >>> _ = torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
        >>> inversion.gradient(model, [[1.0, 2.0]], [0]).tolist()  # weights row by row, then biases
        [-0.5, -1.0, 0.5, 1.0, -0.5, 0.5]
    """
    validate.callback(loss=loss)
    flat = FlatModule(batchwise(model), loss, parameters, mixing=True)
    x, y = _pair(inputs, targets, flat.theta)
    mixing = mixes(flat.model)
    flat.require_no_draws(x[:1])
    try:
        with torch.no_grad():
            if loss is None:
                require_classes(y, flat.outputs(flat.theta, x if mixing else x[:1]), "targets")
            return flat.gradient(flat.theta, x, y)
    except RuntimeError as why:
        raise ValueError(f"`targets` must fit the model's loss, got shape {tuple(y.shape)}, {y.dtype} ({why})") from why


def _pair(inputs: Any, targets: Any, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = tensor(inputs, "inputs").to(like), tensor(targets, "targets").to(like.device)
    if x.ndim < 2 or len(x) == 0:
        raise ValueError(
            f"`inputs` must have shape (B, ...), B ≥ 1, got {tuple(x.shape)}: an empty batch has no gradient"
        )
    if y.ndim == 0 or len(y) != len(x):
        raise ValueError(f"`targets` must hold one target for each of {len(x)} inputs, got shape {tuple(y.shape)}")
    for name, values in (("inputs", x), ("targets", y)):
        if not bool(values.isfinite().all()):
            raise ValueError(f"`{name}` must hold finite numbers")
    return x, y.to(like.dtype) if y.is_floating_point() else y.long()


def invert(
    model: torch.nn.Module,
    gradient: Any,
    shape: Sequence[int],
    *,
    labels: Any = None,
    objective: L2 | Cosine | DPSGDSteps | LocalSteps | None = None,
    optimizer: LBFGS | Adam | None = None,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Inversion:
    """Inputs whose gradient is closest to the one that was released (Lecture 13, eq. 5.1), for any torch model.

    Minimises the objective over inputs (and unknown labels) from several starts and keeps the restart with the least
    distance.

    Args:
        model: in the client's mode, without dropout; the search uses its float type and device.
        gradient: (D,) numbers, a list of tensors (one per parameter), a dict by name, what `defenses.release` returned,
            or a `ReleasedGradient`; for `LocalSteps` the weights' change.
        shape: shape of one input, such as (3, 32, 32).
        labels: (B,) classes, −1 where unknown. None: all are optimised with the inputs. "recover": read from the signs
            of the last layer's gradient (one row), and optimised where these do not decide. Or a result of
            `attacks.labels`. With a custom loss: its targets; None: real ones, of the outputs' shape.
        objective: `L2`, `Cosine`, `DPSGDSteps` or `LocalSteps`; None: `L2()`.
        optimizer: `LBFGS`, `Adam` or `SignedAdam`; None: the objective's own.
        seed: seed of the random starts.
        progress: called as progress(done, total), of restarts, or of iterations for Adam.

    Returns:
        `Inversion`, with every restart. Its `compared_with` measures it against the originals.

    Guarantees:
        An estimate: a better search may reconstruct more. Deterministic by seed on a machine and torch build. Warns
        (UserWarning) where the model is not twice differentiable (ReLU, max-pooling, …), naming the operations.
        ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import torch
        >>> from leakcore.attacks import inversion
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3))
        >>> secret = torch.tensor([[0.1, 0.9, 0.4, 0.6]])
        >>> released = inversion.gradient(model, secret, [2])
        >>> optimizer = inversion.LBFGS(iterations=200, restarts=1)
        >>> inverted = inversion.invert(model, released, (4,), labels=[2], optimizer=optimizer)
        >>> inverted.ends, bool(abs(inverted.reconstructions - secret.numpy()).max() < 0.01)
        (('converged',), True)
    """
    validate.callback(progress=progress)
    objective = L2() if objective is None else objective
    validate.instance(L2, Cosine, DPSGDSteps, LocalSteps, objective=objective)
    optimizer = objective.default_optimizer if optimizer is None else optimizer
    validate.instance(LBFGS, Adam, optimizer=optimizer)
    key = validate.seed(seed=seed)
    sizes = validate.sizes(shape=shape)
    memory_limit.require(64 * optimizer.restarts * math.prod(sizes), restarts=optimizer.restarts, shape=sizes)
    problem = read(model, read_release(gradient), shape, labels=labels, objective=objective)
    problem.flat.require_no_draws(problem.states.new_zeros((1, *problem.shape)))
    # In the model's own mode and precision, at the point where the searches start.
    names = warn_if_kinked(problem.flat.model, search.starts(problem, optimizer, key)[0][0])
    restarts = search.find(problem, optimizer, key, progress)
    usable = np.where(
        np.isfinite(restarts.distances) & np.array([e != "diverged" for e in restarts.ends]), restarts.distances, np.inf
    )
    best = int(usable.argmin()) if np.isfinite(usable).any() else -1
    every = host(restarts.points)
    weights = ", ".join(f"{weight:g}" for weight in objective.weights)
    prior = f", total variation {weights}" if any(objective.weights) else ""
    if problem.statistics is not None and not isinstance(objective, DPSGDSteps):
        prior += f", batch norm statistics {objective.statistics_weight:g}"
    return Inversion(
        value=float(usable[best]) if best >= 0 else math.inf,
        method=f"gradient inversion, {objective.name} by {optimizer.name}, {optimizer.restarts} restarts of at most "
        f"{optimizer.iterations} iterations{prior}",
        **attack_guarantee(
            f"knows the model and sees {len(problem.states)} gradient{'s' * (len(problem.states) > 1)} of "
            f"{problem.batch} row{'s' * (problem.batch > 1)}"
            + ("" if problem.free_labels else f"; {problem.labels_from}")
            + ("" if problem.statistics is None else "; knows the batch's statistics at its batch norms")
            + ("; knows the other rows" if getattr(objective, "known", None) is not None else ""),
            notes=(
                "a better search may reconstruct more: no bound",
                *(f"{name} not twice differentiable" for name in names),
            ),
        ),
        seed=key,
        provenance=objective.source,
        best=best,
        reconstructions=every[best] if best >= 0 else np.full_like(every[0], np.nan),
        labels=host(problem.labels_of(restarts.free[max(best, 0)])),
        every=every,
        distances=restarts.distances,
        ends=restarts.ends,
        iterations=restarts.iterations,
        originals=None,
        quality=None,
        box=objective.box,
        value_range=objective.box or (0.0, 1.0),
        kinked=names,
    )


def closed_form(model: torch.nn.Module, gradient: Any, shape: Sequence[int]) -> np.ndarray:
    """The input of a first linear layer with bias, read off the gradient without any search.

    For one row dL/dW = δxᵀ and dL/db = δ, so x = (dL/dW)ᵀδ/‖δ‖² up to rounding (Phong et al. 2018, Section 3), if
    nothing was added to the gradient: no decay or penalty of the weights, no momentum, no noise; not pruned.
    For a batch it is a mean of the rows, weighted by what they add to ‖Σδ‖², and not a single row (the gradient of a
    linear network holds nothing else: Lecture 13, Section 4.4).

    Args:
        model: its first module with parameters must be nn.Linear with bias, receive the flattened input unchanged, and
            be called once.
        gradient: as in `invert`, at one state.
        shape: shape of the input.

    Returns:
        (*shape) float64.

    Raises:
        ValueError: for another model (a random input is passed through it to check), for several states, and where
            dL/db is 0 (a saturated row).

    Guarantees:
        Deterministic.

    Example:
        >>> import torch
        >>> from leakcore.attacks import inversion
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> released = inversion.gradient(model, [[0.25, 0.5, 1.0]], [1])
        >>> inversion.closed_form(model, released, (3,)).round(4).tolist()
        [0.25, 0.5, 1.0]
    """
    release = read_release(gradient)
    if release.states is not None:
        raise ValueError("`states` must be None: a closed form reads one gradient at the model's present parameters")
    flat = FlatModule(model, release.loss, release.parameters)
    sizes = validate.sizes(shape=shape)
    memory_limit.require(16 * math.prod(sizes), shape=sizes)
    parts = flat.split(released_rows(flat, release.gradient, 1)[0])
    weight, bias = (parts[name].double() for name in _first_linear(flat, sizes))
    square = float(bias.square().sum())
    if square == 0.0:
        raise ValueError("`gradient` must not be 0 for the first layer's bias, or the layer's input cannot be computed")
    return np.asarray((weight.T @ bias / square).reshape(sizes).cpu().numpy())


def _first_linear(flat: FlatModule, shape: tuple[int, ...]) -> tuple[str, str]:
    """Names of weight and bias of the linear layer that the flattened input enters first; ValueError without one."""
    x = input_probe(shape).to(flat.theta)
    flat.require_no_draws(x)
    try:
        calls = flat.calls(x)
    except (RuntimeError, ValueError) as why:
        raise ValueError(f"`shape` must fit the model, got {shape} ({why})") from why
    if not calls:
        raise ValueError("`model` must begin with an nn.Linear with bias, but it calls no module with parameters")
    first, fed = calls[0]
    name = next(name for name, module in flat.model.named_modules() if module is first)
    names = (f"{name}.weight", f"{name}.bias") if name else ("weight", "bias")
    if not isinstance(first, torch.nn.Linear) or not set(names) <= set(flat.names):
        raise ValueError(f"`model` must begin with an nn.Linear with bias, got {type(first).__name__}")
    if not torch.equal(fed.flatten(), x.flatten()) or first.in_features != x.numel():
        raise ValueError(f"`model` must give the flattened input unchanged to its first layer, {name or 'Linear'}")
    own = {id(p) for p in first.parameters(recurse=False)}
    uses = sum(any(id(p) in own for p in module.parameters(recurse=False)) for module, _ in calls)
    if uses > 1:
        raise ValueError(f"`model` must use its first layer, {name or 'Linear'}, once, got {uses} uses")
    return names
