"""64-bit seeds and sample indices as the integers that torch's operators take."""

from __future__ import annotations

from typing import Any

_HALF, _WHOLE = 2**63, 2**64


def signed(value: int | None, name: str = "seed") -> int | None:
    """A seed, or the index of a sample, as the 64-bit integer that an operator takes."""
    if value is None or value < _HALF:
        if value is not None and value < 0:
            raise ValueError(f"`{name}` must be in [0, {_WHOLE - 1}], got {value}")
        return value
    return value - _WHOLE if value < _WHOLE else value


def unsigned(value: Any) -> Any:
    """The seed or index that an operator's integer stands for."""
    return value + _WHOLE if value is not None and value < 0 else value
