"""Pairs of laws (μ, ν) that can be sampled: what a certificate is drawn from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, ClassVar, Protocol

import numpy as np

from leakcore._base import validate
from leakcore._base.digest import digest
from leakcore._base.results import parse_adjacency
from leakcore._base.version import __version__
from leakcore._base.workers import in_order
from leakcore.mechanisms import Poisson

CHUNK = 1 << 16
"""Samples per draw. Fixed, so that no result depends on who draws what."""
SHARD = 16 * CHUNK
"""Least number of samples that are counted together: tens of milliseconds of work."""


class Pair(Protocol):
    """A pair of laws (μ, ν) that can be sampled. Picklable where an executor with processes is used."""

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """log μ(x)/ν(x), shape (num_samples,), for samples first_sample, first_sample + 1, … of `under`: x ~ ν for
        "null", x ~ μ for "alternative". Sample i must depend on (seed, under, i) only, and samples be independent."""
        ...


@dataclasses.dataclass(frozen=True)
class MixturePair:
    """Poisson-sampled Gaussian steps, drawn by the native kernel. `dominates` says whether it is proved to dominate the
    mechanism that it stands for. `device` is where it is drawn; the draws are the same everywhere, so the fingerprint
    leaves it out."""

    noise_multiplier: np.ndarray | float
    sample_rate: np.ndarray | float
    steps: int
    dominates: bool = True
    device: str | None = None
    adjacency: ClassVar[str] = "add-remove"

    def fingerprint(self) -> str:
        """Equal for equal pairs only (others agree with probability 2⁻²⁵⁶)."""
        parts = (np.asarray(part, dtype=np.float64) for part in (self.noise_multiplier, self.sample_rate, self.steps))
        return f"MixturePair {digest(*parts)}"

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        from leakcore import kernels

        return kernels.to_numpy(
            kernels.mixture_log_ratio(
                num_samples,
                noise_multiplier=self.noise_multiplier,
                sample_rate=self.sample_rate,
                steps=self.steps,
                under=under,
                seed=seed,
                first_sample=first_sample,
                like=kernels.empty_on(self.device),
            )
        )


def fingerprint(pair: Any) -> str:
    """The pair's own fingerprint() if it has one, else its type's name, by which no run is continued."""
    own = getattr(pair, "fingerprint", None)
    return str(own()) if callable(own) else f"{type(pair).__module__}.{type(pair).__qualname__}"


def computed_with(pair: Any) -> dict[str, Any]:
    """What decides the bits of the pair's samples here, besides the pair and the seed."""
    from leakcore import kernels

    device = str(getattr(pair, "device", None) or "cpu").partition(":")[0]
    return {"leakcore": __version__, "numpy": np.__version__, "device": device, **kernels.arithmetic()}


