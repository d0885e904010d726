"""Poisson batches as padded blocks: only the sampled rows, copied, instead of a masked pass over all rows.

The blocks' shape is a function of the number of rows and q alone, and what does not fit goes into a further block
of the same shape, so that a run's bits do not depend on how many rows its neighbours drew: padding has factor zero,
and a further block that holds nothing of a run adds zeros to its sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from leakcore.dpsgd.ensemble.block.forward_backward import RowGroup
from leakcore.dpsgd.ensemble.sampling import Batches, FixedBatches, ShuffledBatches, share

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
    rows = 8 * math.ceil((mean + 4 * math.sqrt(mean * (1 - sample_rate)) + 1) / 8)
    return _in_pieces(rows) if sample_rate < 1 and rows < _WORTH * num_rows else None


def fixed_rows(num_rows: int, taken: int, share: float) -> int | None:
    """The same for batches of a fixed size, with at most `taken` of these rows each; `share` is batch / all rows."""
    return _in_pieces(taken) if share < 1 and taken < _WORTH * num_rows else None


def gathered_rows(num_rows: int, batches: Batches, all_rows: int) -> int | None:
    """Rows per padded block of these rows, which are some of `all_rows`; None: not worth gathering."""
    if isinstance(batches, ShuffledBatches | FixedBatches):
        return fixed_rows(num_rows, min(batches.batch_size, num_rows), share(batches, all_rows))
    return block_rows(num_rows, share(batches, all_rows))


def _in_pieces(rows: int) -> int:
    return math.ceil(rows / math.ceil(rows / CHUNK))


class Gather:
    """Buffers for one thread's padded blocks of rows taken from common ones."""

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
        """Yield (rows, weight) of each block, for taken (slots, common rows) bool.

        The weight (slots, rows) is one, or zero where the block is padded. There is at least one block. The buffers are
        reused for the next block.
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
            which = torch.from_numpy(np.ascontiguousarray(index[:, part])).view(-1)
            which = which.to(self._inputs.device)
            for source, target in (
                (self._common.inputs, self._inputs.flatten(0, 1)),
                (self._common.squares, self._squares.view(-1)),
                (self._classes, self._targets.flatten(0, 1)),
            ):
                torch.index_select(source, 0, which, out=target)
            yield self._filled, torch.from_numpy(np.ascontiguousarray(weight[:, part])).to(self._inputs)
