"""How each step draws its batch, for whom, and how the rows of a batch are gathered."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from leakcore import kernels
from leakcore._base import validate
from leakcore.dpsgd.ensemble.passes import RowGroup


class Batches(abc.ABC):
    """A way to draw an ensemble's batches. Each class answers all that is asked of it; none counts as another."""

    expected_batch_size: float | None

    @property
    @abc.abstractmethod
    def scheme(self) -> str:
        """Name by which attackers and audits know it, as in the table of `leakcore.mechanisms`."""

    @property
    @abc.abstractmethod
    def size(self) -> int | None:
        """Rows of each batch; None where sizes vary."""

    @property
    @abc.abstractmethod
    def rate(self) -> float:
        """Probability of a row to be in a batch; 1 where batches have one size."""

    @abc.abstractmethod
    def period(self, rows: int) -> int:
        """Steps whose batches are drawn together."""

    @abc.abstractmethod
    def draw(self, streams: Streams, rows: int, epoch: int, first_run: int) -> np.ndarray | None:
        """(slots, rows): what decides the batches of a period; None: each holds all rows."""

    @abc.abstractmethod
    def taken(self, drawn: np.ndarray, number: int) -> np.ndarray:
        """(slots, rows) bool: the batches of a step, by its number in the period."""

    def share(self, rows: int) -> float:
        """What part of `rows` training rows a batch holds on average."""
        return self.rate if self.size is None else self.size / rows

    def _check_expected(self) -> None:
        if self.expected_batch_size is not None:
            size = validate.positive(expected_batch_size=self.expected_batch_size)
            object.__setattr__(self, "expected_batch_size", size)


@dataclasses.dataclass(frozen=True)
class PoissonBatches(Batches):
    """Each step includes each row with probability `sample_rate`, independently.

    Args:
        sample_rate: q in (0, 1]; 1 takes all rows in each step (full batches).
        expected_batch_size: B above 0, by which the sum is divided; None: q·(common rows + extra rows). Choose it where
            B must not depend on whether the target is present: an attacker who knows B would otherwise learn that from
            the scale of the update.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from leakcore import dpsgd
        >>> batches = dpsgd.PoissonBatches(0.1, expected_batch_size=50)
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=9, sample_rate=batches, seed=0
        ... )
        >>> ensemble.sample_rate, ensemble.expected_batch_size
        (0.1, 50.0)
    """

    sample_rate: float
    expected_batch_size: float | None = None
    scheme = "poisson"
    size = None

    def __post_init__(self) -> None:
        rate = validate.probability(sample_rate=self.sample_rate)
        if rate == 0:
            raise ValueError("`sample_rate` must be in (0, 1], got 0")
        object.__setattr__(self, "sample_rate", rate)
        self._check_expected()

    @property
    def rate(self) -> float:
        return self.sample_rate

    def period(self, rows: int) -> int:
        return 1

    def draw(self, streams: Streams, rows: int, epoch: int, first_run: int) -> np.ndarray | None:
        return None if self.rate == 1 else streams.batch(SLOTS, rows, self.rate, epoch, first_run=first_run)

    def taken(self, drawn: np.ndarray, number: int) -> np.ndarray:
        return drawn


@dataclasses.dataclass(frozen=True)
class _BatchesOfOneSize(Batches):
    batch_size: int
    expected_batch_size: float | None = None
    rate = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", validate.integer(1, None, batch_size=self.batch_size))
        self._check_expected()

    @property
    def size(self) -> int:
        return self.batch_size

    def draw(self, streams: Streams, rows: int, epoch: int, first_run: int) -> np.ndarray:
        return streams.order(SLOTS, rows, epoch, first_run=first_run)

    def taken(self, drawn: np.ndarray, number: int) -> np.ndarray:
        out = np.zeros(drawn.shape, bool)
        np.put_along_axis(out, drawn[:, number * self.batch_size : (number + 1) * self.batch_size], True, axis=1)
        return out


class ShuffledBatches(_BatchesOfOneSize):
    """Minibatches of exactly `batch_size` rows: each epoch shuffles all rows and cuts the order into batches.

    The order is a function of (seed, run, epoch). The rows that remain after the last whole batch sit the epoch out.

    Args:
        batch_size: rows of each batch, at least 1.
        expected_batch_size: B above 0, by which the sum is divided; None: `batch_size`.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from leakcore import dpsgd
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=10,
        ...     sample_rate=dpsgd.ShuffledBatches(50), seed=0,
        ... )
        >>> ensemble.batch_size
        50
    """

    scheme = "shuffled"

    def period(self, rows: int) -> int:
        return rows // self.batch_size


class FixedBatches(_BatchesOfOneSize):
    """Each step draws a fresh batch of exactly `batch_size` rows without replacement, all batches alike.

    Args:
        batch_size: rows of each batch, at least 1.
        expected_batch_size: B above 0, by which the sum is divided; None: `batch_size`.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from leakcore import dpsgd
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=10,
        ...     sample_rate=dpsgd.FixedBatches(50), seed=0,
        ... )
        >>> ensemble.batch_size
        50
    """

    scheme = "fixed"

    def period(self, rows: int) -> int:
        return 1


