"""Monte Carlo of the Gaussian mixture that dominates Poisson-sampled DP-SGD: constant memory, mergeable shards."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np

from leakcore import _C, _validate
from leakcore.kernels import _arrays, _threads
from leakcore.kernels._random import float_dtype

_UNIT = 2**1074  # exact sums are integers in units of the smallest float64
_MAX_STEPS = 2**34  # four steps per 32-bit draw block
_SAMPLE_STEPS_PER_CALL = 50_000_000  # about a quarter of a second: how long Ctrl-C may have to wait


@dataclasses.dataclass(frozen=True, eq=False)
class MixtureTail:
    """Counts and sums over the samples of one or several shards; `+` merges shards to the bits of the undivided run.

    counts: int64, samples with L ≥ t, shaped like `thresholds`. num_samples: how many samples there were.
    sums: float64, `(2, …)`: Σ (1 − e^{t−L})₊ and Σ e^{−L}·1{L ≥ t}, each the exact sum of the float64 summands, rounded
        once.
    exact_sums: the same as Python integers in units of 2⁻¹⁰⁷⁴, flattened: (excess, inverse).
    samples: the index ranges [a, b) covered, ascending.
    experiment: a digest of what was sampled (σ, q, steps, under, seed).
    """

    counts: Any
    sums: Any
    num_samples: int
    thresholds: np.ndarray
    samples: tuple[tuple[int, int], ...]
    exact_sums: tuple[tuple[int, ...], tuple[int, ...]]
    experiment: str

    def __add__(self, other: MixtureTail) -> MixtureTail:
        """The merged result; ValueError unless both are disjoint shards of one experiment with the same thresholds."""
        if not isinstance(other, MixtureTail):
            return NotImplemented
        if self.experiment != other.experiment:
            raise ValueError("cannot merge: the shards differ in noise_multiplier, sample_rate, steps, under or seed")
        if not np.array_equal(self.thresholds, other.thresholds):
            raise ValueError("cannot merge: the shards have different thresholds")
        exact = tuple(
            tuple(a + b for a, b in zip(mine, theirs, strict=True))
            for mine, theirs in zip(self.exact_sums, other.exact_sums, strict=True)
        )
        return MixtureTail(
            counts=_arrays.wrap(_arrays.to_numpy(self.counts) + _arrays.to_numpy(other.counts), self.counts),
            sums=_arrays.wrap(_rounded(exact, self.thresholds.shape), self.sums),
            num_samples=self.num_samples + other.num_samples,
            thresholds=self.thresholds,
            samples=_union(self.samples + other.samples),
            exact_sums=(exact[0], exact[1]),
            experiment=self.experiment,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Mixture:
    """The validated arguments that `mixture_log_ratio` and `mixture_tail` share."""

    sigma: np.ndarray
    rate: np.ndarray
    alternative: bool
    seed: int
    first: int
    count: int

    def shards(self) -> list[tuple[int, int]]:
        """(offset, length): native calls short enough for Ctrl-C to get through between them."""
        size = max(_SAMPLE_STEPS_PER_CALL // max(self.sigma.size, 1) // 256, 64) * 256
        return [(a, min(size, self.count - a)) for a in range(0, self.count, size)]

    def native(self, offset: int, length: int) -> tuple[int, int, int, bool, int, int, int]:
        address = _arrays.address
        first = self.first + offset
        return self.seed, first, length, self.alternative, self.sigma.size, address(self.sigma), address(self.rate)

    def digest(self) -> str:
        head = f"{self.seed} {self.alternative} {self.sigma.size} ".encode()
        return hashlib.sha256(head + self.sigma.tobytes() + self.rate.tobytes()).hexdigest()[:32]


def mixture_log_ratio(
    num_samples: int,
    *,
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    under: str = "null",
    seed: int = 0,
    first_sample: int = 0,
    dtype: Any = "float64",
    like: Any = None,
) -> Any:
    """L = log μ(x)/ν(x) for samples of the dominating pair (Hayes, Mahloujifar and Balle 2023, Corollary 4).

    ν = N(0, σ² I_T), μ = Π_t [(1−q) N(0, σ²) + q N(1, σ²)], so L = Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))).

    num_samples ≥ 0. noise_multiplier: σ_t in [0, ∞), sample_rate: q_t in [0, 1]; scalars, or arrays of length `steps`
        (schedules). σ = 0 is the limit: log(1−q) per step whose point is x = 0, +∞ once x = 1 was drawn.
    under: "null" draws x ~ ν, "alternative" x ~ μ. The two draw from independent streams, even under one seed.
    seed, first_sample: sample i depends only on (seed, under, first_sample + i), here and in `mixture_tail`, so ranges
        can be computed anywhere and put together.
    dtype: "float64" or "float32" (computed in float64, rounded once). like: an array whose library the result follows.

    Returns `(num_samples,)`. Stable for every σ and q; the normals' law is a fine grid (see `standard_normal`).
    The bits do not depend on threads.

    Raises ValueError or TypeError, naming the argument, for values out of range or schedules of another length.
    """
    kernel = "mixture_log_ratio"
    mixture = _mixture(num_samples, noise_multiplier, sample_rate, steps, under, seed, first_sample)
    target = float_dtype(kernel, dtype)
    _arrays.read_like(kernel, like)
    out = np.empty(mixture.count, dtype=target)
    for offset, length in mixture.shards():
        part = out[offset : offset + length] if target == np.float64 else np.empty(length)
        _C.mixture_log_ratio(mixture.native(offset, length), _arrays.address(part), _arrays.CPU, _threads.plan())
        if target != np.float64:
            with np.errstate(over="ignore"):
                out[offset : offset + length] = part
    return _arrays.wrap(out, like)


def mixture_tail(
    num_samples: int,
    thresholds: Any,
    *,
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    under: str = "null",
    seed: int = 0,
    first_sample: int = 0,
    like: Any = None,
) -> MixtureTail:
    """Tail counts and sums of L over samples that are never stored: constant memory for any `num_samples`.

    `.counts`: samples with L ≥ t. `.sums[0]`: Σ (1 − e^{t−L})₊, whose mean under μ plus e^t·κ bounds B_κ from above.
    `.sums[1]`: Σ e^{−L}·1{L ≥ t}, whose mean under μ is ν(L ≥ t). Sums are exact: integers wide enough for every
    float64, so shards merge to the same bits in any order (`shard + shard`), with no rounding but that of the float64
    summands and one at the end. A summand e^{−L} beyond float64 counts as the largest float64.

    thresholds: t, a scalar or an array of any shape, ±∞ allowed; counts and sums follow it. Everything else as in
        `mixture_log_ratio`, whose sample i is the same as here. Time grows with the number of thresholds below L.

    Raises ValueError or TypeError, naming the argument, for values out of range, NaN thresholds or schedules of another
    length.
    """
    kernel = "mixture_tail"
    mixture = _mixture(num_samples, noise_multiplier, sample_rate, steps, under, seed, first_sample)
    _arrays.read_like(kernel, like)
    wanted = _validate.real_array("a number, not NaN", lambda v: ~np.isnan(v), thresholds=thresholds)
    ascending, place = np.unique(wanted, return_inverse=True)
    place = place.reshape(-1)
    m = ascending.size
    counts = np.zeros(m, dtype=np.int64)
    inverse = np.zeros((m, _C.sum_digits), dtype=np.uint64)
    excess = np.zeros_like(inverse)
    for offset, length in mixture.shards():
        _C.mixture_tail(
            mixture.native(offset, length),
            m,
            _arrays.address(ascending),
            _arrays.address(counts),
            _arrays.address(inverse),
            _arrays.address(excess),
            _arrays.CPU,
            _threads.plan(),
        )
    above = np.cumsum(counts[::-1])[::-1]
    inverse_above: list[int] = []
    for digits in inverse[::-1]:
        inverse_above.append(_integer(digits) + (inverse_above[-1] if inverse_above else 0))
    inverse_above.reverse()
    exact = (tuple(_integer(excess[j]) for j in place), tuple(inverse_above[j] for j in place))
    return MixtureTail(
        counts=_arrays.wrap(above[place].reshape(wanted.shape), like),
        sums=_arrays.wrap(_rounded(exact, wanted.shape), like),
        num_samples=mixture.count,
        thresholds=wanted,
        samples=_union(((mixture.first, mixture.first + mixture.count),)),
        exact_sums=exact,
        experiment=mixture.digest(),
    )


def _mixture(
    num_samples: int, noise_multiplier: Any, sample_rate: Any, steps: int, under: str, seed: int, first_sample: int
) -> _Mixture:
    count = _validate.integer(0, 2**63 - 1, num_samples=num_samples)
    length = _validate.integer(0, _MAX_STEPS, steps=steps)
    sigma = _schedule(
        length,
        noise_multiplier=_validate.real_array(
            "in [0, inf)", lambda v: (v >= 0) & (v < np.inf), noise_multiplier=noise_multiplier
        ),
    )
    rate = _schedule(
        length, sample_rate=_validate.real_array("in [0, 1]", lambda v: (v >= 0) & (v <= 1), sample_rate=sample_rate)
    )
    side = _validate.one_of("null", "alternative", under=under)
    key = _validate.seed(seed=seed)
    first = _validate.integer(0, 2**64 - 1 - count, first_sample=first_sample)
    return _Mixture(sigma, rate, side == "alternative", key, first, count)


def _schedule(steps: int, **kwargs: np.ndarray) -> np.ndarray:
    ((name, values),) = kwargs.items()
    if values.ndim == 0:
        return np.full(steps, float(values))
    if values.shape != (steps,):
        raise ValueError(f"{name} has shape {values.shape}: must be a number or an array of length steps={steps}")
    return np.ascontiguousarray(values)


def _integer(digits: np.ndarray) -> int:
    return int.from_bytes(digits.astype("<u4").tobytes(), "little")


def _rounded(exact: Any, shape: tuple[int, ...]) -> np.ndarray:
    out = np.array([[_to_float(v) for v in row] for row in exact], dtype=np.float64)
    return out.reshape(2, *shape)


def _to_float(units: int) -> float:
    try:
        return units / _UNIT  # division of integers rounds correctly
    except OverflowError:
        return float("inf")


def _union(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    for begin, end in sorted(r for r in ranges if r[0] < r[1]):
        if out and begin < out[-1][1]:
            raise ValueError(f"cannot merge: samples {begin} to {min(end, out[-1][1]) - 1} are in both shards")
        if out and begin == out[-1][1]:
            out[-1] = (out[-1][0], end)
        else:
            out.append((begin, end))
    return tuple(out)