def draw(pair: Pair, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
    """`pair.sample_log_ratio`, checked: ValueError for a wrong shape or for NaN."""
    out = np.asarray(pair.sample_log_ratio(num_samples, under, seed, first_sample), dtype=np.float64)
    if out.shape != (num_samples,):
        raise ValueError(f"`pair.sample_log_ratio` must return shape ({num_samples},), got {out.shape}")
    if np.isnan(out).any():
        raise ValueError("`pair.sample_log_ratio` must return log mu/nu, which may be infinite but not NaN, got NaN")
    return out


def draw_all(pair: Pair, num_samples: int, under: str, seed: int, executor: Executor | None) -> np.ndarray:
    """Samples 0 to num_samples − 1, drawn in shards, by `executor` if given: the same for any number of workers."""
    shards = [(pair, under, seed, a, b) for a, b in ranges(0, num_samples, SHARD)]
    return np.concatenate(list(in_order(_drawn, shards, executor)))


def _drawn(shard: tuple[Pair, str, int, int, int]) -> np.ndarray:
    pair, under, seed, start, stop = shard
    return np.concatenate([draw(pair, b - a, under, seed, a) for a, b in ranges(start, stop, CHUNK)])


def ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    for a in range(start, stop, size):
        yield a, min(a + size, stop)


def mixture_pair(mechanism: Poisson, device: str | None = None) -> MixturePair:
    """The dominating pair of DP-SGD with Poisson sampling, drawn on `device`."""
    return MixturePair(*mechanism.finite_steps(), mechanism.steps, device=device)


def measured_pair(noise_multiplier: Any, sample_rate: Any, clipped_norms: Any) -> MixturePair:
    """The pair for `reconstruction_of` when the target's clipped gradients are known to be shorter than C.

    With measured norms n_t = ‖clip_C(∇ℓ(θ_t, z))‖/C a step is (1−q) N(0, σ²) + q N(n_t, σ²), a step of noise multiplier
    σ/n_t (Hayes et al. 2023, Appendix K: shorter gradients leak less).

    Args:
        noise_multiplier: σ_t > 0, a number or an array of length T.
        sample_rate: q_t in [0, 1], a number or an array of length T.
        clipped_norms: norms of the target's clipped gradients, (T,), each in [0, 1], in units of C.

    Returns:
        A pair whose `dominates` is False, so that `reconstruction_of` calls its result an estimate.

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

    Guarantees:
        None: the norms depend on the run, so the result is conditional on the recorded run and proves nothing.

    Example:
        >>> from leakcore import bounds
        >>> pair = bounds.measured_pair(1.0, 0.5, [0.2] * 10)  # a row whose gradients are a fifth of C
        >>> shorter = bounds.reconstruction_of(pair, kappa=0.1, num_samples=20_000)
        >>> shorter.kind, shorter.value < bounds.reconstruction(1.0, 0.5, 10, kappa=0.1).value
        ('estimate', True)
    """
    lengths = validate.real_array("in [0, 1]", lambda v: (v >= 0.0) & (v <= 1.0), clipped_norms=clipped_norms)
    if lengths.ndim != 1:
        raise ValueError(f"`clipped_norms` must be one-dimensional, one per step, got shape {lengths.shape}")
    mechanism = Poisson(noise_multiplier, sample_rate, len(lengths))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sigma = np.where(lengths > 0.0, mechanism.noise_multiplier / lengths, np.inf)
    return dataclasses.replace(mixture_pair(dataclasses.replace(mechanism, noise_multiplier=sigma)), dominates=False)


@dataclasses.dataclass(frozen=True, eq=False)
class StatedPair:
    """A pair with a statement of what it stands for, where the pair itself does not say so, for `reconstruction_of`.

    Attributes:
        pair: an object with `sample_log_ratio`, as `reconstruction_of` takes it.
        adjacency: the neighbouring relation that the pair stands for, "add-remove" or "replace". None: the pair's
            attribute `adjacency`, if it has one.
        dominates: whether the pair is proved to dominate a mechanism. True: the bound is of kind "upper". False: of
            kind "estimate", although the limits of the pair's own B_κ hold; for example for shuffled batches, whose
            dominating pair nobody has proved, and for measured norms, because steps are adaptive. None: the pair's
            attribute `dominates`, True where it has none.

    Raises:
        TypeError: for a pair without the method, or a `dominates` that is not a truth value.
        ValueError: where `adjacency` differs from the pair's own.

    Example:
        >>> from leakcore import bounds, mechanisms
        >>> pair = mechanisms.FixedSize(1.0, 10, 1000, 10)
        >>> bounds.StatedPair(pair, dominates=False).adjacency
        'replace'
    """

    pair: Any
    adjacency: str | None = None
    dominates: bool | None = None

    def __post_init__(self) -> None:
        if not callable(getattr(self.pair, "sample_log_ratio", None)):
            raise TypeError(
                f"`pair` must have a method sample_log_ratio(num_samples, under, seed, first_sample), got {self.pair!r}"
            )
        own = getattr(self.pair, "adjacency", None)
        relation = own if self.adjacency is None else parse_adjacency(self.adjacency)
        if own is not None and relation != own:
            raise ValueError(f"`adjacency` must be None or {own!r}, which this pair stands for, got {self.adjacency!r}")
        proved = validate.optional_boolean(dominates=self.dominates)
        object.__setattr__(self, "adjacency", relation)
        object.__setattr__(self, "dominates", bool(getattr(self.pair, "dominates", True)) if proved is None else proved)
