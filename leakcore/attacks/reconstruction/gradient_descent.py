"""The prior-oblivious gradient attack: the point whose clipped gradients best explain what DP-SGD released."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from leakcore import kernels, models
from leakcore._base import memory_limit, validate
from leakcore._base.array_record import ArrayRecord
from leakcore._base.process_wide import one_thread
from leakcore._base.workers import collected
from leakcore.attacks.arguments import read_finite_box
from leakcore.dpsgd import EnsembleRun, Execution, arguments
from leakcore.gradients import lock_of


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenEmbedding:
    """The frozen network on whose features a run was trained: `gradient` then searches for its input.

    Args:
        module: from points (rows, *shape) to (rows, inputs); used in evaluation mode, on a copy.
        shape: shape of one point, such as (3, 32, 32).
    """

    module: torch.nn.Module
    shape: Sequence[int]

    def __post_init__(self) -> None:
        validate.instance(torch.nn.Module, module=self.module)
        object.__setattr__(self, "shape", validate.sizes(shape=self.shape))

    def frozen(self, inputs: int, dtype: str) -> torch.nn.Module:
        """A copy, so that no gradient of the search reaches the caller's parameters."""
        with lock_of(self.module):
            copied = copy.deepcopy(self.module)
        module = copied.eval().requires_grad_(False).to(getattr(torch, dtype))
        try:
            out = tuple(module(torch.zeros((1, *self.shape), dtype=getattr(torch, dtype))).shape)
        except RuntimeError as why:
            raise ValueError(f"`embedding` must take inputs of shape {self.shape}: {why}") from why
        if out != (1, inputs):
            raise ValueError(f"`embedding` must map one point of shape {self.shape} to shape (1, {inputs}), got {out}")
        return module


@dataclasses.dataclass(frozen=True)
class ReleasedSteps:
    """One run in units of C, by layer: weights (steps, out, in + 1), the bias last, and observed ḡ_t/C likewise."""

    weights: list[torch.Tensor]
    observed: list[torch.Tensor]

    @classmethod
    def of(cls, thetas: Any, observed: Any, layers: tuple[int, ...], max_grad_norm: float) -> ReleasedSteps:
        """Read flat (steps, parameters) arrays in the order of `models.mlp(...).parameters()`."""
        flat = [torch.as_tensor(thetas), torch.as_tensor(observed) / max_grad_norm]
        return cls(*(_by_layer(values, layers) for values in flat))


def _by_layer(flat: torch.Tensor, layers: tuple[int, ...]) -> list[torch.Tensor]:
    out, start = [], 0
    for fan_in, fan_out in itertools.pairwise(layers):
        middle = start + fan_in * fan_out
        weight = flat[:, start:middle].view(-1, fan_out, fan_in)
        bias = flat[:, middle : middle + fan_out, None]
        out.append(torch.cat([weight, bias], 2).contiguous())
        start = middle + fan_out
    return out


def losses(
    points: torch.Tensor,
    targets: torch.Tensor,
    trace: ReleasedSteps,
    activation: str,
    max_grad_norm: float,
    weight: float | None,
) -> torch.Tensor:
    """(points,): Σ_t −⟨g, ḡ_t⟩ + ½‖g‖², or + weight·‖g − ḡ_t‖₁, with g = clip_C(∇ℓ(θ_t, z))/C and ḡ_t in units of C.
    points: (K, inputs), may require grad. targets: (K, outputs) one-hot, or (K, 1) of 0 and 1 for one logit."""
    inputs, deltas = _passes(points, targets, trace, activation)
    square = sum(((h * h).sum(-1) * (d * d).sum(-1) for h, d in zip(inputs, deltas, strict=True)), torch.zeros(()))
    # Below C nothing is clipped; the clamp keeps a zero gradient's derivative finite.
    factor = square.clamp(min=max_grad_norm**2).rsqrt()
    total = torch.zeros(len(points), dtype=points.dtype)
    if weight is None:
        total = total + 0.5 * (square * factor.square()).sum(1)
    for layer, (h, d) in enumerate(zip(inputs, deltas, strict=True)):
        observed = trace.observed[layer]
        u = d * factor[..., None]
        if layer == 0:
            # All steps have the same point as input: their units side by side form one matrix.
            u, observed = u.flatten(1).unsqueeze(1), observed.flatten(0, 1).unsqueeze(0)
        if weight:
            total = total + _LayerLoss.apply(u, h, observed, weight).sum(1)  # type: ignore[no-untyped-call]
        else:
            total = total - (u * torch.einsum("toi,kti->kto", observed, h)).sum((1, 2))
    return total


