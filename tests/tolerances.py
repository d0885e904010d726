"""How far a kernel may be from its reference, and why: every tolerance of tests/kernels is derived here.

u = 2⁻⁵³ is the unit roundoff of float64, in which kernels and references accumulate; results are rounded once to their
own type. First-order bounds; sums of n terms err by at most n·u·Σ|terms| in any order (Higham, Accuracy and Stability,
§4.2). Each bound is for kernel and reference together, hence the factors of two.
"""

from __future__ import annotations

import math

import numpy as np

from leakcore.kernels import Allocation

HANG = 1500.0
"""Seconds after which a test calls a process hung. One that works needs a hundredth of it, also on a machine with
twenty other jobs; the limit of pytest-timeout in pyproject.toml lies above it."""

U64 = 2.0**-53
U32 = 2.0**-24


def elementary_ulps(tier: str) -> float:
    """exp, log, …: one rounding in the last addition, half a unit each for the one before it and for the reduction;
    the baseline rounds before each addition, too."""
    return 3.5 if tier == "baseline" else 2.5


NORMAL_ABS = 1.2e-14
"""Box–Muller against NumPy: the reference rounds the angle 2πb ≤ 6.28 three times, 1.5e-15 in all; times the radius of
at most 6.77 that is 1e-14. Log, square root, sine and product add a few units of a result of at most 6.77."""


def rounding(dtype: np.dtype) -> float:
    """Relative error of the one rounding to the result's type."""
    return U64 if dtype == np.float64 else U32


NARROW_NORM = 1.5 * U32
"""Relative, of elements of 16 bits on the CPU: of four squares, exact in float32, the last three are added there, and
the root halves that."""

NARROW_SUM = 6.5 * U32
"""Relative to the terms of a clipped sum of such elements: the norm's error and one rounding in the factor, and of four
rows the first product is rounded and added to three times, each time in float32."""


def norm(columns: int, dtype: np.dtype, narrow: bool = False) -> float:
    """Relative: a sum of D squares, its root, kernel and reference, and one rounding to the result's type."""
    return 2 * (columns + 4) * U64 + rounding(dtype) + NARROW_NORM * narrow


def clipped_sum(
    rows: int, columns: int, terms: np.ndarray, total: np.ndarray, dtype: np.dtype, narrow: bool = False
) -> np.ndarray:
    """Absolute, per column: B terms with the norm's relative error in their factors; `terms` = Σ|f·g| + |σCz|."""
    relative = 2 * (rows + columns + 8) * U64 + NARROW_SUM * narrow
    return relative * terms + rounding(dtype) * np.abs(total) + np.finfo(np.float32).tiny


def score(columns: int, terms: np.ndarray, total: np.ndarray, dtype: np.dtype, narrow: bool = False) -> np.ndarray:
    """Absolute: D products and a clip factor; `terms` = Σ|f·g·o|."""
    relative = 2 * (2 * columns + 8) * U64 + NARROW_NORM * narrow
    return relative * terms + rounding(dtype) * np.abs(total) + np.finfo(np.float32).tiny


