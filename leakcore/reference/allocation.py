"""The definition of random allocation: its samples and log ratio in NumPy float64 (Chua et al. 2025; with correlated
noise Choquette-Choo et al. 2024).

A `pair` has the attributes of `kernels.Allocation`, its factor an array or None.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from leakcore.reference import philox


def samples(pair: Any, num_samples: int, *, under: str = "null", seed: int = 0, first_sample: int = 0) -> np.ndarray:
    """y, `(num_samples, epochs, bins)`: σ·F·z; under the alternative plus 1 in the first k bins, which stand for any k
    of them, or with a factor plus column J of G = F·Fᵀ."""
    columns = pair.bins if pair.factor is None else pair.factor.shape[1]
    alternative = int(under == "alternative")
    rows = {"seed": seed, "first_row": first_sample}
    z = philox.standard_normal(num_samples, pair.epochs * columns, purpose=philox.ALLOCATION, step=alternative, **rows)
    z = z.reshape(num_samples, pair.epochs, columns)
    if pair.factor is None:
        y: np.ndarray = pair.noise_multiplier * z
        y[..., : pair.k] += alternative
        return y
    y = pair.noise_multiplier * (z @ pair.factor.T)
    if alternative:
        words = philox.words(num_samples, 2 * pair.epochs, purpose=philox.ALLOCATION_PICK, **rows).astype(object)
        drawn = (words[:, 0::2] * 2**32 + words[:, 1::2]) * pair.bins // 2**64
        y += (pair.factor @ pair.factor.T)[drawn.astype(np.int64)]
    return y


def log_ratio(y: np.ndarray, pair: Any) -> np.ndarray:
    """Σ over epochs of log e_k(w)/C(b, k), w_j = exp((y_j − G_jj/2)/σ²), by logarithms throughout."""
    square = np.ones(pair.bins) if pair.factor is None else (pair.factor**2).sum(axis=1)
    # In this order, so that a square beyond float64 is none where the exponent is not.
    exponents = (y / pair.noise_multiplier - 0.5 * square / pair.noise_multiplier) / pair.noise_multiplier
    levels = [np.zeros(y.shape[:-1]), *(np.full(y.shape[:-1], -np.inf) for _ in range(pair.k))]
    for j in range(pair.bins):
        for level in range(pair.k, 0, -1):
            levels[level] = np.logaddexp(levels[level], levels[level - 1] + exponents[..., j])
    return np.asarray((levels[pair.k] - math.log(math.comb(pair.bins, pair.k))).sum(axis=-1))
