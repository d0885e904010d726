"""The label-privacy lower bound by the literal algorithm, one inverse per row; the closed form must equal it."""

from __future__ import annotations

import numpy as np
from scipy import special


def label_lower_bounds(
    jacobian: np.ndarray,
    probs: np.ndarray,
    labels: np.ndarray,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    delta: float,
    grad_norms: np.ndarray | None = None,
    inverse_per_row: bool = True,
) -> np.ndarray:
    """LB_r of every row r, by Algorithm 2 of Yuan, Xue, Wang and Shen (2022), step by step.

    Args:
        jacobian: (N, d), row r = dZ_r/dW, of rank N.
        probs: (N,).
        labels: (N,) of 0 and 1.
        noise_multiplier: σ, above 0.
        max_grad_norm: C, above 0.
        delta: δ.
        grad_norms: (2, N), joint gradient norms of each row under its own and under the flipped label, used for
            clipping instead of the norm of this weight vector's gradient; None: as printed.
        inverse_per_row: True as printed; False computes (CᵀC)⁻¹, which is the same for every row, once.

    Returns:
        (N,) float64; −∞ where P_0 ≤ δ.
    """
    c = np.asarray(jacobian, dtype=np.float64).T
    p = np.asarray(probs, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    n = p.size
    s = noise_multiplier * max_grad_norm / n

    def clipped_gradient(r: int, label: float, dataset: int) -> np.ndarray:
        gradient = c[:, r] * (p[r] - label)
        norm = float(np.linalg.norm(gradient)) if grad_norms is None else float(grad_norms[dataset, r])
        return np.asarray(gradient / max(1.0, norm / max_grad_norm))

    g0 = [clipped_gradient(r, y[r], 0) for r in range(n)]
    mean0 = np.sum(g0, axis=0) / n
    out = np.empty(n)
    inverse = np.empty(0)
    for r in range(n):
        g1 = clipped_gradient(r, 1.0 - y[r], 1)
        mean1 = mean0 + (g1 - g0[r]) / n
        unit = np.zeros(n)
        unit[r] = 1.0
        if inverse_per_row or r == 0:
            inverse = np.linalg.inv(c.T @ c)
        sign = (-1.0) ** y[r]
        spread = s * np.sqrt(unit @ inverse @ unit)
        log_p1 = special.log_ndtr(sign * (unit @ inverse @ c.T @ mean1) / spread)
        p0 = special.ndtr(sign * (unit @ inverse @ c.T @ mean0) / spread)
        out[r] = np.log(p0 - delta) - log_p1 if p0 > delta else -np.inf
    return out
