"""The definition of the random numbers: Philox4x32-10 (Salmon et al. 2011) and the normals from it, in NumPy."""

from __future__ import annotations

import numpy as np

MIXTURE, CLIP_NOISE, MIXTURE_PICK, MIXTURE_ONE, MIXTURE_ONE_PICK = 1, 2, 6, 8, 9
ALLOCATION, ALLOCATION_PICK = 78, 79
_MASK = np.uint64(0xFFFFFFFF)


def philox4x32(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Ten rounds on counters `(..., 4)` and keys `(..., 2)` of 32-bit words; `(..., 4)` uint64 words below 2³²."""
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    k0, k1 = np.moveaxis(np.asarray(key, dtype=np.uint64), -1, 0)
    for _ in range(10):
        a = c0 * np.uint64(0xD2511F53)
        b = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & _MASK, (a >> np.uint64(32)) ^ c3 ^ k1, a & _MASK
        k0 = (k0 + np.uint64(0x9E3779B9)) & _MASK
        k1 = (k1 + np.uint64(0xBB67AE85)) & _MASK
    return np.stack([c0, c1, c2, c3], axis=-1)


def words(num_rows: int, num_cols: int, *, seed: int, purpose: int, step: int = 0, first_row: int = 0) -> np.ndarray:
    """32-bit words, row r of sample first_row + r: counter (draw // 4, purpose·2²⁴ + step, sample low, sample high)."""
    blocks = (num_cols + 3) // 4
    counter = np.zeros((num_rows, blocks, 4), dtype=np.uint64)
    rows = np.uint64(first_row) + np.arange(num_rows, dtype=np.uint64)
    counter[..., 0] = np.arange(blocks, dtype=np.uint64)
    counter[..., 1] = (purpose << 24) | step
    counter[..., 2] = (rows & _MASK)[:, None]
    counter[..., 3] = (rows >> np.uint64(32))[:, None]
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint64)
    return philox4x32(counter, key).reshape(num_rows, 4 * blocks)[:, :num_cols]


def uniform(num_rows: int, num_cols: int, *, seed: int, purpose: int, step: int = 0, first_row: int = 0) -> np.ndarray:
    """(w + ½)·2⁻³²."""
    drawn = words(num_rows, num_cols, seed=seed, purpose=purpose, step=step, first_row=first_row)
    return (drawn.astype(np.float64) + 0.5) * 2.0**-32


def standard_normal(
    num_rows: int, num_cols: int, *, seed: int, purpose: int, step: int = 0, first_row: int = 0
) -> np.ndarray:
    """Box–Muller: uniforms (a, b) give √(−2 log a)·cos 2πb and √(−2 log a)·sin 2πb."""
    even = num_cols + num_cols % 2
    u = uniform(num_rows, even, seed=seed, purpose=purpose, step=step, first_row=first_row)
    radius = np.sqrt(-2.0 * np.log(u[:, 0::2]))
    angle = 2.0 * np.pi * u[:, 1::2]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return pairs.reshape(num_rows, even)[:, :num_cols]
