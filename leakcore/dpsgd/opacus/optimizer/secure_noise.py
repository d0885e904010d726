"""Gaussian noise for models that are released: the operating system's generator, robust to what rounding gives away."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import memory_limit
from leakcore._base import validate as check

_CHUNK = 1 << 18


def secure_normal(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`count` standard normals, float64, from operating-system entropy (`os.urandom`): different at every call.

    Each is half the sum of four independent normals Φ⁻¹((w + ½)·2⁻⁵³), w of 53 random bits: |z| ≤ 16.5. The
    floating-point grid of a single sample, which can tell sums of nearby inputs apart (Mironov 2012), is blurred as
    Holohan and Braghin (2021), section 5.1, propose with n = 2 and as Opacus's secure mode does.
    """
    memory_limit.require(8 * check.integer(0, None, count=count), count=count)
    out = np.zeros(count)
    for start in range(0, count, _CHUNK):
        part = out[start : start + _CHUNK]
        for _ in range(4):
            bits = np.frombuffer(os.urandom(8 * len(part)), dtype=np.uint64) >> np.uint64(11)
            part += special.ndtri((bits.astype(np.float64) + 0.5) * 2.0**-53)
        part *= 0.5
    return out