def _passes(
    points: torch.Tensor, targets: torch.Tensor, trace: ReleasedSteps, activation: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each layer's inputs with a final one appended, (K, 1 or steps, in + 1), and δ, (K, steps, out)."""
    apply = models.activation_module(activation)
    inputs = [_with_one(points.unsqueeze(1))]
    pre: list[torch.Tensor] = []
    for layer, weight in enumerate(trace.weights):
        if layer > 0:
            inputs.append(_with_one(apply(pre[-1])))
        pre.append(torch.einsum("toi,kti->kto", weight, inputs[-1].expand(-1, len(weight), -1)))
    last = pre[-1].sigmoid() if pre[-1].shape[-1] == 1 else pre[-1].softmax(-1)
    deltas = [last - targets.unsqueeze(1)]
    for layer in range(len(trace.weights) - 1, 0, -1):
        below = torch.einsum("toi,kto->kti", trace.weights[layer][:, :, :-1], deltas[0])
        # Autograd computes φ′ for any activation, and it stays differentiable.
        (slope,) = torch.autograd.grad(apply(pre[layer - 1]).sum(), pre[layer - 1], create_graph=True)
        deltas.insert(0, below * slope)
    return inputs, deltas


def _with_one(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values, torch.ones_like(values[..., :1])], -1)


class _LayerLoss(torch.autograd.Function):
    """u (K, t, out), h (K, t, in), observed (t, out, in) → (K, t)."""

    @staticmethod
    def forward(ctx: Any, u: torch.Tensor, h: torch.Tensor, observed: torch.Tensor, weight: float) -> torch.Tensor:
        gap = u.unsqueeze(-1) * h.unsqueeze(-2)
        product = (u * torch.einsum("toi,kti->kto", observed, h)).sum(-1)
        gap -= observed
        value = gap.abs().sum((-1, -2)) * weight - product
        ctx.save_for_backward(u, h, gap.sign_().mul_(weight).sub_(observed))
        return value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        u, h, slope = ctx.saved_tensors
        g = grad.unsqueeze(-1)
        to_u = torch.matmul(slope, h.unsqueeze(-1)).squeeze(-1) * g
        to_h = torch.matmul(u.unsqueeze(-2), slope).squeeze(-2) * g
        return to_u, to_h, None, None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GradientReconstruction(ArrayRecord):
    """The reconstructed points; row i belongs to run first_run + i.

    Attributes:
        points: (runs, inputs) in [low, high], in the trace's dtype; with an embedding, its input.
        labels: (runs,) int64, the known ones, or the ones of the best class.
        losses: (runs,) float64, the loss that was reached, the least over restarts (and labels); comparable within a
            run only.
        restart: (runs,) int64, which restart reached it.
        first_run: number of the first run.
    """

    points: np.ndarray
    labels: np.ndarray
    losses: np.ndarray
    restart: np.ndarray
    first_run: int


def _require_recorded(run: Any) -> tuple[np.ndarray, np.ndarray]:
    """The parameters and gradients of a recorded run of an MLP; errors for anything else."""
    validate.instance(EnsembleRun, run=run)
    if run.thetas is None or run.observed is None:
        raise ValueError(
            "`run` must hold recorded steps; train it with dpsgd.Ensemble.run(..., "
            "observer=dpsgd.Observer(record=True))"
        )
    if run.template is not None:
        raise ValueError(
            f"`run` must be of a dpsgd.Network, got a dpsgd.ModuleNetwork of {type(run.template).__name__}; "
            "use attacks.inversion.invert(module, ReleasedGradient(run.observed[i], states=run.thetas[i]), "
            "shape, objective=DPSGDSteps(run.max_grad_norm))"
        )
    size = models.num_parameters(run.layers)
    for name, values in (("thetas", run.thetas), ("observed", run.observed)):
        if values.shape[-1] != size:
            raise ValueError(
                f"`run.{name}` must end in the {size} parameters of {run.layers}, got shape {values.shape}"
            )
    return run.thetas, run.observed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descent:
    """How `gradient` searches: Adam from several uniform starts, with a step that falls to zero along a cosine.

    Hayes et al. 2023 take 10⁶ steps of plain gradient descent at 0.01 with five restarts.

    Args:
        iterations: steps of each search, at least 1.
        restarts: starts of each run, at least 1; the best counts.
        learning_rate: at the start, > 0.
    """

    iterations: int = 1000
    restarts: int = 5
    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "iterations", validate.integer(1, None, iterations=self.iterations))
        object.__setattr__(self, "restarts", validate.integer(1, None, restarts=self.restarts))
        object.__setattr__(self, "learning_rate", validate.positive(learning_rate=self.learning_rate))


@dataclasses.dataclass(frozen=True)
class _Task:
    layers: tuple[int, ...]
    activation: str
    max_grad_norm: float
    l1_weight: float | None
    descent: Descent
    low: float
    high: float
    seed: int
    embed: torch.nn.Module | None
    shape: tuple[int, ...]


