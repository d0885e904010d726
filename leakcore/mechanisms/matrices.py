"""Lower triangular matrices C by which noise is correlated: what is released is Cx + σz, decoded to prefix sums."""

from __future__ import annotations

import numpy as np

from leakcore._base import validate

_MOST_STEPS = 8192


def _steps(steps: int) -> int:
    return validate.integer(1, _MOST_STEPS, steps=steps)


def toeplitz(coefficients: np.ndarray, steps: int) -> np.ndarray:
    """The lower triangular Toeplitz matrix C_{s,t} = coefficients[s − t], 0 beyond the last one.

    Args:
        coefficients: (m,), finite; the first positive.
        steps: T, at most 8192.

    Returns:
        (T, T) float64.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.toeplitz([1.0, 0.5], 3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]
    """
    size = _steps(steps)
    values = validate.real_array("finite", np.isfinite, coefficients=coefficients)
    if values.ndim != 1 or len(values) == 0 or not values[0] > 0.0:
        raise ValueError(f"`coefficients` must be a sequence whose first entry is positive, got {coefficients!r}")
    column = np.zeros(size)
    column[: min(size, len(values))] = values[:size]
    out = np.zeros((size, size))
    for t in range(size):
        out[t:, t] = column[: size - t]
    return out


def square_root(steps: int, *, bands: int | None = None) -> np.ndarray:
    """The square root of the matrix of prefix sums, C² = A: C_{s,t} = binom(2j, j)/4^j, j = s − t.

    It is optimal up to a constant for prefix sums (Fichtenberger, Henzinger and Upadhyay 2023). Cut to `bands`
    diagonals it is the banded square root of Kalinin and Lampert (2024).

    Args:
        steps: T, at most 8192.
        bands: β ≥ 1, diagonals to keep; None: all.

    Returns:
        (T, T) float64.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.square_root(3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.375, 0.5, 1.0]]
    """
    size = _steps(steps)
    width = size if bands is None else min(validate.integer(1, bands=bands), size)
    j = np.arange(1, width)
    return toeplitz(np.concatenate(([1.0], np.cumprod((2.0 * j - 1.0) / (2.0 * j)))), size)


def blt(scales: np.ndarray, decays: np.ndarray, steps: int) -> np.ndarray:
    """A buffered linear Toeplitz matrix: coefficients 1, then Σ_i scales_i·decays_i^{j−1} at distance j ≥ 1.

    Dvijotham et al. (2024). Its noise takes one buffer for each scale.

    Args:
        scales: (d,), at least 0.
        decays: (d,) in [0, 1).
        steps: T, at most 8192.

    Returns:
        (T, T) float64.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.blt([0.5], [0.5], 3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """
    size = _steps(steps)
    weights = validate.real_array("at least 0", lambda v: v >= 0.0, scales=scales)
    rates = validate.real_array("in [0, 1)", lambda v: (v >= 0.0) & (v < 1.0), decays=decays)
    if weights.ndim != 1 or weights.shape != rates.shape:
        raise ValueError(f"`decays` must have the shape of `scales`, {weights.shape}, got {rates.shape}")
    with np.errstate(over="ignore"):
        total = weights.sum()
    if not np.isfinite(total):
        raise ValueError(f"`scales` must have a finite sum, got {scales!r}")
    powers = rates[:, None] ** np.arange(size - 1)
    return toeplitz(np.concatenate(([1.0], weights @ powers)), size)


def tree(steps: int) -> np.ndarray:
    """The binary tree of partial sums: a row for each node, 1 at the steps below it (Dwork et al. 2010).

    Args:
        steps: T, at most 8192.

    Returns:
        (nodes, T) float64; nodes that no step is below are left out.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.tree(2).tolist()
        [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    size = _steps(steps)
    rows, width = [], 1
    while True:
        for start in range(0, size, width):
            row = np.zeros(size)
            row[start : start + width] = 1.0
            rows.append(row)
        if width >= size:
            return np.array(rows)
        width *= 2
