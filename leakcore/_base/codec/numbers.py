"""Numbers and arrays of numbers in JSON: every float64 exactly, infinities and NaN as words, zeros left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from leakcore._base import memory_limit
from leakcore._base.printable import printable

WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
PLAIN_TYPES = ("float64", "int64", "bool")
"""Element types that a JSON list of numbers already tells."""
MISSING: Any = object()
"""What a reader returns of a value that is not of its type."""
_SPARSE = 1024
"""An array of at least this many numbers that is mostly zeros is written as its other cells."""
_LARGEST = 2**26
"""Numbers that a few cells may stand for."""


def number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [numbers(v) for v in value]
    return number(value) if isinstance(value, float) else value


def array_in_json(array: np.ndarray, *, as_list: bool) -> Any:
    """As a list, where the reader knows that it is an array and a list says all; else with its type and shape."""
    dtype = array.dtype.str if array.dtype.kind == "U" else array.dtype.name
    facts = {"dtype": dtype, "shape": list(array.shape)}
    if array.size >= _SPARSE and array.dtype.kind in "biu" and 3 * np.count_nonzero(array) < array.size:
        flat = array.reshape(-1)
        return {"cells": [[int(i), numbers(flat[i].item())] for i in np.flatnonzero(flat)], **facts}
    values = numbers(array.tolist())
    if as_list and array.ndim and array.size and dtype in PLAIN_TYPES:
        return values
    return {"array": values, **facts}


def float_of(plain: Any) -> Any:
    if isinstance(plain, str):
        return WORDS.get(plain, MISSING)
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        return MISSING
    try:
        return float(plain)
    except OverflowError:
        return MISSING


def plain_array(plain: list[Any]) -> Any:
    """An array of float64, int64 or bool, as `_array` writes those; MISSING for any other list."""
    try:
        array = np.array(plain)
        if array.dtype.kind == "U":  # numbers among them are infinite
            array = np.array(floats(plain), dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return array if array.size and array.dtype.name in PLAIN_TYPES else MISSING


def floats(plain: Any) -> Any:
    if isinstance(plain, list):
        return [floats(v) for v in plain]
    if (value := float_of(plain)) is MISSING:
        raise ValueError(f"{printable(repr(plain), 60)} is not a number")
    return value


def tagged_array(plain: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(str(plain["dtype"]))
    shape = tuple(int(n) for n in plain["shape"])
    if dtype.kind not in "biufU" or min(shape, default=0) < 0:
        raise ValueError(f"dtype {dtype}, shape {shape}")
    if "cells" in plain:
        size = math.prod(shape)
        if size > _LARGEST:
            raise ValueError(f"{size:,} numbers, at most {_LARGEST:,} are read")
        memory_limit.require(size * dtype.itemsize, size=size)
        flat = np.zeros(size, dtype)
        for cell, number in plain["cells"]:
            if type(cell) is not int or cell < 0:
                raise IndexError(f"cell {cell}")
            flat[cell] = float_of(number) if dtype.kind == "f" else number
        return flat.reshape(shape)
    values = floats(plain["array"]) if dtype.kind == "f" else plain["array"]
    array = np.array(values, dtype=dtype)
    if array.size != math.prod(shape):
        raise ValueError(f"{array.size} numbers, not {math.prod(shape)}")
    return array.reshape(shape)