def float_score(columns: int, terms: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Absolute: 32 products added in float32 round each at most 32 times, the product itself and the sum of two lanes
    once more, and what underflows loses at most 2⁻¹²⁶."""
    return 35 * U32 * terms + score(columns, terms, total, np.dtype(np.float32), True) + columns * 2.0**-126


def least_squares(rows: int, columns: int, condition: float, solution: float, outside: float) -> float:
    """Absolute in ‖x‖, before the rounding to the result's type: both routes are backward stable with a factor of
    max(N, d) (Higham, §20.3), so each errs by max(N, d)·u·κ·(‖x‖ + κ·‖residual‖/‖C‖), times a constant: 20."""
    return 2 * 20 * max(rows, columns, 1) * U64 * condition * (solution + condition * outside)


def normal_leverage(rows: int, columns: int, jacobian: np.ndarray, leverage: np.ndarray) -> float:
    """Relative: R⁻¹R⁻ᵀ errs by at most (d + 5N + 10)·u·κ'², κ'² = N·Σ‖c_r‖²·leverage_r, and a leverage by twice that,
    as long as normal equations are accepted (csrc/solve_labels/normal_equations.h), up to 2⁻²⁰. QR errs by a multiple
    of κ'."""
    inflation = float(((jacobian**2).sum(axis=1) * leverage).sum())
    square = rows * inflation
    squared_route = min((columns + 5 * rows + 10) * U64 * square, 2.0**-20)
    return 2 * squared_route + 40 * max(rows, columns) * U64 * square**0.5


def log_ratio(sigma: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """Absolute: |d log f/d exponent| ≤ 1, so each step passes on its exponent's error: the normal's over σ, and four
    roundings of a number up to 6.77/σ + 1.5/σ². Its factor adds 20 roundings near 1 or of the term; the sum adds T."""
    sigma = np.maximum(np.asarray(sigma, dtype=np.float64), 1e-300)
    reach = np.minimum(6.77 / sigma + 1.5 / sigma / sigma, 1e300)
    per_step = np.minimum(NORMAL_ABS / sigma + 4 * U64 * reach + 20 * U64, 1e300)
    return per_step.sum() + 2 * (len(sigma) + 2) * U64 * np.abs(ratios)


def log_ratio_float32(sigma: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """Absolute, dtype="float32" against float64: the normals err by 6 units of 2⁻²⁴ at most (radius 3, cosine 2,
    product 1), the exponent adds a rounding, its factor and the product of four 8 more; the result is rounded once."""
    sigma = np.maximum(np.asarray(sigma, dtype=np.float64), 1e-300)
    reach = np.minimum(6.77 / sigma + 1.5 / sigma / sigma, 1e300)
    return log_ratio(sigma, ratios) + U32 * (np.minimum(7 * reach + 8, 1e300).sum() + np.abs(ratios))


def allocation(pair: Allocation, ratios: np.ndarray) -> np.ndarray:
    """Absolute, of `allocation_log_ratio`: derivatives in an epoch's exponents add up to k, those of the two parts that
    k > b/2 is put together from to b. An exponent has its normals' errors over σ, and a rounding for each column and
    four more. Every bin then adds 30 roundings of a positive term, or as many of the logarithms as the levels carry,
    which reach (m + 1) exponents; kernel and reference alike. The logarithm of C(b, k) and the sum over epochs come
    last."""
    if pair.factor is None:
        size, square, columns = 1.0, 1.0, 1
    else:
        dense = np.abs(pair.factor if isinstance(pair.factor, np.ndarray) else pair.factor.toarray())
        size, square, columns = dense.sum(axis=1).max(), (dense**2).sum(axis=1).max(), dense.shape[1]
    sigma, levels = pair.noise_multiplier, min(pair.k, pair.bins - pair.k) + 1
    reach = 6.77 * size / sigma + 1.5 * square / sigma / sigma
    exponent = NORMAL_ABS * size / sigma + 2 * (columns + 4) * U64 * reach
    weight = pair.k if pair.k <= pair.bins - pair.k else pair.bins
    subsets = math.log(math.comb(pair.bins, pair.k))
    epoch = weight * exponent + pair.bins * U64 * (30 + 6 * levels * reach) + 10 * U64 * subsets
    return pair.epochs * epoch + 2 * (pair.epochs + 2) * U64 * np.abs(ratios)


def allocation_float32(pair: Allocation, ratios: np.ndarray) -> np.ndarray:
    """Absolute, dtype="float32" against float64: as `log_ratio_float32`, the normals err by 6 units of 2⁻²⁴ and the
    exponent by one more; a term and the sum of four add 8. All terms are positive, or add up to no less than −15/16;
    there the sum, 1 at most, is divided by 1/16."""
    sigma = pair.noise_multiplier
    reach = 6.77 / sigma + 1.5 / sigma**2
    return allocation(pair, ratios) + U32 * (pair.epochs * 16 * (7 * reach + 8) + np.abs(ratios))


def tail_sum(count: np.ndarray, total: np.ndarray, ratio_error: float) -> np.ndarray:
    """Absolute: a summand moves with its ratio's error, and carries two units of its own; the sum itself is exact."""
    return (ratio_error + 6 * U64) * np.maximum(np.abs(total), count)
