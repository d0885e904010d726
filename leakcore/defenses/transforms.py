"""The defences themselves: small frozen objects that clip, prune, add noise, sum or train otherwise, and compose."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from leakcore import kernels
from leakcore._base import validate

STAGES = ("training", "samples", "sum", "release")
"""The order in which a release passes them."""


class Defense:
    """One transform of what is released; `stage` says what it acts on.

    `apply` neither changes its argument nor keeps any state. Subclass it for a defence of your own.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> class Signs(defenses.Defense):
        ...     stage = "release"
        ...     def apply(self, gradients, *, seed=None, step=0):
        ...         return np.sign(gradients)
        >>> defenses.Compose(defenses.Clip(1.0), Signs()).apply(np.array([3.0, -4.0])).tolist()
        [1.0, -1.0]
    """

    stage: ClassVar[str]

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """The transformed gradients, in the same library, device and dtype.

        Args:
            gradients: (..., D) finite floats, NumPy or torch. Each row is one release ("release" stage) or one sample's
                gradient ("samples", "sum": (B, D); "sum" returns (D,)).
            seed: required where anything is random.
            step: the training's step, in [0, 2²⁴): the same seed and step give the same noise.

        Raises:
            ValueError: for a value or shape that is not allowed, and for defences on training, which need the model
                (`release` applies them).
            TypeError: for an argument of another type.
        """
        raise NotImplementedError

    @property
    def parts(self) -> tuple[Defense, ...]:
        """The defences that it is composed of, in order."""
        return (self,)


def read_rows(name: str, gradients: Any, least: int = 1) -> Any:
    gradients = validate.floating("gradients", gradients)
    shape = tuple(gradients.shape)
    if len(shape) < least or 0 in shape:
        raise ValueError(f"{name}: `gradients` must have shape (..., D), none of them 0, got {shape}")
    if isinstance(gradients, np.ndarray):
        finite = bool(np.isfinite(gradients).all())
    else:  # on a device, the check would have to wait for it
        finite = gradients.device.type != "cpu" or bool(gradients.isfinite().all())
    if not finite:
        raise ValueError(f"{name}: `gradients` must be finite")
    return gradients


def like(values: np.ndarray, gradients: Any) -> Any:
    """A float64 array in the library, device and dtype of `gradients`."""
    if isinstance(gradients, np.ndarray):
        return values.astype(gradients.dtype)
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(gradients)


def need_seed(name: str, seed: int | None) -> int:
    if seed is None:
        raise ValueError(f"{name}: `seed` is required: two calls must not share their noise by accident")
    return validate.seed(seed=seed)


class _Noise(Defense):
    """Noise added to every coordinate of the release."""

    stage: ClassVar[str] = "release"

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`."""
        g = read_rows(type(self).__name__, gradients)
        return g + like(self.drawn(math.prod(g.shape[:-1]), g.shape[-1], seed=seed, step=step).reshape(g.shape), g)

    def drawn(self, rows: int, columns: int, *, seed: int | None, step: int = 0, first_row: int = 0) -> np.ndarray:
        """The noise, (rows, columns); each row depends only on seed, step and its own number."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class GaussianNoise(_Noise):
    """Adds N(0, std²) to every coordinate of the release.

    Args:
        std: standard deviation of the noise, at least 0, in units of the release itself.

    Raises:
        ValueError: for a std that is not allowed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> noisy = defenses.GaussianNoise(2.0).apply(np.zeros(10_000), seed=0)
        >>> f"{noisy.std():.1f}"
        '2.0'
    """

    std: float

    def __post_init__(self) -> None:
        validate.non_negative(std=self.std)

    def drawn(self, rows: int, columns: int, *, seed: int | None, step: int = 0, first_row: int = 0) -> np.ndarray:
        """See `_Noise`."""
        key = need_seed(type(self).__name__, seed)
        z = kernels.standard_normal(
            (rows, columns), seed=key, purpose=kernels.Stream.DEFENSE_GAUSSIAN, step=step, first_row=first_row
        )
        return np.asarray(self.std * z)


@dataclasses.dataclass(frozen=True)
class Laplace(_Noise):
    """Adds Lap(scale), of variance 2·scale², to every coordinate of the release.

    `bounds.laplace.noise_scale` says which scale an ε needs. This is not the mechanism that is safe in floating point;
    that is `bounds.laplace.mechanism`.

    Args:
        scale: scale of the noise, at least 0, in units of the release itself.

    Raises:
        ValueError: for a scale that is not allowed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> noisy = defenses.Laplace(2.0).apply(np.zeros(10_000), seed=0)
        >>> f"{abs(noisy).mean():.1f}"
        '2.0'
    """

    scale: float

    def __post_init__(self) -> None:
        validate.non_negative(scale=self.scale)

    def drawn(self, rows: int, columns: int, *, seed: int | None, step: int = 0, first_row: int = 0) -> np.ndarray:
        """See `_Noise`."""
        key = need_seed(type(self).__name__, seed)
        u = kernels.uniform(
            (rows, columns), seed=key, purpose=kernels.Stream.DEFENSE_LAPLACE, step=step, first_row=first_row
        )
        return np.asarray(self.scale * np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u))))


def _norms(gradients: Any) -> Any:
    """(..., 1), float64, in the array's own library, without overflow; only rows of zeros have length 0."""
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
class Clip(Defense):
    """Scales the release to norm max_grad_norm where it is longer: the clipping of the aggregate in Lecture 13.

    Args:
        max_grad_norm: largest norm that is not scaled, > 0.

    Raises:
        ValueError: for a norm that is not allowed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> defenses.Clip(max_grad_norm=1.0).apply(np.array([3.0, 4.0])).round(6).tolist()
        [0.6, 0.8]
    """

    max_grad_norm: float
    stage: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        validate.positive(max_grad_norm=self.max_grad_norm)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`, without randomness."""
        return _clipped(read_rows("Clip", gradients), self.max_grad_norm)


@dataclasses.dataclass(frozen=True)
class Prune(Defense):
    """Keeps the ⌈keep_fraction·D⌉ entries of largest magnitude of every row and sets the rest to 0.

    Args:
        keep_fraction: share of the entries that stay, in (0, 1].

    Raises:
        ValueError: for a fraction that is not allowed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> defenses.Prune(keep_fraction=0.5).apply(np.array([1.0, -3.0, 2.0, 0.5])).tolist()
        [0.0, -3.0, 2.0, 0.0]
    """

    keep_fraction: float
    stage: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        if not 0 < validate.real(keep_fraction=self.keep_fraction) <= 1:
            raise ValueError(f"`keep_fraction` must be in (0, 1], got {self.keep_fraction!r}")

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`, without randomness. Of equal entries the earlier one stays."""
        g = read_rows("Prune", gradients)
        # 0.55 of 100 is 55, but 56 in floating point.
        count = math.ceil(Fraction(repr(float(self.keep_fraction))) * g.shape[-1])
        if isinstance(g, np.ndarray):
            rows = g.reshape(-1, g.shape[-1])  # NumPy takes along an axis of 32 at most
            order = np.argsort(-np.abs(rows), axis=-1, kind="stable")[:, :count]
            out = np.zeros_like(rows)
            np.put_along_axis(out, order, np.take_along_axis(rows, order, -1), -1)
            return out.reshape(g.shape)
        import torch

        largest = torch.argsort(g.abs(), dim=-1, descending=True, stable=True)[..., :count]
        return torch.zeros_like(g).scatter(-1, largest, g.gather(-1, largest))


@dataclasses.dataclass(frozen=True)
class ClipSamples(Defense):
    """Scales each sample's gradient to norm max_grad_norm where it is longer; their mean is then released.

    Args:
        max_grad_norm: largest norm that is not scaled, > 0.

    Raises:
        ValueError: for a norm that is not allowed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> defenses.ClipSamples(1.0).apply(np.array([[3.0, 4.0], [0.3, 0.4]])).round(6).tolist()
        [[0.6, 0.8], [0.3, 0.4]]
    """

    max_grad_norm: float
    stage: ClassVar[str] = "samples"

    def __post_init__(self) -> None:
        validate.positive(max_grad_norm=self.max_grad_norm)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`, without randomness."""
        return _clipped(read_rows("ClipSamples", gradients), self.max_grad_norm)


