"""The random numbers of a run: initial parameters, batches and noise, each a pure function of (seed, run, step)."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore import kernels


@dataclasses.dataclass(frozen=True)
class Streams:
    """Draws for a block of consecutive runs; row r belongs to run first_run + r and depends on nothing else."""

    seed: int
    dtype: str

    def initial(self, num_runs: int, size: int, *, first_run: int) -> np.ndarray:
        """(runs, size) float64, uniform in (0, 1)."""
        out: np.ndarray = kernels.uniform(
            (num_runs, size), seed=self.seed, purpose=kernels.Stream.INIT, first_row=first_run
        )
        return out

    def initial_normal(self, num_runs: int, size: int, *, first_run: int) -> np.ndarray:
        """(runs, size) float64, standard normal."""
        out: np.ndarray = kernels.standard_normal(
            (num_runs, size), seed=self.seed, purpose=kernels.Stream.INIT_GLOROT, first_row=first_run
        )
        return out

    def initial_noise(self, num_runs: int, size: int, *, first_run: int) -> np.ndarray:
        """(runs, size) float64, standard normal: what each run adds to its initial parameters."""
        out: np.ndarray = kernels.standard_normal(
            (num_runs, size), seed=self.seed, purpose=kernels.Stream.INIT_NOISE, first_row=first_run
        )
        return out

    def order(self, num_runs: int, rows: int, epoch: int, *, first_run: int) -> np.ndarray:
        """(runs, rows) int64: each run's order of the rows in this epoch; no order is likelier than another by more
        than a factor 1 + rows²/2³³."""
        draws = self._of_rows(num_runs, rows, epoch, first_run)
        # The draw's 32 bits above the row's number: all keys differ, so that any sorting algorithm gives one order.
        keys = (draws * 2.0**32).astype(np.uint64) << np.uint64(32) | np.arange(rows, dtype=np.uint64)
        keys.sort(axis=1)
        return np.asarray(keys & np.uint64(0xFFFFFFFF)).astype(np.int64)

    def batch(self, num_runs: int, rows: int, sample_rate: float, step: int, *, first_run: int) -> np.ndarray:
        """(runs, rows) bool: which rows each run samples in this step; q is met to 2⁻³³."""
        return self._of_rows(num_runs, rows, step, first_run) < sample_rate

    def allocation(self, num_runs: int, rows: int, batches: int, epoch: int, *, first_run: int) -> np.ndarray:
        """(runs, rows) int64 in [0, batches): the batch of this epoch that each row draws; no batch is likelier than
        another by more than a factor 1 + batches/2³²."""
        draws = self._of_rows(num_runs, rows, epoch, first_run)
        return np.asarray((draws * batches).astype(np.int64))

    def noise(self, num_runs: int, size: int, step: int, *, first_run: int) -> np.ndarray:
        """(runs, size) standard normal."""
        out: np.ndarray = kernels.standard_normal(
            (num_runs, size),
            seed=self.seed,
            purpose=kernels.Stream.CLIP_NOISE,
            step=step,
            first_row=first_run,
            dtype=self.dtype,
        )
        return out

    def _of_rows(self, num_runs: int, rows: int, step: int, first_run: int) -> np.ndarray:
        """(runs, rows) uniforms that decide which rows are in a batch: all batches of a run are drawn in one way."""
        draws: np.ndarray = kernels.uniform(
            (num_runs, rows), seed=self.seed, purpose=kernels.Stream.BATCH, step=step, first_row=first_run
        )
        return draws
