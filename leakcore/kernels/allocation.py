"""Monte Carlo of random allocation and of balls in bins: constant memory, mergeable shards."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from leakcore import _C
from leakcore._base import memory_limit, validate
from leakcore._base.digest import digest
from leakcore.kernels import arrays, threads
from leakcore.kernels.mixture import Brackets, Draws, MixtureTail, finish, read_thresholds
from leakcore.kernels.random import MAX_DRAWS, float_dtype

_MAX_BINS = 2**24
_MAX_LEVEL = 4096  # of the elementary symmetric polynomial: 8 MiB a thread
_WORK_PER_CALL = 50_000_000.0  # bins, about a tenth of a second: how long Ctrl-C may have to wait
_WORK_PER_LAUNCH = 20_000_000_000.0  # likewise of a GPU, which the host does not wait for
_SAMPLES_PER_LAUNCH = 2**31 - 2**20  # the far sums of a call are carried at its end: 2³¹ summands leave room
_BLOCK = 256  # the native core works on so many samples at a time
_LARGEST = 1e300
"""Exponents up to here can be added up over bins and epochs."""
_NORMAL_LIMIT = 6.7637


class _Rows(NamedTuple):
    """A factor: of each row what lies between its first and its last entry, one row after the other."""

    columns: int
    first: np.ndarray
    start: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Allocation:
    """The pair of random allocation: in each of E epochs the target is in one of b bins, or in k of them.

    Bin j is released as y_j = σ·(F·z)_j, plus G_jJ if the target is in bin J, with G = F·Fᵀ; without a factor, G is the
    identity. `mechanisms` say which trainings it dominates.

    Args:
        noise_multiplier: σ > 0.
        bins: b, at most 2²⁴.
        epochs: E, independent repetitions, whose log ratios are added.
        k: how many bins the target is in, all subsets alike. Above 1 without a factor only, and min(k, b − k) ≤ 4096.
        factor: F, an array (b, columns) or a matrix of scipy.sparse. A row costs time from its first to its last entry
            that is not 0, so a banded F is cheap.

    Raises:
        ValueError, TypeError: names the argument that is not allowed, or a σ so small that exponents leave float64.

    Example:
        >>> from leakcore import kernels
        >>> pair = kernels.Allocation(1.0, 100, epochs=4)
        >>> kernels.allocation_log_ratio(pair, 5).shape
        (5,)
    """

    noise_multiplier: float
    bins: int
    epochs: int = 1
    k: int = 1
    factor: Any = dataclasses.field(default=None, repr=False)
    _rows: _Rows | None = dataclasses.field(init=False, repr=False)
    _log_subsets: float = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        sigma = validate.positive(noise_multiplier=self.noise_multiplier)
        bins = validate.integer(1, _MAX_BINS, bins=self.bins)
        chosen = validate.integer(1, bins, k=self.k)
        factor, rows = (None, None) if self.factor is None else _read_factor(self.factor, bins)
        epochs = validate.integer(1, MAX_DRAWS // (bins if rows is None else rows.columns), epochs=self.epochs)
        if rows is not None and chosen > 1:
            raise ValueError(f"`k` must be 1 with a factor, got {chosen}")
        if min(chosen, bins - chosen) > _MAX_LEVEL:
            raise ValueError(f"`k` must be at most {_MAX_LEVEL}, or at least bins - {_MAX_LEVEL}, got {chosen}")
        if not math.isfinite(sigma) or not _largest_exponent(sigma, rows) < _LARGEST / bins / epochs:
            raise ValueError(
                "`noise_multiplier` must be finite, and not so small that log ratios leave float64, got "
                f"{self.noise_multiplier!r}"
            )
        subsets = math.log(math.comb(bins, min(chosen, bins - chosen)))
        fields = ("noise_multiplier", "bins", "epochs", "k", "factor", "_rows", "_log_subsets")
        for name, value in zip(fields, (sigma, bins, epochs, chosen, factor, rows, subsets), strict=True):
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return self._digest() == other._digest() if isinstance(other, Allocation) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.noise_multiplier, self.bins, self.epochs, self.k))

    def _arguments(self) -> dict[str, Any]:
        """The arguments of a native call; this object owns the arrays whose addresses they are."""
        rows = self._rows
        return {
            "noise_multiplier": self.noise_multiplier,
            "bins": self.bins,
            "epochs": self.epochs,
            "chosen": self.k,
            "log_subsets": self._log_subsets,
            "columns": 0 if rows is None else rows.columns,
            "row_column": 0 if rows is None else arrays.address(rows.first),
            "row_start": 0 if rows is None else arrays.address(rows.start),
            "values": 0 if rows is None else arrays.address(rows.values),
        }

    def _work(self) -> float:
        """The work of one sample, in bins."""
        level = min(self.k, self.bins - self.k)
        if self._rows is None:
            return self.epochs * self.bins * (1 + level / 8)
        return self.epochs * (self.bins + self._rows.columns + self._rows.values.size / 8)

    def _digest(self) -> str:
        rows = () if self._rows is None else tuple(self._rows)
        return digest("allocation", self.noise_multiplier, self.bins, self.epochs, self.k, *rows)


def allocation_log_ratio(
    allocation: Allocation,
    num_samples: int,
    *,
    under: str = "null",
    seed: int = 0,
    first_sample: int = 0,
    dtype: Any = "float64",
    like: Any = None,
) -> Any:
    """Samples of L, the privacy loss of random allocation (Chua et al. 2025; Feldman and Shenfeld 2025).

    L = log (1/b) Σ_j exp((y_j − G_jj/2)/σ²), summed over the epochs; of k bins log e_k(w)/C(b, k), where e_k is the
    elementary symmetric polynomial of w_j = exp((y_j − ½)/σ²). Precision and layout of the random numbers:
    docs/explanation/kernels.md.

    Args:
        allocation: the pair.
        num_samples: at least 0.
        under: "null" draws y without the target, "alternative" with it, from independent streams.
        seed: 64-bit.
        first_sample: index of the first sample. Sample i depends on (seed, under, first_sample + i) alone, here and in
            `allocation_tail`.
        dtype: "float64", or "float32" for about twice the speed where it is safe.
        like: an array whose library and device the result follows.

    Returns:
        (num_samples,).

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        Stable for every σ, k and factor. The bits do not depend on threads or ranges.

    Example:
        >>> import numpy as np
        >>> from leakcore import kernels
        >>> pair = kernels.Allocation(1.0, 10, k=2)
        >>> loss = kernels.allocation_log_ratio(pair, 1000, under="alternative")
        >>> rest = kernels.allocation_log_ratio(pair, 400, under="alternative", first_sample=600)
        >>> bool(np.array_equal(rest, loss[600:])), bool(loss.mean() > 0)
        (True, True)
    """
    kernel = "allocation_log_ratio"
    target = float_dtype(kernel, dtype)
    validate.instance(Allocation, allocation=allocation)
    draws = Draws.read(num_samples, under, seed, first_sample, target)
    library = arrays.read_like(kernel, like)
    memory_limit.require(draws.num_samples * target.itemsize, num_samples=draws.num_samples)
    values = library.empty((draws.num_samples,), target)
    start = library.address(values)
    for offset, call in _calls(allocation, draws, library.place):
        _C.allocation_log_ratio(**call, out=start + offset * target.itemsize)
    return library.give(values)


def allocation_tail(
    allocation: Allocation,
    num_samples: int,
    thresholds: Any,
    *,
    under: str = "null",
    seed: int = 0,
    first_sample: int = 0,
    dtype: Any = "float64",
    like: Any = None,
) -> MixtureTail:
    """Tail counts and sums of L over samples that are never stored, as `mixture_tail`.

    L is that of `allocation_log_ratio`, sample by sample.

    Args:
        allocation: the pair.
        num_samples: at least 0.
        thresholds: t, a number or an array of any shape, ±∞ allowed.
        under: "null" draws y without the target, "alternative" with it.
        seed: 64-bit.
        first_sample: index of the first sample.
        dtype: "float64", or "float32" for speed: a sample that lies within the float32 error of a threshold may then be
            counted on its other side.
        like: an array whose library and device the result follows.

    Returns:
        A `MixtureTail` with `.counts`, `.sums` and `.num_samples`.

    Raises:
        ValueError, TypeError: names the argument that is not allowed, or NaN thresholds.

    Guarantees:
        Those of `mixture_tail`: shards merge to the same bits in any order.

    Example:
        >>> from leakcore import kernels
        >>> pair = kernels.Allocation(1.0, 10)
        >>> whole = kernels.allocation_tail(pair, 1000, [0.0, 1.0])
        >>> merged = kernels.allocation_tail(pair, 300, [0.0, 1.0])
        >>> merged += kernels.allocation_tail(pair, 700, [0.0, 1.0], first_sample=300)
        >>> bool((merged.sums == whole.sums).all()), merged.num_samples
        (True, 1000)
    """
    kernel = "allocation_tail"
    validate.instance(Allocation, allocation=allocation)
    draws = Draws.read(num_samples, under, seed, first_sample, float_dtype(kernel, dtype))
    library = arrays.read_like(kernel, like)
    wanted = read_thresholds(thresholds)
    brackets = Brackets(wanted, None, library)
    for _, call in _calls(allocation, draws, library.place):
        _C.allocation_tail(**call, **brackets.arguments())
    return finish(
        brackets.exact(),
        thresholds=wanted,
        configs=None,
        samples=((draws.first, draws.first + draws.num_samples),),
        experiment=digest(allocation._digest(), draws.seed, draws.alternative, draws.single),
        like=like,
    )


def _calls(pair: Allocation, draws: Draws, place: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset, arguments): native calls short enough for Ctrl-C to get through between them."""
    allowed = _WORK_PER_CALL if place is arrays.CPU else _WORK_PER_LAUNCH
    size = min(max(int(allowed / pair._work()) // _BLOCK, 1) * _BLOCK, _SAMPLES_PER_LAUNCH)
    shared = {"seed": draws.seed, "alternative": draws.alternative, "single": draws.single, **pair._arguments()}
    begin = 0
    while begin < draws.num_samples:
        # Blocks lie at multiples of their size: a cut elsewhere would have two calls compute one.
        length = min(size - (draws.first + begin) % _BLOCK, draws.num_samples - begin)
        own = {"first_sample": draws.first + begin, "num_samples": length, "schedule": threads.schedule_now()}
        yield begin, {**shared, **own, "place": place}
        begin += length


def _read_factor(factor: Any, bins: int) -> tuple[Any, _Rows]:
    """A copy that nobody changes, and its rows; the error names it."""
    if hasattr(factor, "tocsr"):
        copy = factor.tocsr().copy()
        copy.sum_duplicates()  # which sorts
        copy.eliminate_zeros()
        entries = copy.data
    else:
        copy = entries = validate.real_array("finite", np.isfinite, factor=factor).copy()
        copy.flags.writeable = False
    shape = tuple(copy.shape)
    if len(shape) != 2 or shape[0] != bins or not 1 <= shape[1] <= _MAX_BINS:
        raise ValueError(f"`factor` must have shape (bins, columns) with bins={bins}, got {shape}")
    values = validate.real_array("finite", np.isfinite, factor=entries)
    if copy is entries:
        row, column = np.nonzero(values)
        values = values[row, column]
    else:
        row, column = np.repeat(np.arange(bins), np.diff(copy.indptr)), copy.indices.astype(np.int64)
    ends = np.searchsorted(row, np.arange(bins + 1))
    filled = ends[1:] > ends[:-1]
    first, length = np.zeros(bins, dtype=np.int64), np.zeros(bins, dtype=np.int64)
    first[filled] = column[ends[:-1][filled]]
    length[filled] = column[ends[1:][filled] - 1] + 1 - first[filled]
    start = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    memory_limit.require(8 * int(start[-1]), factor=f"{bins} rows, from the first to the last entry of each")
    packed = np.zeros(start[-1])
    packed[start[row] + column - first[row]] = values
    return copy, _Rows(int(shape[1]), first, start, packed)


def _largest_exponent(sigma: float, rows: _Rows | None) -> float:
    """A bound of |y_j − G_jj/2|/σ² for every bin."""
    size = 1.0
    if rows is not None:
        sums = np.concatenate([[0.0], np.cumsum(np.abs(rows.values))])[rows.start]
        size = float(np.diff(sums).max())  # of a row, and no less than its norm
    with np.errstate(over="ignore"):
        slope = np.float64(size) / sigma
        return float(_NORMAL_LIMIT * slope + 1.5 * slope**2)
