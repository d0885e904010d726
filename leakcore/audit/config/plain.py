"""Values of Python callers as the plain ones that a file holds: pydantic takes no number of NumPy's for a number."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np

from leakcore._base import array_memory


def plain(value: Any) -> Any:
    """A list of plain values, a path as text, a number of any library as Python's; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return tuple(_scalar(item) for item in value)
    return str(value) if isinstance(value, Path) else _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, np.ndarray) or array_memory.is_torch(value):
        try:
            array = array_memory.array("", value)
        except (TypeError, ValueError):  # no memory that may be read
            return value
        if array.size != 1:
            return value
        value = array.reshape(())[()]
    if isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, np.generic):
        return _of_numpy(value)
    try:
        return operator.index(value) if hasattr(type(value), "__index__") else float(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _of_numpy(value: np.generic) -> Any:
    number = {"b": bool, "i": int, "u": int, "f": float}.get(value.dtype.kind)
    return value if number is None else number(value)
