"""The defences themselves: small frozen objects, each of which says which stage of a release it acts on."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check

STAGES = ("training", "samples", "sum", "release")
"""The order in which a release passes them."""


class Defense:
    """One transform; `stage` says what it acts on. `apply` neither changes its argument nor keeps any state."""

    stage: ClassVar[str]

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """The transformed gradients, same library, device and dtype.

        gradients: (..., D) finite floats, NumPy or torch: each row one release ("release" stage) or one sample's
        gradient ("samples", "sum": (B, D), "sum" gives (D,)). seed: required where anything is drawn; step: of a
        training run, in [0, 2²⁴): same seed and step, same noise. Raises ValueError or TypeError that names the
        argument, and for what acts on training, which a gradient at hand cannot be subjected to: `release` does.
        """
        raise NotImplementedError

    @property
    def parts(self) -> tuple[Defense, ...]:
        """The defences it is composed of, in order."""
        return (self,)


def _rows(name: str, gradients: Any, least: int = 1) -> Any:
    gradients = check.floating(f"{name}: gradients", gradients)
    shape = tuple(gradients.shape)
    if len(shape) < least or 0 in shape:
        raise ValueError(f"{name}: gradients.shape={shape}: must be (..., D), nothing empty")
    if isinstance(gradients, np.ndarray):
        finite = bool(np.isfinite(gradients).all())
    else:  # not asked of a device, which would have to be waited for
        finite = gradients.device.type != "cpu" or bool(gradients.isfinite().all())
    if not finite:
        raise ValueError(f"{name}: gradients: must be finite")
    return gradients


def _like(values: np.ndarray, gradients: Any) -> Any:
    """A float64 array in the library, device and dtype of `gradients`."""
    if isinstance(gradients, np.ndarray):
        return values.astype(gradients.dtype)
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(gradients)


def need_seed(name: str, seed: int | None) -> int:
    if seed is None:
        raise ValueError(f"{name}: seed: required, two calls must not share their noise unawares")
    return check.seed(seed=seed)


def _norms(gradients: Any) -> Any:
    """(..., 1), float64, in the array's own library; no finite row looks infinite or, but for zeros, of length 0."""
    if isinstance(gradients, np.ndarray):
        largest = np.abs(gradients).max(axis=-1, keepdims=True).astype(np.float64)
        scale = np.where(largest > 0, largest, 1.0)
        return scale * np.linalg.norm(gradients / scale, axis=-1, keepdims=True)
    import torch

    most = gradients.abs().amax(dim=-1, keepdim=True).double()
    scaled = torch.where(most > 0, most, torch.ones_like(most))
    return scaled * (gradients / scaled).norm(dim=-1, keepdim=True)


def _clipped(gradients: Any, limit: float) -> Any:
    norms = _norms(gradients)
    if isinstance(gradients, np.ndarray):
        factor = np.minimum(1.0, limit / np.maximum(norms, np.finfo(np.float64).tiny))
        return (gradients * factor).astype(gradients.dtype)
    import torch

    factor = (limit / norms.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
    return (gradients * factor).to(gradients.dtype)


@dataclasses.dataclass(frozen=True)
class GaussianNoise(Defense):
    """Adds N(0, std²) to every coordinate of the release; std ≥ 0, in units of the release itself."""

    std: float
    stage: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        check.non_negative(std=self.std)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`."""
        g = _rows("GaussianNoise", gradients)
        return g + _like(self.drawn(math.prod(g.shape[:-1]), g.shape[-1], seed=seed, step=step).reshape(g.shape), g)

    def drawn(self, rows: int, columns: int, *, seed: int | None, step: int = 0, first_row: int = 0) -> np.ndarray:
        """(rows, columns) of the noise; each row's depends on seed, step and its number alone."""
        key = need_seed("GaussianNoise", seed)
        z = kernels.standard_normal(
            (rows, columns), seed=key, purpose=kernels.Stream.DEFENSE_GAUSSIAN, step=step, first_row=first_row
        )  # fmt: skip
        return np.asarray(self.std * z)


@dataclasses.dataclass(frozen=True)
class Laplace(Defense):
    """Adds Lap(scale), of variance 2·scale², to every coordinate; `bounds.laplace.noise_scale` says how much ε needs.

    Not the floating-point-safe mechanism: that is `bounds.laplace.mechanism`.
    """

    scale: float
    stage: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        check.non_negative(scale=self.scale)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`."""
        g = _rows("Laplace", gradients)
        return g + _like(self.drawn(math.prod(g.shape[:-1]), g.shape[-1], seed=seed, step=step).reshape(g.shape), g)

    def drawn(self, rows: int, columns: int, *, seed: int | None, step: int = 0, first_row: int = 0) -> np.ndarray:
        """(rows, columns) of the noise; each row's depends on seed, step and its number alone."""
        key = need_seed("Laplace", seed)
        u = kernels.uniform(
            (rows, columns), seed=key, purpose=kernels.Stream.DEFENSE_LAPLACE, step=step, first_row=first_row
        )  # fmt: skip
        return np.asarray(self.scale * np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u))))


