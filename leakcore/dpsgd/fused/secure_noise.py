"""Gaussian noise for models that are released, from the operating system, robust to what rounding reveals."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import memory_limit, validate

_CHUNK = 1 << 18


def secure_normal(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Standard normal variates from operating-system entropy, for models that will be released.

    Each variate is half the sum of four independent normals Φ⁻¹((w + ½)·2⁻⁵³), with w of 53 random bits, so |z| ≤ 16.5.
    The sum blurs the floating-point grid of a single variate, which can reveal which of two nearby inputs was noised
    (Mironov 2012), as proposed by Holohan and Braghin (2021), section 5.1, with n = 2, and as in Opacus's secure mode.

    Args:
        count: how many variates, at least 0.

    Returns:
        (count,) float64, different at every call.

    Raises:
        ValueError: if `count` is negative, or the array would not fit into memory.
        TypeError: if `count` is not an integer.

    Example:
        >>> from leakcore import dpsgd
        >>> noise = dpsgd.secure_normal(10_000)
        >>> noise.shape, f"{noise.std():.0f}"
        ((10000,), '1')
    """
    memory_limit.require(8 * validate.integer(0, None, count=count), count=count)
    out = np.zeros(count)
    for start in range(0, count, _CHUNK):
        part = out[start : start + _CHUNK]
        for _ in range(4):
            bits = np.frombuffer(os.urandom(8 * len(part)), dtype=np.uint64) >> np.uint64(11)
            part += special.ndtri((bits.astype(np.float64) + 0.5) * 2.0**-53)
        part *= 0.5
    return out