@dataclasses.dataclass(frozen=True)
class AllocatedBatches(Batches):
    """Each row draws one of the `batches` of an epoch for itself (random allocation, balls in bins).

    The draws are a function of (seed, run, epoch); batches differ in size, and may be empty.

    Args:
        batches: b, steps of an epoch, at least 1.
        expected_batch_size: B above 0, by which the sum is divided; None: (common rows + extra rows)/b. Choose it where
            B must not depend on whether the target is present.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from leakcore import dpsgd
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=10,
        ...     sample_rate=dpsgd.AllocatedBatches(5), seed=0,
        ... )
        >>> ensemble.sample_rate
        0.2
    """

    batches: int
    expected_batch_size: float | None = None
    scheme = "allocation"
    size = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", validate.integer(1, None, batches=self.batches))
        self._check_expected()

    @property
    def rate(self) -> float:
        return 1 / self.batches

    def period(self, rows: int) -> int:
        return self.batches

    def draw(self, streams: Streams, rows: int, epoch: int, first_run: int) -> np.ndarray | None:
        b = self.batches
        return None if b == 1 else streams.allocation(SLOTS, rows, b, epoch, first_run=first_run)

    def taken(self, drawn: np.ndarray, number: int) -> np.ndarray:
        return np.asarray(drawn == number)


def read_sampling(sample_rate: float | Batches) -> Batches:
    """A sample rate stands for Poisson batches of it; the error names `sample_rate`."""
    if isinstance(sample_rate, Batches):
        return sample_rate
    try:
        return PoissonBatches(sample_rate)
    except (TypeError, ValueError) as why:
        raise type(why)(
            f"{why}; a dpsgd.PoissonBatches, ShuffledBatches, FixedBatches or AllocatedBatches is allowed, too"
        ) from None


@dataclasses.dataclass(frozen=True)
class Streams:
    """The random numbers of a block of consecutive runs, each a pure function of (seed, run, step).

    Row r belongs to run first_run + r and depends on nothing else.
    """

    seed: int
    dtype: str

    def initial(self, num_runs: int, size: int, *, first_run: int) -> np.ndarray:
        """(runs, size) float64, uniform in (0, 1)."""
        return self._drawn(kernels.uniform, kernels.Stream.INIT, num_runs, size, 0, first_run)

    def initial_normal(self, num_runs: int, size: int, purpose: kernels.Stream, *, first_run: int) -> np.ndarray:
        """(runs, size) float64, standard normal: initial parameters, or what each run adds to its own."""
        return self._drawn(kernels.standard_normal, purpose, num_runs, size, 0, first_run)

    def noise(self, num_runs: int, size: int, step: int, *, first_run: int) -> np.ndarray:
        """(runs, size) standard normal."""
        kind = kernels.Stream.CLIP_NOISE
        return self._drawn(kernels.standard_normal, kind, num_runs, size, step, first_run, dtype=self.dtype)

    def order(self, num_runs: int, rows: int, epoch: int, *, first_run: int) -> np.ndarray:
        """(runs, rows) int64: each run's order of the rows in this epoch; no order is likelier than another by more
        than a factor 1 + rows²/2³³."""
        draws = self._draws(num_runs, rows, epoch, first_run)
        # The draw's 32 bits above the row's number: all keys differ, so that any sorting algorithm gives one order.
        keys = (draws * 2.0**32).astype(np.uint64) << np.uint64(32) | np.arange(rows, dtype=np.uint64)
        keys.sort(axis=1)
        return np.asarray(keys & np.uint64(0xFFFFFFFF)).astype(np.int64)

    def batch(self, num_runs: int, rows: int, sample_rate: float, step: int, *, first_run: int) -> np.ndarray:
        """(runs, rows) bool: which rows each run samples in this step; q is met to 2⁻³³."""
        return self._draws(num_runs, rows, step, first_run) < sample_rate

    def allocation(self, num_runs: int, rows: int, batches: int, epoch: int, *, first_run: int) -> np.ndarray:
        """(runs, rows) int64 in [0, batches): the batch of this epoch that each row draws; no batch is likelier than
        another by more than a factor 1 + batches/2³²."""
        draws = self._draws(num_runs, rows, epoch, first_run)
        return np.asarray((draws * batches).astype(np.int64))

    def _draws(self, num_runs: int, rows: int, step: int, first_run: int) -> np.ndarray:
        """(runs, rows) in (0, 1): what decides the batches of a step or an epoch, however they are formed."""
        return self._drawn(kernels.uniform, kernels.Stream.BATCH, num_runs, rows, step, first_run)

    def _drawn(
        self, draw: Any, purpose: kernels.Stream, num_runs: int, size: int, step: int, first_run: int, **dtype: str
    ) -> np.ndarray:
        shape = num_runs, size
        return np.asarray(draw(shape, seed=self.seed, purpose=purpose, step=step, first_row=first_run, **dtype))


