"""Rows for training, scoring or evaluating runs: one array for each run, or row numbers of a common pool."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from leakcore._base import validate
from leakcore.dpsgd.ensemble import arguments
from leakcore.dpsgd.ensemble.arguments import Samples
from leakcore.dpsgd.ensemble.block.batches import SLOTS
from leakcore.dpsgd.ensemble.block.forward_backward import RowGroup


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Rows and their labels, for each run or for all runs.

    Shapes and values are checked where the rows are used, against the network and the number of runs.

    Args:
        features: (runs, n, inputs), or (n, inputs) where all runs share the rows; with `index` a pool (pool, inputs).
        labels: (runs, n), (n,) or (pool,) class numbers (0 or 1 for one output); None where only the features count.
        index: (runs, n) row numbers of the pool: the rows of each run. The pool is stored once, so memory does not grow
            with the number of runs.

    Raises:
        ValueError: for an `index` into a pool without labels.
        TypeError: if `features` is None.

    Example:
        >>> from leakcore import datasets, dpsgd
        >>> data = datasets.digits()
        >>> canaries = dpsgd.Rows(data.features, data.labels, index=[[0, 1], [2, 3], [4, 5]])  # two a run
        >>> len(canaries.index)
        3
    """

    features: Any
    labels: Any = None
    index: Any = None

    def __post_init__(self) -> None:
        if self.features is None:
            raise TypeError("`features` must have shape (runs, n, inputs) or (n, inputs), got None")
        if self.index is not None and self.labels is None:
            raise ValueError("`labels` must be given for a pool, which index draws from, got None")


@dataclasses.dataclass(frozen=True)
class Source:
    """Rows of each run: its own, features (runs, n, inputs), or row numbers (runs, n) of a pool that all runs share."""

    samples: Samples
    index: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return self.samples.rows if self.index is None else int(self.index.shape[1])

    def part(self, low: int, high: int) -> Source:
        """Runs [low, high) of these."""
        if self.index is not None:
            return Source(self.samples, self.index[low:high])
        return Source(Samples(self.samples.features[low:high], self.samples.labels[low:high]))

    def take(self, low: int, high: int, at: int, outputs: int, dtype: torch.dtype, device: torch.device) -> RowGroup:
        """Runs [low, high) at slots at, at + 1, …; zeros in the other slots."""
        x, y = self.samples.features, self.samples.labels
        if self.index is not None:
            x, y = x[self.index[low:high]], y[self.index[low:high]]
        else:
            x, y = x[low:high], y[low:high]
        return RowGroup.of(placed(x, at), placed(y, at), outputs, dtype, device)


def placed(array: np.ndarray, at: int) -> np.ndarray:
    """`array` at slots at, at + 1, …; zeros in the other slots."""
    out = np.zeros((SLOTS, *array.shape[1:]), array.dtype)
    out[at : at + len(array)] = array
    return out


class RowReader:
    """Checks rows against a network's sizes and a number of runs; a pool that several of them share is read once."""

    def __init__(self, layers: tuple[int, ...], dtype: str, runs: int) -> None:
        self._layers, self._dtype, self._runs = layers, dtype, runs
        self._pools: dict[tuple[int, int], Samples] = {}

    def common(self, features: Any, labels: Any) -> Samples:
        """Rows that all runs share."""
        return self._samples(features, labels, "")

    def of_runs(self, rows: Rows | None, name: str) -> Source | None:
        """Rows of each run; errors name `name`."""
        if rows is None:
            return None
        if rows.labels is None:
            raise ValueError(f"`{name}.labels` must give one label to each row, got None")
        if rows.index is not None:
            pool = self._pool(rows, f"{name}.")
            return Source(pool, _row_numbers(rows.index, f"{name}.index", pool.rows, self._runs))
        samples = self._samples(rows.features, rows.labels, f"{name}.", (self._runs,))
        if samples.rows == 0:
            raise ValueError(
                f"`{name}.features` must hold at least one row per run, got shape {samples.features.shape}"
            )
        return Source(samples)

    def probes(self, rows: Rows | None) -> Samples | Source | None:
        """Rows to read the final models at: for all runs (n, inputs), or (runs, n, inputs). Without labels, zeros."""
        if rows is None:
            return None
        if rows.index is not None:
            raise ValueError("`probes.index` must be None: give each run's features")
        shape = validate.even_array(**{"probes.features": rows.features}).shape
        leading = (self._runs,) if len(shape) == 3 else ()
        labels = np.zeros(shape[:-1], np.int64) if rows.labels is None else rows.labels
        samples = self._samples(rows.features, labels, "probes.", leading)
        if samples.rows == 0:
            raise ValueError(f"`probes.features` must hold at least one row, got shape {shape}")
        return Source(samples) if leading else samples

    def _samples(self, features: Any, labels: Any, name: str, leading: tuple[int, ...] = ()) -> Samples:
        return arguments.samples(features, labels, name=name, layers=self._layers, dtype=self._dtype, leading=leading)

    def _pool(self, rows: Rows, name: str) -> Samples:
        key = id(rows.features), id(rows.labels)
        if key not in self._pools:
            self._pools[key] = self._samples(rows.features, rows.labels, name)
        return self._pools[key]


def _row_numbers(index: Any, name: str, rows: int, runs: int) -> np.ndarray:
    out = validate.even_array(**{name: index})
    if out.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be of an integer type, got {out.dtype}")
    if out.ndim != 2 or out.shape[0] != runs or out.shape[1] == 0:
        raise ValueError(f"`{name}` must have shape (runs={runs}, at least one row), got {out.shape}")
    bad = (out < 0) | (out >= rows)
    if bad.any():
        raise ValueError(f"`{name}` must be in [0, {rows - 1}], a row of the pool, got {out[bad][0]}")
    return out.astype(np.int64, copy=False)
