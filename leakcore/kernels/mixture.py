"""Monte Carlo of the Gaussian mixture that dominates Poisson-sampled DP-SGD: constant memory, mergeable shards."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from leakcore import _C
from leakcore._base import memory_limit, validate
from leakcore._base.array_record import ArrayRecord
from leakcore._base.digest import digest
from leakcore.kernels import arrays, threads
from leakcore.kernels.random import float_dtype, read_out

_MAX_STEPS = 2**24  # whose schedules, and what a run of steps shares, fill a gigabyte
_SAMPLE_STEPS_PER_CALL = 50_000_000  # about a tenth of a second: how long Ctrl-C may have to wait
_SAMPLE_STEPS_PER_LAUNCH = 40_000_000_000  # likewise of a GPU, which the host does not wait for
_SAMPLES_PER_LAUNCH = 2**31 - 2**20  # the far sums of a call are carried at its end: 2³¹ summands leave room
_CONFIGS_PER_LAUNCH = 4 * 65_535  # four to a row of blocks
_REMEMBERED_STEPS = 4096
_BLOCK = 256  # samples that the native core works on at a time


class _Schedules(NamedTuple):
    """σ and q, contiguous `(configs, steps)`, and their addresses; whether the caller gave configurations."""

    sigma: np.ndarray
    rate: np.ndarray
    several: bool
    sigma_address: int
    rate_address: int


class Draws(NamedTuple):
    """Which samples a call draws: the validated arguments that all kernels of log ratios share."""

    num_samples: int
    alternative: bool
    seed: int
    first: int
    single: bool

    @classmethod
    def read(cls, num_samples: int, under: str, seed: int, first_sample: int, dtype: np.dtype[Any]) -> Draws:
        count = validate.integer(0, 2**63 - 1, num_samples=num_samples)
        side = validate.one_of("null", "alternative", under=under)
        key = validate.seed(seed=seed)
        first = validate.integer(0, 2**64 - 1 - count, first_sample=first_sample)
        return cls(count, side == "alternative", key, first, dtype.itemsize == 4)


def _shards(schedules: _Schedules, count: int, place: Any) -> list[tuple[int, int]]:
    """(offset, length): native calls short enough for Ctrl-C to get through between them."""
    configs, steps = schedules.sigma.shape
    if place is not arrays.CPU and configs > _CONFIGS_PER_LAUNCH:
        raise ValueError(
            f"`noise_multiplier` and `sample_rate` must have at most {_CONFIGS_PER_LAUNCH} configurations on a GPU, "
            f"got {configs}"
        )
    allowed = _SAMPLE_STEPS_PER_CALL if place is arrays.CPU else _SAMPLE_STEPS_PER_LAUNCH
    cells = configs * steps
    if 0 < count * cells <= allowed and count <= _SAMPLES_PER_LAUNCH:
        return [(0, count)]
    size = min(max(allowed // max(cells, 1) // _BLOCK, 64) * _BLOCK, _SAMPLES_PER_LAUNCH)
    return [(a, min(size, count - a)) for a in range(0, count, size)] if configs else []


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
    out: Any = None,
    like: Any = None,
) -> Any:
    """Samples of L = log μ(x)/ν(x), the privacy loss of Poisson-sampled DP-SGD (Hayes et al. 2023, Corollary 4).

    ν = N(0, σ²I_T) and μ = Π_t [(1−q)N(0, σ²) + qN(1, σ²)], so L = Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))).
    Precision and layout of the random numbers: docs/explanation/kernels.md.

    Args:
        num_samples: at least 0.
        noise_multiplier: σ in [0, ∞), a number or an array of length `steps`; or (configs, steps) or (configs, 1) for
            several configurations over the same random numbers. σ = 0 is the limit.
        sample_rate: q in [0, 1], likewise.
        steps: T, at least 0.
        under: "null" draws x ~ ν, "alternative" x ~ μ, from independent streams.
        seed: 64-bit.
        first_sample: index of the first sample. Sample i depends on (seed, under, first_sample + i) alone, here and in
            `mixture_tail`.
        dtype: "float64", or "float32" for nearly twice the speed.
        out: a contiguous array of the result's shape and dtype, to fill and return.
        like: an array whose library and device the result follows. If torch traces it, the call becomes a torch
            operator, which takes numbers for σ and q.

    Returns:
        (num_samples,), or (configs, num_samples).

    Raises:
        ValueError, TypeError: names the argument that is not allowed, or a schedule of another length.

    Guarantees:
        Stable for every σ and q. The bits do not depend on threads or ranges; processors without fused multiply-add
        differ by at most 1.2e-14/σ + 1e-15/σ² + 3e-15 per step.

    Example:
        >>> import numpy as np
        >>> import leakcore
        >>> settings = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "under": "alternative"}
        >>> loss = leakcore.mixture_log_ratio(1000, **settings)
        >>> rest = leakcore.mixture_log_ratio(400, first_sample=600, **settings)
        >>> loss.shape, bool(np.array_equal(rest, loss[600:]))
        ((1000,), True)
    """
    kernel = "mixture_log_ratio"
    target = float_dtype(kernel, dtype)
    draws = Draws.read(num_samples, under, seed, first_sample, target)
    schedules = _read_schedules(noise_multiplier, sample_rate, steps)
    configs, count = len(schedules.sigma), draws.num_samples
    library = arrays.read_like(kernel, like)
    if out is None:
        memory_limit.require(configs * count * target.itemsize, num_samples=count)
        values = library.empty((configs, count), target)
        start = library.address(values)
    else:
        shape = (configs, count) if schedules.several else (count,)
        if type(out) is np.ndarray and out.dtype == target and out.shape == shape and out.flags.carray:
            start = arrays.address(out)  # the usual case, whose reading in full would take as long as 4,000 samples
        else:
            result = read_out(kernel, "out", out, shape, target)
            if not result.values.flags.c_contiguous:
                raise ValueError(f"{kernel}: `out` must be contiguous, got strides of {result.values.strides} bytes")
            library, start = result.library, arrays.address(result.values)
    for offset, length in _shards(schedules, count, library.place):
        _C.mixture_log_ratio(
            seed=draws.seed,
            first_sample=draws.first + offset,
            num_samples=length,
            alternative=draws.alternative,
            single=draws.single,
            configs=configs,
            steps=schedules.sigma.shape[1],
            noise_multiplier=schedules.sigma_address,
            sample_rate=schedules.rate_address,
            out=start + offset * target.itemsize,
            config_stride=count,
            written=out is not None,
            place=library.place,
            schedule=threads.schedule_now(),
        )
    if out is not None:
        return out
    return library.give(values if schedules.several else values[0])


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
    dtype: Any = "float64",
    like: Any = None,
) -> MixtureTail:
    """Tail counts and sums of L over samples that are never stored: constant memory for any number of samples.

    L is that of `mixture_log_ratio`, sample by sample. With κ the prior success, e^t·κ plus the mean under μ of (1 −
    e^{t−L})₊ bounds the attacker's success from above, and the mean under μ of e^{−L}·1{L ≥ t} is ν(L ≥ t).

    Args:
        num_samples: at least 0.
        thresholds: t, a number or an array of any shape, ±∞ allowed. With several configurations: a number, an array of
            one dimension for all, or (configs, ...).
        noise_multiplier: σ, as in `mixture_log_ratio`.
        sample_rate: q, as in `mixture_log_ratio`.
        steps: T.
        under: "null" draws x ~ ν, "alternative" x ~ μ.
        seed: 64-bit.
        first_sample: index of the first sample.
        dtype: "float64", or "float32" for twice the speed: a sample that lies within the float32 error of a threshold
            may then be counted on its other side.
        like: an array whose library and device the result follows.

    Returns:
        A `MixtureTail` with `.counts`, `.sums` and `.num_samples`.

    Raises:
        ValueError, TypeError: names the argument that is not allowed, NaN thresholds, or a schedule of another length.

    Guarantees:
        e^{−L} is summed exactly, in integers, so shards (`shard + shard`) merge to the same bits in any order. The
        first sum is right to 4e-16 of the count. A summand beyond float64 counts as the largest float64.

    Example:
        >>> import leakcore
        >>> settings = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10}
        >>> whole = leakcore.mixture_tail(1000, [0.0, 1.0], **settings)
        >>> first = leakcore.mixture_tail(300, [0.0, 1.0], **settings)
        >>> second = leakcore.mixture_tail(700, [0.0, 1.0], first_sample=300, **settings)
        >>> merged = first + second
        >>> bool((merged.sums == whole.sums).all()), merged.num_samples
        (True, 1000)
    """
    kernel = "mixture_tail"
    draws = Draws.read(num_samples, under, seed, first_sample, float_dtype(kernel, dtype))
    schedules = _read_schedules(noise_multiplier, sample_rate, steps)
    library = arrays.read_like(kernel, like)
    wanted = read_thresholds(thresholds)
    configs = len(schedules.sigma) if schedules.several else None
    if configs is not None and wanted.ndim > 1 and wanted.shape[0] != configs:
        raise ValueError(
            f"`thresholds` must be a number, an array of one dimension, or one of shape ({configs}, ...), a row for "
            f"each of the {configs} configurations, got shape {wanted.shape}"
        )
    brackets = Brackets(wanted, configs, library)
    sigma, rate, several, *_ = schedules
    for offset, length in _shards(schedules, draws.num_samples, library.place):
        _C.mixture_tail(
            seed=draws.seed,
            first_sample=draws.first + offset,
            num_samples=length,
            alternative=draws.alternative,
            single=draws.single,
            configs=len(sigma),
            steps=sigma.shape[1],
            noise_multiplier=schedules.sigma_address,
            sample_rate=schedules.rate_address,
            **brackets.arguments(),
            place=library.place,
            schedule=threads.schedule_now(),
        )
    return finish(
        brackets.exact(),
        thresholds=wanted,
        configs=configs,
        samples=((draws.first, draws.first + draws.num_samples),),
        experiment=digest(draws.seed, draws.alternative, draws.single, several, sigma, rate),
        like=like,
    )


def read_thresholds(thresholds: Any) -> np.ndarray:
    """A copy, for the caller's own may change; the error names it."""
    return np.array(validate.real_array("a number, not NaN", lambda v: ~np.isnan(v), thresholds=thresholds))


