"""The definition of label solving: a pseudo-inverse by singular value decomposition, in NumPy float64."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The solution of one problem.

    Attributes:
        residual: N·C⁺·G.
        leverage: diag((CᵀC)⁺).
        null: each sample's weight in the null space of C, √(1 − (C⁺C)_rr).
        rank: number of singular values above the cut.
        singular_values: of C.
    """

    residual: np.ndarray
    leverage: np.ndarray
    null: np.ndarray
    rank: int
    singular_values: np.ndarray


def solve_labels(jacobian: np.ndarray, gradient: np.ndarray, *, rcond: float) -> Solution:
    """One problem: jacobian `(N, d)` is Cᵀ, gradient `(d,)` or `(d, K)`. Singular values below the cut are 0."""
    rows = np.asarray(jacobian, dtype=np.float64)
    n = len(rows)
    if rows.size == 0:
        return Solution(np.zeros((n, *gradient.shape[1:])), np.zeros(n), np.ones(n), 0, np.zeros(0))
    u, s, vt = np.linalg.svd(rows, full_matrices=True)  # rows = U·S·Vᵀ, so C⁺ = U·S⁻¹·Vᵀ and C⁺C = U·Uᵀ
    rank = int((s > rcond * s[0]).sum())
    scaled = u[:, :rank] / s[:rank]
    return Solution(
        residual=n * (scaled @ (vt[:rank] @ np.asarray(gradient, dtype=np.float64))),
        leverage=(scaled**2).sum(axis=1),
        null=np.sqrt((u[:, rank:] ** 2).sum(axis=1)),
        rank=rank,
        singular_values=s,
    )


def identifiable_limit(solution: Solution, *, rcond: float) -> float:
    """The largest weight in the null space of a label that counts as determined: rcond·‖C‖·‖C⁺‖, at most 1e-3."""
    return min(rcond * float(np.linalg.norm(solution.singular_values)) * float(np.sqrt(solution.leverage.sum())), 1e-3)
