"""Inner products in an order of their own: a BLAS's depends on how many threads share one, and so do its last bits."""

from __future__ import annotations

import numpy as np


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """Σ a_i·b_i of two float64 arrays of one dimension, by NumPy's pairwise sum."""
    return float((a * b).sum())