def _read_schedules(noise_multiplier: Any, sample_rate: Any, steps: int) -> _Schedules:
    # A search calls with the same two numbers many times over, in calls that may be short.
    plain = type(noise_multiplier) is type(sample_rate) is float and type(steps) is int
    read = _remembered if plain and steps <= _REMEMBERED_STEPS else _schedules
    return read(noise_multiplier, sample_rate, steps)


def _schedules(noise_multiplier: Any, sample_rate: Any, steps: Any) -> _Schedules:
    length = validate.integer(0, _MAX_STEPS, steps=steps)
    sigma = _schedule(
        length,
        noise_multiplier=validate.real_array(
            "at least 0 and finite", lambda v: (v >= 0) & (v < np.inf), noise_multiplier=noise_multiplier
        ),
    )
    rate = _schedule(
        length, sample_rate=validate.real_array("in [0, 1]", lambda v: (v >= 0) & (v <= 1), sample_rate=sample_rate)
    )
    several = sigma.ndim > 1 or rate.ndim > 1
    if sigma.ndim > 1 and rate.ndim > 1 and len(sigma) != len(rate) and 1 not in (len(sigma), len(rate)):
        raise ValueError(
            f"`noise_multiplier` and `sample_rate` must have equally many configurations, or one, got {len(sigma)} and "
            f"{len(rate)}"
        )
    sigma, rate = (v if v.ndim > 1 else v[None] for v in (sigma, rate))
    if sigma.shape != rate.shape:
        sigma, rate = np.broadcast_arrays(sigma, rate)
    sigma, rate = np.ascontiguousarray(sigma), np.ascontiguousarray(rate)
    return _Schedules(sigma, rate, several, arrays.address(sigma), arrays.address(rate))


