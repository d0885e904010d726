"""The same values in every memory layout a caller may hand over, and the seeds of hypothesis turned into arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

LAYOUTS = ("contiguous", "fortran", "reversed", "sliced", "offset")
DTYPES = ("float32", "float64")

layouts = st.sampled_from(LAYOUTS)
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32 - 1)

checked = settings(derandomize=True, deadline=None, max_examples=60)


def laid_out(values: np.ndarray, layout: str) -> np.ndarray:
    """An array equal to `values`, in the strides of the named layout."""
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout == "reversed":
        back = (slice(None, None, -1),) * values.ndim
        return values[back].copy()[back]
    if layout == "sliced":
        big = np.full([2 * n + 1 for n in values.shape], np.nan, dtype=values.dtype)
        every_other = big[tuple(slice(1, 1 + 2 * n, 2) for n in values.shape)]
        every_other[...] = values
        return every_other
    if layout == "offset":
        big = np.full([n + 3 for n in values.shape], np.nan, dtype=values.dtype)
        inside = big[tuple(slice(2, 2 + n) for n in values.shape)]
        inside[...] = values
        return inside
    return np.ascontiguousarray(values)


def normals(seed: int, *shape: int, dtype: str = "float64", scale: float = 1.0) -> np.ndarray:
    """Standard normals of NumPy's own generator, times `scale`."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)
