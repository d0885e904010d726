"""Columns of any size, each brought to its own range."""

from __future__ import annotations

import numpy as np


class ColumnScaler:
    """A scale for rows (n, d): each column minus its mean, divided by the largest distance from it. Trees ask only for
    the order within a column, which this keeps; but they read float32, and take columns that spread over less than 1e-7
    for constant, as gradients of a trained network do. Looks at no label."""

    def __init__(self, rows: np.ndarray) -> None:
        self._top = _or_one(np.abs(rows).max(axis=0))
        part = rows / self._top
        self._centre = part.mean(axis=0)
        self._reach = _or_one(np.abs(part - self._centre).max(axis=0))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(m, d) float32: other rows on the scale of those given, the largest of float32 at most."""
        largest = np.finfo(np.float32).max
        with np.errstate(over="ignore"):
            ready = (rows / self._top - self._centre) / self._reach
        return np.asarray(np.clip(ready, -largest, largest), dtype=np.float32)


def _or_one(sizes: np.ndarray) -> np.ndarray:
    return np.where(sizes > 0, sizes, 1.0)
