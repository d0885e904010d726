"""The definition of the mixture: its samples, log ratio and tails in NumPy float64 (Hayes et al. 2023, Corollary 4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from leakcore.reference import philox


def samples(
    num_samples: int,
    *,
    noise_multiplier: np.ndarray,
    sample_rate: np.ndarray,
    under: str = "null",
    seed: int = 0,
    first_sample: int = 0,
) -> np.ndarray:
    """x, `(num_samples, T)`: σ_t·z, plus 1 with probability q_t under the alternative; σ and q of shape `(T,)`."""
    steps = len(noise_multiplier)
    purpose = philox.MIXTURE_ONE if steps == 1 else philox.MIXTURE
    alternative = int(under == "alternative")
    z = _draws(philox.standard_normal, num_samples, steps, first_sample, seed=seed, purpose=purpose, step=alternative)
    x: np.ndarray = noise_multiplier * z
    return x + picks(num_samples, sample_rate, seed=seed, first_sample=first_sample) if alternative else x


def picks(num_samples: int, sample_rate: np.ndarray, *, seed: int, first_sample: int) -> np.ndarray:
    """1 with probability q_t: 64 random bits, as two 32-bit words, below q_t·2⁶⁴."""
    steps = len(sample_rate)
    purpose = philox.MIXTURE_ONE_PICK if steps == 1 else philox.MIXTURE_PICK
    high, low = (
        _draws(philox.words, num_samples, steps, first_sample, seed=seed, purpose=purpose, step=half) for half in (0, 1)
    )
    limits = [math.floor(q * 2**32) for q in sample_rate]
    rests = [math.floor((q * 2**32 - limit) * 2**32) for q, limit in zip(sample_rate, limits, strict=True)]
    return np.where(high == np.array(limits), low < np.array(rests), high < np.array(limits)).astype(np.float64)


def _draws(
    draw: Callable[..., np.ndarray], num_samples: int, steps: int, first_sample: int, **stream: int
) -> np.ndarray:
    """`(num_samples, steps)`: sample i is row i. At T = 1 it is draw i % 4 of row i // 4, so that none is wasted."""
    if steps != 1:
        return draw(num_samples, steps, first_row=first_sample, **stream)
    first_row, skip = divmod(first_sample, 4)
    rows = draw((skip + num_samples + 3) // 4, 4, first_row=first_row, **stream)
    return rows.reshape(-1, 1)[skip : skip + num_samples]


def log_ratio(x: np.ndarray, *, noise_multiplier: np.ndarray, sample_rate: np.ndarray) -> np.ndarray:
    """Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))), each step in whichever form loses nothing."""
    sigma, q = np.broadcast_to(noise_multiplier, x.shape), np.broadcast_to(sample_rate, x.shape)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        exponent = np.where(sigma > 0, (x / sigma - 0.5 / sigma) / sigma, np.where(x > 0.5, np.inf, -np.inf))
        near = np.log1p(q * np.expm1(np.minimum(exponent, 700.0)))
        plain = np.log((1.0 - q) + q * np.exp(np.minimum(exponent, 700.0)))
        far = exponent + (np.log(q) + np.log1p((1.0 - q) / q * np.exp(-exponent)))
    terms = np.where(exponent > 700.0, far, np.where((q <= 0.5) | (exponent > -0.5), near, plain))
    terms = np.where(q == 1.0, exponent, np.where(q == 0.0, 0.0, terms))
    return np.asarray(terms.sum(axis=-1))


def tail(ratios: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(counts of L ≥ t, the two sums of (1 − e^{t−L})₊ and e^{−L}·1{L ≥ t}, correctly rounded by `math.fsum`)."""
    flat = np.asarray(thresholds, dtype=np.float64).reshape(-1)
    counts = np.array([int((ratios >= t).sum()) for t in flat], dtype=np.int64)
    sums = np.empty((2, flat.size))
    for j, t in enumerate(flat):
        above = ratios[ratios >= t]
        sums[0, j] = math.fsum(-np.expm1(t - above)) if math.isfinite(t) else (len(above) if t < 0 else 0.0)
        sums[1, j] = math.fsum(np.exp(-above))
    shape = np.shape(thresholds)
    return counts.reshape(shape), sums.reshape(2, *shape)