@dataclasses.dataclass(frozen=True)
class Clip(Defense):
    """Scales the release to norm max_grad_norm where it is longer: the text's gradient clipping, of the aggregate."""

    max_grad_norm: float
    stage: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        check.positive(max_grad_norm=self.max_grad_norm)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`; draws nothing."""
        return _clipped(_rows("Clip", gradients), self.max_grad_norm)


@dataclasses.dataclass(frozen=True)
class Prune(Defense):
    """Keeps the ⌈keep_fraction·D⌉ entries of largest magnitude of every row and sets the rest to 0; in (0, 1]."""

    keep_fraction: float
    stage: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        if not 0 < check.real(keep_fraction=self.keep_fraction) <= 1:
            raise ValueError(f"keep_fraction={self.keep_fraction!r}: must be in (0, 1]")

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`; draws nothing. Ties: the earlier entry is kept."""
        g = _rows("Prune", gradients)
        count = math.ceil(Fraction(repr(float(self.keep_fraction))) * g.shape[-1])  # .55 of 100 are 55, in floats 56
        if isinstance(g, np.ndarray):
            order = np.argsort(-np.abs(g), axis=-1, kind="stable")[..., :count]
            out = np.zeros_like(g)
            np.put_along_axis(out, order, np.take_along_axis(g, order, -1), -1)
            return out
        import torch

        kept = torch.argsort(g.abs(), dim=-1, descending=True, stable=True)[..., :count]
        return torch.zeros_like(g).scatter(-1, kept, g.gather(-1, kept))


@dataclasses.dataclass(frozen=True)
class ClipSamples(Defense):
    """Scales each sample's gradient to norm max_grad_norm where it is longer; the mean follows."""

    max_grad_norm: float
    stage: ClassVar[str] = "samples"

    def __post_init__(self) -> None:
        check.positive(max_grad_norm=self.max_grad_norm)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`; draws nothing."""
        return _clipped(_rows("ClipSamples", gradients), self.max_grad_norm)


@dataclasses.dataclass(frozen=True)
class DPSGD(Defense):
    """(1/n)(Σ_i g_i·min(1, C/‖g_i‖) + N(0, (σC)²)): the DP-SGD release (Abadi et al. 2016, Algorithm 1).

    max_grad_norm: C; noise_multiplier: σ; expected_batch_size: n, the batch's size where None. By the kernel
    `clip_and_noise`. (The text's Table 1 clips the aggregate instead: `Compose(Clip(s), GaussianNoise(σ))`.)
    """

    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float | None = None
    stage: ClassVar[str] = "sum"

    def __post_init__(self) -> None:
        check.positive(max_grad_norm=self.max_grad_norm)
        check.non_negative(noise_multiplier=self.noise_multiplier)
        if self.expected_batch_size is not None:
            check.positive(expected_batch_size=self.expected_batch_size)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`: (B, D) → (D,)."""
        g = _rows("DPSGD", gradients, least=2)
        if len(g.shape) != 2:
            raise ValueError(f"DPSGD: gradients.shape={tuple(g.shape)}: must be (B, D), one row per sample")
        key = need_seed("DPSGD", seed) if self.noise_multiplier > 0 else None
        done = kernels.clip_and_noise(g, self.max_grad_norm, self.noise_multiplier, seed=key, step=step)
        mean = done.sum / (len(g) if self.expected_batch_size is None else self.expected_batch_size)
        return mean.to(g.dtype) if hasattr(g, "to") else mean.astype(g.dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class LocalSteps(Defense):
    """k-local aggregation: k steps of SGD from the model, and (θ_0 − θ_k)/(k·learning_rate) is released.

    The mean gradient along the path; at k = 1 the gradient itself. minibatches: each step takes its own k-th of the
    rows, in their order (their number must be a multiple of k), so that k·B rows share one release; else every step
    takes all rows. Defences on samples and the sum act in every step,
    those on the release once, on the mean.
    """

    steps: int
    learning_rate: float
    minibatches: bool = False
    stage: ClassVar[str] = "training"

    def __post_init__(self) -> None:
        check.integer(1, None, steps=self.steps)
        check.positive(learning_rate=self.learning_rate)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """Refused: it needs the model."""
        raise ValueError("LocalSteps: acts on training, not on a gradient at hand: use defenses.release(model, ...)")


@dataclasses.dataclass(frozen=True)
class Dropout(Defense):
    """Each hidden unit is kept with keep_probability, in (0, 1], and then divided by it; else it is 0.

    Hidden units are the inputs of all linear layers but the first layer with parameters. `nn.Dropout(p)` names the
    probability to *drop*: keep_probability = 1 − p. per_sample: each sample draws its own (as `nn.Dropout`), or all
    share one sub-network per step, of which the attacker sees pm neurons and nothing of the others.
    """

    keep_probability: float
    per_sample: bool = True
    stage: ClassVar[str] = "training"

    def __post_init__(self) -> None:
        if not 0 < check.real(keep_probability=self.keep_probability) <= 1:
            raise ValueError(f"keep_probability={self.keep_probability!r}: must be in (0, 1]")

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """Refused: it needs the model."""
        raise ValueError("Dropout: acts on training, not on a gradient at hand: use defenses.release(model, ...)")


class Compose(Defense):
    """Several defences, one after the other; stages must not go back (training, samples, sum, release)."""

    def __init__(self, *defenses: Defense) -> None:
        parts = tuple(part for d in defenses for part in (d.parts if isinstance(d, Defense) else (d,)))
        for part in parts:
            if not isinstance(part, Defense):
                raise TypeError(f"defenses: {type(part).__name__} is no leakcore.defenses.Defense")
        order = [STAGES.index(part.stage) for part in parts]
        for i in range(1, len(order)):
            if order[i] < order[i - 1]:
                late, early = parts[i - 1], parts[i]
                raise ValueError(
                    f"defenses: {type(early).__name__} acts on {early.stage}, before {type(late).__name__}, which acts "
                    f"on {late.stage}: put it in front"
                )
        if sum(part.stage == "sum" for part in parts) > 1:
            raise ValueError("defenses: only one may make the sum")
        for kind in (LocalSteps, Dropout):
            if sum(isinstance(part, kind) for part in parts) > 1:
                raise ValueError(f"defenses: {kind.__name__} more than once")
        self._parts = parts

    @property
    def parts(self) -> tuple[Defense, ...]:
        """The defences, in order."""
        return self._parts

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self._parts))})"

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`: with a part on samples or the sum (B, D) → (D,), else (..., D) → (..., D)."""
        out = _rows("Compose", gradients)
        stages = {part.stage for part in self._parts}
        reduces = bool(stages & {"samples", "sum"})
        if reduces and len(out.shape) != 2:
            raise ValueError(f"Compose: gradients.shape={tuple(out.shape)}: must be (B, D), one row per sample")
        return through(self._parts, out, seed, step, reduces)


def part_seed(seed: int | None, number: int) -> int | None:
    """Two noises of one composition never share their draws; the first takes the seed itself, as it does alone."""
    if seed is None or number == 0:
        return seed
    return kernels.subseed(seed, kernels.Stream.DEFENSE_PARTS, row=number)


def through(parts: tuple[Defense, ...], gradients: Any, seed: int | None, step: int, reduces: bool) -> Any:
    out, summed = gradients, not reduces
    for number, part in enumerate(parts):
        if not summed and part.stage == "release":
            out, summed = out.mean(0), True
        out = part.apply(out, seed=part_seed(seed, number), step=step)
        summed = summed or part.stage == "sum"
    return out if summed else out.mean(0)