def gradient(
    run: EnsembleRun,
    labels: Any = None,
    *,
    descent: Descent | None = None,
    l1_weight: float | None = None,
    box: tuple[float, float] = (0.0, 1.0),
    embedding: FrozenEmbedding | None = None,
    seed: int = 0,
    execution: Execution | None = None,
) -> GradientReconstruction:
    """Reconstruct each run's unknown point without a prior, within a box (after Hayes et al. 2023, Equation 1).

    Adam minimises over z, from uniform starts and projected to the box after each step,

        L(z) = Σ_t −⟨g_t, ḡ_t⟩/C² + ½‖g_t‖²/C²  with g_t = clip_C(∇ℓ(θ_t, z)),

    the log likelihood of normal noise. The printed equation has ‖g_t − ḡ_t‖₁ as second term.

    Args:
        run: a recorded run of an MLP, `dpsgd.Ensemble.run(..., observer=Observer(record=True))`; the attacker sees θ_t
            and ḡ_t. The loss takes the target to be in every batch (full batches). For other modules:
            `inversion.invert`.
        labels: (runs,), the targets' labels, which the text takes as known; None: each class is tried and the one with
            the least loss wins, at `classes` times the cost.
        descent: iterations, restarts and learning rate; None: the defaults.
        l1_weight: None: the loss above. λ ≥ 0: λ‖g_t − ḡ_t‖₁/C in place of ½‖g_t‖²/C²; 1/C as printed, over C².
        box: (low, high), the range of a feature.
        embedding: the frozen network on whose features the run was trained; the point is then its input, flattened.
        seed: seed of the random starts.
        execution: threads, workers, and progress in runs, on the CPU without a checkpoint; None: as
            `dpsgd.Execution()`.

    Returns:
        `GradientReconstruction`.

    Guarantees:
        A run's result is a pure function of its trace and these settings, on one machine and torch build. ValueError or
        TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks, dpsgd
        >>> model = dpsgd.Ensemble((4, 2), noise_multiplier=0.01, max_grad_norm=1.0, learning_rate=0.1, steps=5, seed=0)
        >>> target = np.array([[0.2, 0.8, 0.5, 0.4]])  # all that the model is trained on
        >>> run = model.run(target, [1], runs=1, observer=dpsgd.Observer(record=True, subtract_known=False))
        >>> answer = attacks.gradient(run, [1], descent=attacks.Descent(iterations=100, restarts=1))
        >>> bool(abs(answer.points - target).max() < 0.1)
        True
    """
    thetas, observed = _require_recorded(run)
    low, high = read_finite_box(box)
    if embedding is not None:
        validate.instance(FrozenEmbedding, embedding=embedding)
    how = validate.settings(Descent, descent=descent)
    memory_limit.require(64 * how.restarts * run.layers[0], restarts=how.restarts)
    task = _Task(
        layers=run.layers,
        activation=run.activation,
        max_grad_norm=run.max_grad_norm,
        l1_weight=None if l1_weight is None else validate.non_negative(l1_weight=l1_weight),
        descent=how,
        low=low,
        high=high,
        seed=validate.seed(seed=seed),
        embed=None if embedding is None else embedding.frozen(run.layers[0], thetas.dtype.name),
        shape=(run.layers[0],) if embedding is None else tuple(embedding.shape),
    )
    known = None if labels is None else _labels(labels, len(run), run.layers[-1])
    where = validate.settings(Execution, execution=execution)
    for name, only in (("device", "cpu"), ("checkpoint", None)):
        if getattr(where, name) != only:
            raise ValueError(f"`execution.{name}` must be {only!r} for attacks.gradient, got {getattr(where, name)!r}")

    labelled: Iterable[int | None] = itertools.repeat(None) if known is None else known.tolist()
    rows = zip(thetas, observed, labelled, itertools.count(run.first_run), strict=False)
    jobs = ((i, functools.partial(_reconstruct, task, *row)) for i, row in enumerate(rows))
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        workers = where.executor
        if workers is None:
            count = min(where.num_threads or kernels.num_threads(), len(run))
            workers = stack.enter_context(ThreadPoolExecutor(count))
        results = collected(jobs, workers, where.progress, len(run))
    points, classes, losses, restart = zip(*(results[i] for i in range(len(run))), strict=True)
    return GradientReconstruction(
        points=np.stack(points),
        labels=np.array(classes, np.int64),
        losses=np.array(losses),
        restart=np.array(restart, np.int64),
        first_run=run.first_run,
    )


