"""The range that an input's numbers can have, as attacks take it."""

from __future__ import annotations

from typing import Any

from leakcore._base import validate as check


def read_box(box: Any) -> tuple[float, float]:
    """(low, high) with low below high, either may be infinite; ValueError or TypeError that names `box`."""
    if not isinstance(box, list | tuple) or len(box) != 2:
        raise ValueError(f"box={box!r}: must be a pair, (low, high)")
    low, high = check.real(box=box[0]), check.real(box=box[1])
    if high <= low:
        raise ValueError(f"box=({low}, {high}): low must be below high")
    return low, high


def read_finite_box(box: Any) -> tuple[float, float]:
    """Likewise, of numbers whose squares float32 holds with room."""
    low, high = read_box(box)
    if not (abs(low) < 1e30 and abs(high) < 1e30):
        raise ValueError(f"box=({low}, {high}): must be below 1e30 in size")
    return low, high
