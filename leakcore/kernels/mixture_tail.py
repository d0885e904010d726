"""What the tails of a log ratio return: exact integers per bracket between thresholds, and what they round to."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from leakcore import _C
from leakcore._base.array_record import ArrayRecord
from leakcore.kernels.arrays import arrays

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