_remembered = functools.lru_cache(maxsize=32)(_schedules)


def _schedule(steps: int, **kwargs: np.ndarray) -> np.ndarray:
    """`(steps,)`, or `(configs, steps)`."""
    ((name, values),) = kwargs.items()
    if values.ndim == 0:
        return np.full(steps, float(values))
    if values.shape == (steps,) or (values.ndim == 2 and values.shape[1] in (1, steps)):
        return np.broadcast_to(values, (*values.shape[:-1], steps))
    raise ValueError(
        f"`{name}` must be a number, an array of length steps={steps}, or one of shape (configs, {steps}) or "
        f"(configs, 1), got shape {values.shape}"
    )


_UNIT = 2**1074  # exact sums are integers in units of the smallest float64

Exact = tuple[tuple[int, ...], ...]
"""Per bracket (configurations one after the other, thresholds ascending): samples; those among them with |L| > 700
("far": e^{−L} may be no normal float64); Σ e^{−L} of the near ones; of the far ones; Σ 1 − e^{t−L} of all far samples
with L ≥ t."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MixtureTail(ArrayRecord):
    """Counts and sums over the samples of one or several shards; `+` merges shards to the bits of the undivided run.

    Attributes:
        counts: int64, shaped like `thresholds`, or (configs, ...): samples with L ≥ t.
        sums: float64, (2, ...): Σ (1 − e^{t−L})₊, right to 4e-16 of the count, and Σ e^{−L}·1{L ≥ t}, the exact sum of
            the float64 summands, rounded once.
        num_samples: how many samples there were.
        thresholds: t.
        samples: the index ranges [a, b) covered, ascending.
        exact_sums: the integers, in units of 2⁻¹⁰⁷⁴, from which counts and sums come.
        experiment: a digest of the pair, under, seed and dtype.
        configs: number of configurations, None for one.

    Example:
        >>> from leakcore import kernels
        >>> mechanism = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10}
        >>> whole = kernels.mixture_tail(2000, [0.0], **mechanism)
        >>> first = kernels.mixture_tail(1000, [0.0], **mechanism)
        >>> second = kernels.mixture_tail(1000, [0.0], first_sample=1000, **mechanism)
        >>> (first + second).counts == whole.counts
        array([ True])
    """

    counts: Any
    sums: Any
    num_samples: int
    thresholds: np.ndarray
    samples: tuple[tuple[int, int], ...]
    exact_sums: Exact = dataclasses.field(repr=False)
    experiment: str
    configs: int | None = None

    def __add__(self, other: MixtureTail) -> MixtureTail:
        """Merge two disjoint shards of one experiment.

        Args:
            other: a `MixtureTail` with the same thresholds.

        Returns:
            The `MixtureTail` that one call over all samples would have returned.

        Raises:
            ValueError: if the experiments or the thresholds differ, or a sample is in both.
        """
        if not isinstance(other, MixtureTail):
            return NotImplemented
        if self.experiment != other.experiment:
            raise ValueError(
                "cannot merge: the shards differ in noise_multiplier, sample_rate, steps, under or seed, in allocation "
                "or in dtype"
            )
        if not np.array_equal(self.thresholds, other.thresholds):
            raise ValueError("cannot merge: the shards have different thresholds")
        exact = tuple(
            tuple(a + b for a, b in zip(mine, theirs, strict=True))
            for mine, theirs in zip(self.exact_sums, other.exact_sums, strict=True)
        )
        return finish(
            exact,
            thresholds=self.thresholds,
            configs=self.configs,
            samples=_union(self.samples + other.samples),
            experiment=self.experiment,
            like=self.counts,
        )


class Brackets:
    """The native core's accumulators for `(configs, m)` ascending thresholds."""

    def __init__(self, thresholds: np.ndarray, configs: int | None, library: arrays.Library) -> None:
        self.library = library
        self.ascending = np.sort(_rows(thresholds, configs), axis=1)
        self.counts = library.from_host(np.zeros((*self.ascending.shape, 2), dtype=np.int64))
        # Digits are unsigned, which not every library has a type for.
        self.sums = library.from_host(np.zeros((*self.ascending.shape, 3, _C.sum_digits), dtype=np.int64))

    def arguments(self) -> dict[str, Any]:
        """Those of a native call that adds to them."""
        return {
            "num_thresholds": self.ascending.shape[1],
            "thresholds": arrays.address(self.ascending),
            "counts": self.library.address(self.counts),
            "sums": self.library.address(self.sums),
        }

    def exact(self) -> Exact:
        counts = self.library.to_host(self.counts).reshape(-1, 2)
        digits = self.library.to_host(self.sums).view(np.uint64).astype("<u4").reshape(-1, 3, _C.sum_digits)
        number, far = (tuple(int(n) for n in counts[:, k]) for k in range(2))
        sums = (tuple(int.from_bytes(d.tobytes(), "little") for d in digits[:, k]) for k in range(3))
        return number, far, *sums


