"""Which of many columns may depend on the other side: a screen on training rows, before a network reads a few."""

from __future__ import annotations

import numpy as np

MOST_PAIRS = 20_000_000
"""Numbers in a matrix of correlations, or in a block of columns, at a time (160 MB)."""


def screen(columns: np.ndarray, other: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` columns most correlated with a column of `other`, on `rows` alone.

    The score of a column is its largest absolute correlation, or that of its distance from its median (which shows what
    its sign hides), with any column of `other`. Since columns are chosen on training rows, the others can still be held
    out.

    Args:
        columns: (n, d).
        other: (n, k).
        rows: the training rows.
        count: how many columns.
    """
    some, target = columns[rows], _standardised(other[rows])
    scores = np.zeros(columns.shape[1])
    width = max(1, MOST_PAIRS // max(len(rows), target.shape[1]))
    for start in range(0, columns.shape[1], width):
        block = some[:, start : start + width]
        for view in (block, np.abs(block - np.median(block, axis=0))):
            correlations = np.abs(_standardised(view).T @ target)
            np.maximum(scores[start : start + width], correlations.max(axis=1), out=scores[start : start + width])
    return np.sort(np.argsort(-scores, kind="stable")[:count])


def _standardised(columns: np.ndarray) -> np.ndarray:
    """Mean 0 and norm 1, a constant column all 0."""
    centred = columns - columns.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    return np.asarray(centred / np.where(norms > 1e-12 * np.abs(columns).max(axis=0, initial=0.0), norms, np.inf))