def gradient_loss(run: EnsembleRun, points: Any, labels: Any, *, l1_weight: float | None = None) -> np.ndarray:
    """The loss that `gradient` minimises, evaluated at points of the caller's choice.

    Where the true point's loss lies above the reconstruction's, the search did its work, and it is the noise that hides
    the target.

    Args:
        run: a recorded run, as in `gradient`.
        points: (points, inputs), or (runs, points, inputs).
        labels: (points,), or (runs, points).
        l1_weight: as in `gradient`.

    Returns:
        (runs, points) float64.

    Guarantees:
        Deterministic for a machine and torch build. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks, dpsgd
        >>> model = dpsgd.Ensemble((4, 2), noise_multiplier=0.01, max_grad_norm=1.0, learning_rate=0.1, steps=5, seed=0)
        >>> target = np.array([[0.2, 0.8, 0.5, 0.4]])
        >>> run = model.run(target, [1], runs=1, observer=dpsgd.Observer(record=True, subtract_known=False))
        >>> true, other = attacks.gradient_loss(run, [target[0], 1 - target[0]], [1, 1])[0]
        >>> bool(true < other)
        True
    """
    thetas, observed = _require_recorded(run)
    guesses = arguments.samples(
        points, labels, name="", layers=run.layers, dtype=thetas.dtype.name, leading=(len(run),)
    )
    weight = None if l1_weight is None else validate.non_negative(l1_weight=l1_weight)
    out = np.empty((len(run), guesses.rows))
    for i in range(len(run)):
        trace = ReleasedSteps.of(thetas[i], observed[i], run.layers, run.max_grad_norm)
        for j in range(guesses.rows):
            z = torch.from_numpy(guesses.features[i, j].copy())[None].requires_grad_()
            y = _targets([int(guesses.labels[i, j])], run.layers[-1], z.dtype)
            out[i, j] = float(losses(z, y, trace, run.activation, run.max_grad_norm, weight).detach())
    return out


def _labels(labels: Any, runs: int, outputs: int) -> np.ndarray:
    out = validate.plain_array(labels=labels)
    if out.dtype.kind not in "iu":
        raise TypeError(f"`labels` must be of an integer type, got {out.dtype}")
    if out.shape != (runs,):
        raise ValueError(f"`labels` must have shape (runs={runs},), got {out.shape}")
    if ((out < 0) | (out >= max(2, outputs))).any():
        raise ValueError(f"`labels` must lie in [0, {max(2, outputs) - 1}], got values in [{out.min()}, {out.max()}]")
    return out


def _targets(labels: Sequence[int], outputs: int, dtype: Any) -> Any:
    which = torch.as_tensor(labels)
    levels = torch.ones(1, dtype=torch.int64) if outputs == 1 else torch.arange(outputs)
    return (which[:, None] == levels).to(dtype)


@one_thread()
def _reconstruct(
    task: _Task, thetas: np.ndarray, observed: np.ndarray, label: int | None, run: int
) -> tuple[np.ndarray, int, float, int]:
    """(point, label, loss, restart) of one run, on one torch thread; the worker's own number of threads is restored."""
    trace = ReleasedSteps.of(thetas, observed, task.layers, task.max_grad_norm)
    size, count = math.prod(task.shape), task.descent.restarts
    draws = kernels.uniform((1, count * size), seed=task.seed, purpose=kernels.Stream.GRADIENT_STARTS, first_row=run)
    starts = torch.from_numpy(task.low + (task.high - task.low) * draws.reshape(count, size)).to(
        trace.observed[0].dtype
    )
    best: tuple[np.ndarray, int, float, int] | None = None
    for guess in range(max(2, task.layers[-1])) if label is None else [label]:
        targets = _targets([guess] * count, task.layers[-1], starts.dtype)

        def evaluate(points: torch.Tensor, targets: torch.Tensor = targets) -> torch.Tensor:
            inputs = points if task.embed is None else task.embed(points.view(-1, *task.shape))
            return losses(inputs, targets, trace, task.activation, task.max_grad_norm, task.l1_weight)

        points = _descend(evaluate, starts, task)
        reached = evaluate(points.detach().requires_grad_()).detach()
        # A restart that diverged must neither win nor hide the others.
        reached = torch.where(reached.isfinite(), reached, torch.inf)
        which = int(reached.argmin())
        if best is None or float(reached[which]) < best[2]:
            best = points[which].numpy().copy(), guess, float(reached[which]), which
    assert best is not None
    return best


def _descend(evaluate: Callable[[Any], Any], starts: Any, task: _Task) -> Any:
    points = starts.clone().requires_grad_()
    optimiser = torch.optim.Adam([points], lr=task.descent.learning_rate)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, task.descent.iterations)
    for _ in range(task.descent.iterations):
        optimiser.zero_grad()
        # Restarts do not share parameters, so the sum's gradient is each one's own.
        evaluate(points).sum().backward()
        optimiser.step()
        fall.step()
        with torch.no_grad():
            points.clamp_(task.low, task.high)
    return points.detach()
