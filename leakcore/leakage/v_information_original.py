"""How much of the input itself a gradient reveals: V-information of inversion, pair of layers by pair of layers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.process_wide import quiet_batching
from leakcore._base.results import Result, attack_guarantee
from leakcore._base.workers import collected
from leakcore.attacks import ssim
from leakcore.gradients import LayeredModel

if TYPE_CHECKING:
    import torch

SPREAD = 1 / (2 * math.pi)
"""σ of the paper's density: its prefactor is then 1, and f[∅] = exp(−2π²)."""
LARGEST = 2 * math.pi**2
"""The value at a perfect reconstruction."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OriginalInformation(Result):
    """V-information of inputs in gradients of pairs of layers; kind "estimate".

    A score, not nats: the text calls it V-information, but its f is not a density. Arrays are (pairs,) unless stated.

    Attributes:
        value: mean over inputs, at least 0 (a family may ignore its gradient).
        interval: Student's interval of `raw` over inputs.
        raw: the mean before that limit.
        null: mean score of reconstructions compared with *other* inputs.
        each: (inputs, pairs) scores.
        similarity: (inputs, pairs) SSIM.
        losses: (inputs, pairs) the inversion's final loss.
        pairs: names of the layers of each pair.
        reconstructions: (pairs, inputs, ...).
        falls: share of inputs whose score falls from the first pair to the last.
    """

    quantity: str = "V-information, nats"
    raw: np.ndarray
    null: np.ndarray
    each: np.ndarray
    similarity: np.ndarray
    losses: np.ndarray
    pairs: tuple[tuple[str, ...], ...]
    reconstructions: np.ndarray
    falls: float

    @property
    def above_null(self) -> np.ndarray:
        """`raw` minus `null`: what the gradient says about *this* input."""
        return np.asarray(self.raw - self.null)


@dataclasses.dataclass(frozen=True, eq=False)
class PairInversion:
    """How the gradient of a pair of layers is inverted.

    Attributes:
        pairs: names of layers to invert together; None: each layer with the next (the only one, if there is one).
        released: what the attacker sees instead of a gradient: released(gradient (n, parameters of the pair), pair's
            number), for example with noise added, or with the other gradients of a batch. With an executor it must
            depend on these two alone: pairs are computed in any order, anywhere.
        iterations: steps of the inversion, at least 1.
        learning_rate: first step size of the inversion, > 0, in units of high − low.
        total_variation: weight of the mean absolute difference of neighbouring pixels, images only.
        low: least value of an input; None: the least in the data.
        high: largest value of an input; None: the largest in the data.
        confidence: level of the interval, in (0, 1).

    Example:
        >>> from leakcore import leakage
        >>> leakage.PairInversion(iterations=50, low=0, high=1).learning_rate
        0.1
    """

    pairs: Sequence[Sequence[str]] | None = None
    released: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    iterations: int = 200
    learning_rate: float = 0.1
    total_variation: float = 0.0
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        vars(self).update(
            iterations=validate.integer(1, None, iterations=self.iterations),
            learning_rate=validate.positive(learning_rate=self.learning_rate),
            total_variation=validate.non_negative(total_variation=self.total_variation),
            low=None if self.low is None else validate.real(low=self.low),
            high=None if self.high is None else validate.real(high=self.high),
            confidence=validate.confidence(confidence=self.confidence),
        )
        validate.callback(released=self.released)

    def box(self, inputs: torch.Tensor) -> tuple[float, float]:
        """The range in which inputs are searched."""
        low = float(inputs.min()) if self.low is None else self.low
        high = float(inputs.max()) if self.high is None else self.high
        if high <= low:
            raise ValueError(f"`low` must be below `high`, got {low} and {high}")
        return low, high


def v_information_original(
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    inversion: PairInversion | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> OriginalInformation:
    """Score of inverting the gradient of each pair of consecutive layers (Mo et al. 2021, eqs. 6 and 8).

    With x̂ the inversion of g and s = 1/(2π),

        log f[g](x) − log f[∅](x) = 2π² − (1 − SSIM(x̂, x))²/(2s²),   f[∅] = exp(−2π²)

    averaged over inputs: 0 at SSIM 0, 2π² at a perfect reconstruction. x̂ minimises 1 − cos(∇ℓ(x̂), g) over the pair's
    parameters, with known targets, by Adam on the signs of the derivative, within [low, high]. The null compares the
    same reconstructions with other inputs: a smooth picture of the right brightness resembles every picture, so a prior
    such as `total_variation` (off by default) raises both.

    Args:
        model: torch module, as in `sensitivity`.
        inputs: (samples, ...), as in `sensitivity`; images (n, channels, height, width) are compared by windowed SSIM,
            all others by SSIM over the whole.
        targets: (samples, ...).
        loss: loss(outputs, targets) of a batch of one, a scalar; None: cross-entropy.
        inversion: which pairs, what the attacker sees, and how it searches; None: the defaults of `PairInversion`.
        seed: 64-bit seed of where the searches start.
        executor: its workers invert one pair each, with as many torch threads as are set here; model, loss and
            `released` are pickled.
        progress: called as progress(pairs done, pairs).

    Returns:
        `OriginalInformation`.

    Guarantees:
        Deterministic by seed, on a machine, torch build and number of torch threads, for any number of workers.
        ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import torch
        >>> from leakcore import leakage
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> inputs, targets = torch.rand(3, 6), torch.tensor([0, 1, 0])
        >>> search = leakage.PairInversion(iterations=60)
        >>> inverted = leakage.v_information_original(model, inputs, targets, inversion=search)
        >>> inverted.pairs, bool((inverted.raw > inverted.null).all())
        ((('0', '2'),), True)
    """
    how = validate.settings(PairInversion, inversion=inversion)
    return invert_pairs(LayeredModel.of(model, inputs, targets, loss=loss), how, seed, executor, progress)


def invert_pairs(
    data: LayeredModel,
    how: PairInversion,
    seed: int,
    executor: Executor | None,
    progress: Callable[[int, int], object] | None,
) -> OriginalInformation:
    """`v_information_original` of a model that is already checked."""
    import torch

    chosen = _pairs(how.pairs, data.names)
    if how.total_variation and data.inputs.ndim != 4:
        raise ValueError(
            f"`total_variation` must be 0 for inputs that are not images, got {how.total_variation} and "
            f"shape {tuple(data.inputs.shape)}"
        )
    bottom, top = how.box(data.inputs)
    validate.executor(executor=executor)
    validate.callback(progress=progress)
    rng = kernels.generator(seed, kernels.Stream.ORIGINAL_STARTS)
    start = bottom + (top - bottom) * rng.random(tuple(data.inputs.shape))
    bare = dataclasses.replace(data, layers={}, misfit=None)  # a worker needs the parameters once, in the module
    threads = torch.get_num_threads()
    invert = functools.partial(_invert, bare, how, box=(bottom, top), threads=threads, start=start)
    jobs = (
        (number, functools.partial(invert, names=data.parameters(pair), number=number))
        for number, pair in enumerate(chosen)
    )
    inverted = collected(jobs, executor, progress, len(chosen))
    points, ends = zip(*(inverted[number] for number in range(len(chosen))), strict=True)
    # Every reconstruction compared with every input: the diagonal is the attack, the rest its null.
    count = len(data.inputs)
    similar = np.stack(
        [
            np.stack([_numbers(ssim(point, data.inputs.roll(-k, 0), top - bottom)) for k in range(count)])
            for point in points
        ]
    )  # (pairs, shift, inputs)
    scores = LARGEST - (1 - similar) ** 2 / (2 * SPREAD**2)
    each = scores[:, 0].T
    raw = each.mean(axis=0)
    reach = np.full(len(chosen), math.nan)
    if count > 1:
        from scipy.special import stdtrit

        reach = stdtrit(count - 1, (1 + how.confidence) / 2) * each.std(axis=0, ddof=1) / math.sqrt(count)
    return OriginalInformation(
        value=np.maximum(raw, 0.0),
        method=f"gradient inversion per pair of layers, cosine loss, {how.iterations} steps"
        + (f", total variation {how.total_variation:g}" if how.total_variation else ""),
        **attack_guarantee(
            "sees the gradient of one sample for the pair of layers, knows the model and the target",
            notes=("a better attack may reconstruct more: no bound", "a score from SSIM, not a density"),
            confidence=how.confidence,
            interval=(raw - reach, raw + reach),
        ),
        seed=seed,
        provenance="Mo et al. (2021), eqs. 6 and 8",
        raw=raw,
        null=scores[:, 1:].mean(axis=(1, 2)) if count > 1 else np.full(len(chosen), math.nan),
        each=each,
        similarity=similar[:, 0].T,
        losses=np.stack(ends, axis=1),
        pairs=chosen,
        reconstructions=np.stack([_numbers(p) for p in points]),
        falls=float((each[:, 0] > each[:, -1]).mean()) if len(chosen) > 1 else math.nan,
    )


def _invert(
    data: LayeredModel,
    how: PairInversion,
    *,
    box: tuple[float, float],
    threads: int,
    start: np.ndarray,
    names: Sequence[str],
    number: int,
) -> tuple[torch.Tensor, np.ndarray]:
    """Reconstructions of all inputs at once, each from its own gradient, and the cosine loss they end at."""
    import torch

    if torch.get_num_threads() != threads:  # a worker may have another number of threads
        torch.set_num_threads(threads)
    value, own = data.loss_of_row(names)

    def flat(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.func.grad(value)(own, x, y).values()])

    def away(x: torch.Tensor, y: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = flat(x, y)
        # A gradient of zeros has no direction; the tiny number keeps its derivative finite and its cosine 0.
        norms = (gradient.square().sum() * wanted.square().sum() + torch.finfo(x.dtype).tiny).sqrt()
        apart = 1 - gradient.dot(wanted) / norms
        rough: Any = 0.0
        if how.total_variation:
            rough = (x[:, 1:] - x[:, :-1]).abs().mean() + (x[:, :, 1:] - x[:, :, :-1]).abs().mean()
        return apart + how.total_variation * rough, apart

    with quiet_batching():
        wanted = torch.func.vmap(flat)(data.inputs, data.targets).detach()
        if how.released is not None:
            gradient = how.released(wanted, number)
            if not isinstance(gradient, torch.Tensor) or gradient.shape != wanted.shape:
                raise ValueError(f"`released` must return a tensor of shape {tuple(wanted.shape)}")
            wanted = gradient.to(wanted).detach()
        derivative = torch.func.vmap(torch.func.grad(away, has_aux=True))
        # A copy: the search moves it in place, and every pair starts from the same.
        point = torch.from_numpy(start.copy()).to(data.inputs).requires_grad_()
        optimiser = torch.optim.Adam([point], lr=how.learning_rate * (box[1] - box[0]))
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, how.iterations)
        for _ in range(how.iterations):
            slope, _ = derivative(point.detach(), data.targets, wanted)
            point.grad = slope.sign()
            optimiser.step()
            fall.step()
            with torch.no_grad():
                point.clamp_(*box)
        _, end = derivative(point.detach(), data.targets, wanted)
    return point.detach(), np.asarray(end.detach().cpu().double().numpy())


def _pairs(pairs: Sequence[Sequence[str]] | None, layers: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    if pairs is None:
        return tuple(itertools.pairwise(layers)) or (layers,)
    chosen = tuple((pair,) if isinstance(pair, str) else tuple(pair) for pair in pairs)
    if not chosen or not all(chosen):
        raise ValueError(f"`pairs` must name at least one layer each, got {pairs!r}")
    for pair in chosen:
        for name in pair:
            validate.one_of(*layers, pairs=name)
    return chosen


def _numbers(point: torch.Tensor) -> np.ndarray:
    """The numbers on the host; bfloat16 becomes float32, because NumPy lacks it."""
    import torch

    return np.asarray((point.float() if point.dtype == torch.bfloat16 else point).cpu().numpy())