@dataclasses.dataclass(frozen=True)
class DPSGD(Defense):
    """The DP-SGD release, (1/n)(Σ_i g_i·min(1, C/‖g_i‖) + N(0, (σC)²)) (Abadi et al. 2016, Algorithm 1).

    Computed by the kernel `clip_and_noise`. Lecture 13, Table 1 clips the aggregate instead: `Compose(Clip(s),
    GaussianNoise(σ))`.

    Args:
        max_grad_norm: C > 0.
        noise_multiplier: σ, at least 0.
        expected_batch_size: n > 0; None: the batch's size.

    Raises:
        ValueError: for a value that is not allowed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> private = defenses.DPSGD(max_grad_norm=1.0, noise_multiplier=0.0)
        >>> private.apply(np.array([[3.0, 4.0], [0.0, 0.5]])).round(6).tolist()  # the clipped mean, no noise
        [0.3, 0.65]
    """

    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float | None = None
    stage: ClassVar[str] = "sum"

    def __post_init__(self) -> None:
        validate.positive(max_grad_norm=self.max_grad_norm)
        validate.non_negative(noise_multiplier=self.noise_multiplier)
        if self.expected_batch_size is not None:
            validate.positive(expected_batch_size=self.expected_batch_size)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`: (B, D) → (D,)."""
        g = read_rows("DPSGD", gradients, least=2)
        if len(g.shape) != 2:
            raise ValueError(f"DPSGD: `gradients` must have shape (B, D), one row per sample, got {tuple(g.shape)}")
        key = need_seed("DPSGD", seed) if self.noise_multiplier > 0 else None
        if isinstance(g, np.ndarray):
            g = np.require(g, requirements="A")  # elements that begin anywhere in memory: the kernel would refuse them
        done = kernels.clip_and_noise(g, self.max_grad_norm, self.noise_multiplier, seed=key, step=step)
        mean = done.sum / (len(g) if self.expected_batch_size is None else self.expected_batch_size)
        return mean.to(g.dtype) if hasattr(g, "to") else mean.astype(g.dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class LocalSteps(Defense):
    """k-local aggregation: k steps of SGD from the model, then (θ_0 − θ_k)/(k·learning_rate) is released.

    That is the mean gradient along the path; for k = 1 the gradient itself. Defences on samples and the sum act in
    every step, and defences on the release act once, on the mean.

    Args:
        steps: k, at least 1.
        learning_rate: > 0.
        minibatches: each step takes its own k-th of the rows, in their order (their number must be a multiple of k), so
            that k·B rows share one release. False: every step takes all rows.

    Raises:
        ValueError: for a value that is not allowed.

    Example:
        >>> import torch
        >>> from leakcore import defenses
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(3, 2)
        >>> local = defenses.LocalSteps(4, learning_rate=0.1)
        >>> defenses.release(model, torch.eye(3), [0, 1, 0], defense=local).gradient.shape
        torch.Size([8])
    """

    steps: int
    learning_rate: float
    minibatches: bool = False
    stage: ClassVar[str] = "training"

    def __post_init__(self) -> None:
        validate.integer(1, None, steps=self.steps)
        validate.positive(learning_rate=self.learning_rate)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """Refused, because it needs the model."""
        raise ValueError("LocalSteps: acts on training, not on a finished gradient: use defenses.release(model, ...)")


@dataclasses.dataclass(frozen=True)
class Dropout(Defense):
    """Keeps each hidden unit with keep_probability and divides it by that; the others are 0.

    Hidden units are the inputs of all linear layers except the first layer with parameters. `nn.Dropout(p)` names the
    probability to *drop*: keep_probability = 1 − p.

    Args:
        keep_probability: probability that a hidden unit stays, in (0, 1].
        per_sample: each sample draws its own mask (as `nn.Dropout`). False: all share one sub-network per step, of
            which the attacker sees pm neurons and nothing of the others.

    Raises:
        ValueError: for a probability that is not allowed.

    Example:
        >>> import torch
        >>> from leakcore import defenses
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> shared = defenses.Dropout(0.5, per_sample=False)
        >>> gradient = defenses.release(model, torch.eye(3), [0, 1, 0], defense=shared, seed=0).parts["2.weight"]
        >>> bool((gradient == 0).all(0).any())  # a dropped unit has no gradient
        True
    """

    keep_probability: float
    per_sample: bool = True
    stage: ClassVar[str] = "training"

    def __post_init__(self) -> None:
        if not 0 < validate.real(keep_probability=self.keep_probability) <= 1:
            raise ValueError(f"`keep_probability` must be in (0, 1], got {self.keep_probability!r}")

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """Refused, because it needs the model."""
        raise ValueError("Dropout: acts on training, not on a finished gradient: use defenses.release(model, ...)")


class Compose(Defense):
    """Several defences, one after the other.

    Args:
        defenses: the parts, in the order of their stages: training, samples, sum, release.

    Raises:
        ValueError: for stages out of order, and for two defences that exclude each other.
        TypeError: for anything but defences.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> both = defenses.Compose(defenses.Clip(1.0), defenses.Prune(0.5))
        >>> both.apply(np.array([3.0, 4.0])).round(6).tolist()
        [0.0, 0.8]
    """

    def __init__(self, *defenses: Defense) -> None:
        parts = tuple(part for d in defenses for part in (d.parts if isinstance(d, Defense) else (d,)))
        for part in parts:
            if not isinstance(part, Defense):
                raise TypeError(f"`defenses` must be of leakcore.defenses.Defense, got {type(part).__name__}")
        order = [STAGES.index(part.stage) for part in parts]
        for i in range(1, len(order)):
            if order[i] < order[i - 1]:
                late, early = parts[i - 1], parts[i]
                raise ValueError(
                    f"defenses: {type(early).__name__} acts on {early.stage}, before {type(late).__name__}, which "
                    f"acts on {late.stage}: put it first"
                )
        if sum(part.stage == "sum" for part in parts) > 1:
            raise ValueError("defenses: only one may compute the sum")
        for kind in (LocalSteps, Dropout):
            if sum(isinstance(part, kind) for part in parts) > 1:
                raise ValueError(f"defenses: {kind.__name__} is allowed only once")
        self._parts = parts

    @property
    def parts(self) -> tuple[Defense, ...]:
        """The defences, in order."""
        return self._parts

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self._parts))})"

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`: with a part on samples or the sum (B, D) → (D,), else (..., D) → (..., D)."""
        out = read_rows("Compose", gradients)
        stages = {part.stage for part in self._parts}
        reduces = bool(stages & {"samples", "sum"})
        if reduces and len(out.shape) != 2:
            raise ValueError(f"Compose: `gradients` must have shape (B, D), one row per sample, got {tuple(out.shape)}")
        return through(self._parts, out, seed, step, reduces)


def part_seed(seed: int | None, number: int) -> int | None:
    """Two noises of one composition never share their draws; the first uses the seed itself, as it does alone."""
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
