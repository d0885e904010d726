"""What label solving means: a pseudo-inverse by singular value decomposition, in NumPy float64."""

from __future__ import annotations

import numpy as np


def solve_labels(
    jacobian: np.ndarray, gradient: np.ndarray, *, rcond: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """One problem: (N·C⁺·G, diag((CᵀC)⁺), the diagonal of C⁺C, rank), C = jacobianᵀ."""
    rows = np.asarray(jacobian, dtype=np.float64)
    n, _ = rows.shape
    if rows.size == 0:
        return np.zeros((n, *gradient.shape[1:])), np.zeros(n), np.zeros(n), 0
    u, s, vt = np.linalg.svd(rows, full_matrices=False)  # rows = U·S·Vᵀ, so C⁺ = U·S⁻¹·Vᵀ and C⁺C = U·Uᵀ
    keep = s > rcond * s[0]
    scaled = u[:, keep] / s[keep]
    residual = n * (scaled @ (vt[keep] @ np.asarray(gradient, dtype=np.float64)))
    return residual, (scaled**2).sum(axis=1), (u[:, keep] ** 2).sum(axis=1), int(keep.sum())