def finish(
    exact: Exact,
    *,
    thresholds: np.ndarray,
    configs: int | None,
    samples: tuple[tuple[int, int], ...],
    experiment: str,
    like: Any,
) -> MixtureTail:
    """Sums over all samples at or above each threshold, in the caller's shape and order."""
    rows = _rows(thresholds, configs)
    order = np.argsort(rows, axis=1, kind="stable")
    counts = np.empty(rows.shape, dtype=np.int64)
    sums = np.empty((2, *rows.shape))
    m = rows.shape[1]
    for c, row in enumerate(rows):
        number, far, near_sum, far_sum, excess = (values[c * m : (c + 1) * m] for values in exact)
        above, far_above, near_above, all_above = (
            list(itertools.accumulate(reversed(values)))[::-1]
            for values in (number, far, near_sum, [a + b for a, b in zip(near_sum, far_sum, strict=True)])
        )
        for j, k in enumerate(order[c]):
            near = (above[j] - far_above[j]) * _UNIT - _scaled(near_above[j], float(row[k]))
            counts[c, k] = above[j]
            sums[0, c, k] = _to_float(max(near, 0) + excess[j])
            sums[1, c, k] = _to_float(all_above[j])
    shape = _shape(thresholds, configs)
    return MixtureTail(
        counts=arrays.wrap(counts.reshape(shape), like),
        sums=arrays.wrap(sums.reshape(2, *shape), like),
        num_samples=sum(b - a for a, b in samples),
        thresholds=thresholds,
        samples=_union(samples),
        exact_sums=exact,
        experiment=experiment,
        configs=configs,
    )


def _shape(thresholds: np.ndarray, configs: int | None) -> tuple[int, ...]:
    """The shape of the counts: like the thresholds, with the configurations first."""
    return thresholds.shape if configs is None or thresholds.ndim > 1 else (configs, *thresholds.shape)


def _rows(thresholds: np.ndarray, configs: int | None) -> np.ndarray:
    shape = _shape(thresholds, configs)
    count = 1 if configs is None else configs
    columns = int(np.prod(shape if configs is None else shape[1:]))
    return np.ascontiguousarray(np.broadcast_to(thresholds, shape)).reshape(count, columns)


def _scaled(units: int, threshold: float) -> int:
    """e^threshold·units; a near sample at or above a threshold keeps it below 700."""
    if units == 0 or threshold < -745.0:
        return 0
    numerator, denominator = float(np.exp(threshold)).as_integer_ratio()
    return units * numerator // denominator


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
