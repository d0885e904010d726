"""The range of an input's numbers, as attacks take it."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore._base import array_memory, validate


def read_box(box: Any) -> tuple[float, float]:
    """(low, high) with low below high, either may be infinite; ValueError or TypeError that names `box`.

    An array of two numbers is also a pair.
    """
    pair = box
    if isinstance(box, np.ndarray) or array_memory.is_torch(box):
        array = validate.plain_array(box=box)
        pair = array.tolist() if array.ndim == 1 else None
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        # The text of an array may need memory that it lacks.
        plain = isinstance(box, str | bytes | int | float | type(None))
        text = repr(box) if plain else f"a {type(box).__name__}"
        raise ValueError(f"`box` must be a pair, (low, high), got {text}")
    low, high = validate.real(box=pair[0]), validate.real(box=pair[1])
    if high <= low:
        raise ValueError(f"`box` must have low below high, got ({low}, {high})")
    return low, high


def read_finite_box(box: Any) -> tuple[float, float]:
    """As `read_box`, for numbers whose squares fit float32 with room to spare."""
    low, high = read_box(box)
    if not (abs(low) < 1e30 and abs(high) < 1e30):
        raise ValueError(f"`box` must hold numbers below 1e30 in magnitude, got ({low}, {high})")
    return low, high