SLOTS = 32
"""Runs per block. With 1,000 rows and ten units a buffer is 1.3 MB, which the third-level cache holds. On two threads
16 slots measured 25% slower (the interpreter's lock changes hands twice as often), 64 slots 4% faster for twice the
padding."""


class DrawnBatches:
    """The batches of a block of `rows` training rows per run, step by step."""

    def __init__(self, batches: Batches, streams: Streams, rows: int) -> None:
        self._batches, self._streams, self._rows = batches, streams, rows
        self._period = batches.period(rows)
        self._epoch = (-1, -1)
        self._drawn: np.ndarray | None = None

    def batch(self, step: int, first_run: int) -> np.ndarray | None:
        """(slots, rows) bool: which rows each run takes in this step; None: all."""
        epoch, number = divmod(step, self._period)
        if self._epoch != (epoch, first_run):
            self._epoch = epoch, first_run
            self._drawn = self._batches.draw(self._streams, self._rows, epoch, first_run)
        return None if self._drawn is None else self._batches.taken(self._drawn, number)


CHUNK = 1024
"""Most rows in one product. Longer data are summed chunk by chunk, in order, so that buffers stay near the cache."""
_WORTH = 0.2
"""Gathering pays below this share of the rows: one product over rows that all runs share is faster per row than a
product per run, and the rows must be copied. Measured break-even for 1,000 rows of 784 features, ten units: 0.25."""


def block_rows(num_rows: int, sample_rate: float) -> int | None:
    """Rows per padded block: four standard deviations above the expected batch, a multiple of 8; None: not worth
    gathering.

    A batch overflows into a second block with probability below 10⁻³ for the smallest rates and 10⁻⁴ for most.
    """
    mean = num_rows * sample_rate
    return _in_pieces(8 * math.ceil((mean + 4 * math.sqrt(mean * (1 - sample_rate)) + 1) / 8), num_rows, sample_rate)


def gathered_rows(num_rows: int, batches: Batches, all_rows: int) -> int | None:
    """Rows per padded block of these rows, which are some of `all_rows`; None: not worth gathering."""
    part = batches.share(all_rows)
    if batches.size is None:
        return block_rows(num_rows, part)
    return _in_pieces(min(batches.size, num_rows), num_rows, part)


def _in_pieces(rows: int, num_rows: int, part: float) -> int | None:
    """Blocks of about `rows` rows, at most `CHUNK`; None where a batch is a large part of all rows."""
    return math.ceil(rows / math.ceil(rows / CHUNK)) if part < 1 and rows < _WORTH * num_rows else None


class Gather:
    """Buffers for one thread's padded blocks of rows taken from common ones: copies, instead of a masked pass over all.

    The blocks' shape is a function of the number of rows and q alone, and what does not fit goes into a further block
    of the same shape, so that a run's bits do not depend on how many rows its neighbours drew: padding has factor zero.
    """

    def __init__(self, common: RowGroup, slots: int, rows: int) -> None:
        self._common = common
        self._classes = common.targets.T.contiguous()
        self._slots, self.rows = slots, rows
        self._inputs = common.inputs.new_empty((slots, rows, common.inputs.shape[1]))
        self._squares = common.squares.new_empty((slots, rows))
        self._targets = common.targets.new_empty((slots, rows, self._classes.shape[1]))
        self._filled = RowGroup(
            inputs=self._inputs,
            transposed=self._inputs.transpose(1, 2),
            squares=self._squares,
            targets=self._targets.transpose(1, 2),
        )

    def blocks(self, taken: np.ndarray) -> Iterator[tuple[RowGroup, torch.Tensor]]:
        """Yield (rows, weight) of each block, at least one, for taken (slots, common rows) bool. Buffers are used
        again.

        The weight (slots, rows) is one, or zero where the block is padded.
        """
        slot, row = np.nonzero(taken)
        counts = np.bincount(slot, minlength=self._slots)
        place = np.arange(len(slot)) - np.repeat(np.cumsum(counts) - counts, counts)
        num_blocks = max(1, -(-int(counts.max(initial=0)) // self.rows))
        index = np.zeros((self._slots, num_blocks * self.rows), np.int64)
        weight = np.zeros(index.shape, bool)
        index[slot, place] = row
        weight[slot, place] = True
        for start in range(0, index.shape[1], self.rows):
            part = slice(start, start + self.rows)
            which = torch.from_numpy(np.ascontiguousarray(index[:, part])).view(-1).to(self._inputs.device)
            for source, target in (
                (self._common.inputs, self._inputs.flatten(0, 1)),
                (self._common.squares, self._squares.view(-1)),
                (self._classes, self._targets.flatten(0, 1)),
            ):
                torch.index_select(source, 0, which, out=target)
            yield self._filled, torch.from_numpy(np.ascontiguousarray(weight[:, part])).to(self._inputs)
