"""Equality by value, arrays and NaN included."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same: every number, type of element, shape and field; NaN equals NaN.

    A list and a tuple of equal values are equal, as are mappings in any order.
    """
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return _equal_arrays(one, other)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names = [f.name for f in dataclasses.fields(one) if f.compare]
        return type(one) is type(other) and all(equal(getattr(one, n), getattr(other, n)) for n in names)
    if _is_array(one) or _is_array(other):
        return _equal_elsewhere(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) or bool(one != one and other != other)


def _equal_arrays(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def _is_array(value: Any) -> bool:
    """Whether it is a torch tensor, or an array of a library such as CuPy or JAX."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, np.generic)


def _equal_elsewhere(one: Any, other: Any) -> bool:
    """For arrays that another library holds, perhaps on a device: it compares them there."""
    if type(one) is not type(other) or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if getattr(one, "device", None) != getattr(other, "device", None):
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
