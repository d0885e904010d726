"""Clipped gradient sums of many multilayer perceptrons at once, each with weights and a batch of its own; CPU only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from leakcore import _C
from leakcore.kernels import arrays

ACTIVATIONS = ("identity", "relu", "leaky_relu", "elu", "tanh", "sigmoid")
"""The activations of the native loops; the position is the number by which they are passed."""
MAX_LAYERS = 16
_PAD = 16

_NO_ROWS = _C.EnsembleRows.none()


@dataclasses.dataclass(frozen=True, eq=False)
class EnsembleRows:
    """Rows as the loops read them: inputs (…, rows, d padded with zeros to a multiple of 16), class numbers (…, rows)
    int64, and ‖(x, 1)‖² (…, rows). A leading axis is one of runs."""

    inputs: np.ndarray
    classes: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray) -> EnsembleRows:
        """A padded copy of (…, rows, d) features, float32 or float64, and (…, rows) labels."""
        width = -(-features.shape[-1] // _PAD) * _PAD
        inputs = np.zeros((*features.shape[:-1], width), features.dtype)
        inputs[..., : features.shape[-1]] = features
        # Beyond the type's range a square is infinite, which becomes NaN in the sum, and that an error of the run.
        with np.errstate(over="ignore"):
            squares = np.einsum("...d,...d->...", features, features) + features.dtype.type(1)
        return cls(inputs, np.ascontiguousarray(labels, dtype=np.int64), np.ascontiguousarray(squares))

    @property
    def count(self) -> int:
        """Rows, of each run where there is an axis of runs."""
        return int(self.classes.shape[-1])


@dataclasses.dataclass(frozen=True, eq=False)
class Taken:
    """Which rows each run takes: rows[offsets[r]:offsets[r + 1]] for run r."""

    rows: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, taken: np.ndarray) -> Taken:
        """Read from (runs, rows) bool."""
        run, row = np.nonzero(taken)
        offsets = np.zeros(len(taken) + 1, np.int64)
        np.cumsum(np.bincount(run, minlength=len(taken)), out=offsets[1:])
        return cls(np.ascontiguousarray(row), offsets)


class EnsembleSums:
    """Σ_b ∇ℓ_b·min{1, C/(‖∇ℓ_b‖ + slack)} for `runs` networks; the loss is cross-entropy of the softmax, or of the
    sigmoid of one output. One per thread: it holds the scratch memory.

    layers: (inputs, hidden…, outputs). activation: one of `ACTIVATIONS`. dtype: "float32" or "float64". A run's bits
    depend on its own weights and rows, in their order, alone. A row whose squared norm is beyond the type makes the sum
    NaN.
    """

    def __init__(
        self, runs: int, layers: tuple[int, ...], activation: str, dtype: str, *, max_grad_norm: float, slack: float
    ) -> None:
        self._native = _C.Networks.of(
            float32=dtype == "float32",
            num_runs=runs,
            layers=list(layers),
            activation=ACTIVATIONS.index(activation),
            max_grad_norm=max_grad_norm,
            slack=slack,
        )
        self._scratch = np.empty(self._native.scratch_bytes(), np.uint8)

    def add(
        self,
        weights: Sequence[int],
        common: EnsembleRows,
        extra: EnsembleRows | None,
        into_common: Sequence[int],
        into_extra: Sequence[int],
        *,
        common_taken: Taken | None = None,
        extra_taken: Taken | None = None,
    ) -> None:
        """Writes the sums over the common rows, which all runs share, and over the extra rows of each run.

        weights, into_common, into_extra: addresses of one (runs, out, in + 1) matrix per layer, bias last. Where there
        are zero rows of a kind, nothing is written. None for `…_taken`: all rows.
        """
        _C.ensemble_sums(
            networks=self._native,
            weights=list(weights),
            common=_native_rows(common, common_taken),
            extra=_native_rows(extra, extra_taken),
            common_sums=list(into_common),
            extra_sums=list(into_extra),
            scratch=arrays.address(self._scratch),
        )


def _native_rows(rows: EnsembleRows | None, taken: Taken | None) -> _C.EnsembleRows:
    if rows is None:
        return _NO_ROWS
    return _C.EnsembleRows.of(
        inputs=arrays.address(rows.inputs),
        classes=arrays.address(rows.classes),
        squares=arrays.address(rows.squares),
        count=rows.count,
        stride=rows.inputs.shape[-1],
        run_stride=rows.count if rows.classes.ndim == 2 else 0,
        index=0 if taken is None else arrays.address(taken.rows),
        offsets=0 if taken is None else arrays.address(taken.offsets),
    )
