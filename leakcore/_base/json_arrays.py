"""Numbers and arrays of numbers in JSON: every float64 exactly, infinities and NaN as words, zeros left out.

What is read of an array is exactly what a writer writes: a list as deep as the shape says, every element of the type's
own kind, none cut or rounded away. Where a few characters stand for many bytes (zeros that are left out, texts as wide
as the longest), the bytes of all arrays of one value are counted.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from leakcore._base.reading import FREE
from leakcore._base.text import repr_of

WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
PLAIN_TYPES = ("float64", "int64", "bool")
"""Element types that a JSON list of numbers already tells."""
MISSING: Any = object()
"""What a reader returns of a value that is not of its type."""
_SPARSE = 1024
"""An array of at least this many numbers that is mostly zeros is written as its other cells."""
_TYPES = {
    name: np.dtype(name)
    for name in (
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
    )
}
_TEXT_TYPE = re.compile(r"[<>|=]?U\d{1,9}")
_DIMENSIONS = 32
_expanded: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("expanded", default=None)


@contextlib.contextmanager
def one_value() -> Iterator[None]:
    """What is read or written in the block is one value: `expands` counts its bytes together, parts included."""
    if _expanded.get() is not None:
        yield
        return
    token = _expanded.set([0])
    try:
        yield
    finally:
        _expanded.reset(token)


def expands(nbytes: int) -> bool:
    """Whether an array that JSON holds in fewer bytes may have so many; they are counted if it may."""
    total = _expanded.get() or [0]
    if total[0] + nbytes > FREE:
        return False
    total[0] += nbytes
    return True


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
    mostly_zeros = array.size >= _SPARSE and array.dtype.kind in "biu" and 3 * np.count_nonzero(array) < array.size
    if mostly_zeros and expands(array.nbytes):
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
    """An array of float64, int64 or bool, as `array_in_json` writes them; MISSING for any other list."""
    shape: list[int] = []
    inside: Any = plain
    while isinstance(inside, list) and inside and len(shape) < _DIMENSIONS:
        shape.append(len(inside))
        inside = inside[0]
    try:
        leaves = list(_leaves(plain, tuple(shape)))
    except ValueError:
        return MISSING
    kinds = {type(leaf) for leaf in leaves}
    if not leaves or not (kinds in ({bool}, {int}) or kinds <= {int, float, str}):
        return MISSING
    name = "bool" if kinds == {bool} else "int64" if kinds == {int} else "float64"
    try:
        return _array_of(leaves, _TYPES[name]).reshape(shape)
    except ValueError:
        return MISSING


def tagged_array(plain: Mapping[str, Any]) -> np.ndarray:
    """The array of {"array": …} or {"cells": …} with dtype and shape; ValueError says what does not fit."""
    dtype, shape = _dtype(plain["dtype"]), _shape(plain["shape"])
    size = math.prod(shape)
    if "cells" in plain:
        if dtype.kind == "U":
            raise ValueError("cells of text are never written")
        _require_expands(size, dtype)
        return _with_cells(plain["cells"], size, dtype).reshape(shape)
    leaves = list(_leaves(plain["array"], shape))
    if dtype.kind == "U":
        _require_expands(size, dtype)
    return _array_of(leaves, dtype).reshape(shape)


def _dtype(name: Any) -> np.dtype[Any]:
    if isinstance(name, str) and name in _TYPES:
        return _TYPES[name]
    if isinstance(name, str) and _TEXT_TYPE.fullmatch(name):
        return np.dtype(name)
    raise ValueError(f"dtype {repr_of(name, 40)} is none of a number or a text")


def _shape(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list) or len(sizes) > _DIMENSIONS or not all(type(n) is int and n >= 0 for n in sizes):
        raise ValueError(f"shape {repr_of(sizes, 60)} is not a list of at most {_DIMENSIONS} sizes")
    if math.prod(n for n in sizes if n) >= 2**62:  # NumPy multiplies the sizes of an empty array, too
        raise ValueError(f"shape {repr_of(sizes, 60)} is too large")
    return tuple(sizes)


def _require_expands(size: int, dtype: np.dtype[Any]) -> None:
    if not expands(size * dtype.itemsize):
        raise ValueError(
            f"{size:,} of {dtype} are {size * dtype.itemsize:,} bytes; all such arrays of one value may have {FREE:,}"
        )


def _leaves(plain: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """The elements of lists within lists; ValueError where they do not have this shape."""
    if not shape:
        if isinstance(plain, (list, dict)):
            raise ValueError("its lists are deeper than its shape")
        yield plain
        return
    if not isinstance(plain, list) or len(plain) != shape[0]:
        what = f"{len(plain):,} values" if isinstance(plain, list) else repr_of(plain, 40)
        raise ValueError(f"must have {shape[0]:,} values where its shape says so, got {what}")
    if len(shape) == 1:
        if any(isinstance(v, (list, dict)) for v in plain):
            raise ValueError("its lists are deeper than its shape")
        yield from plain
        return
    for inside in plain:
        yield from _leaves(inside, shape[1:])


def _array_of(leaves: list[Any], dtype: np.dtype[Any]) -> np.ndarray:
    """One dimension; ValueError where an element is of another kind, or would be cut, wrapped or rounded to ∞."""
    if dtype.kind == "f":
        wide = np.array([_element(float_of(leaf), leaf) for leaf in leaves], np.float64)
        with np.errstate(over="ignore"):
            array = wide.astype(dtype)
        if (np.isinf(array) & ~np.isinf(wide)).any():
            raise ValueError(f"holds numbers beyond {dtype}")
        return array
    wanted: type = {"b": bool, "U": str}.get(dtype.kind, int)
    for leaf in leaves:
        _element(leaf if type(leaf) is wanted else MISSING, leaf)
    if dtype.kind == "U" and max(map(len, leaves), default=0) > dtype.itemsize // 4:
        raise ValueError(f"holds a text longer than {dtype}")
    if dtype.kind in "iu" and leaves:
        ends = np.iinfo(dtype)
        if min(leaves) < ends.min or max(leaves) > ends.max:
            raise ValueError(f"holds numbers beyond {dtype}")
    return np.array(leaves, dtype)


def _element(value: Any, plain: Any) -> Any:
    if value is MISSING:
        raise ValueError(f"{repr_of(plain, 60)} is of another kind")
    return value


def _with_cells(cells: Any, size: int, dtype: np.dtype[Any]) -> np.ndarray:
    if not isinstance(cells, list) or not all(isinstance(c, list) and len(c) == 2 for c in cells):
        raise ValueError("its cells must be pairs of a place and a number")
    places = [place for place, _ in cells]
    if not all(type(place) is int and 0 <= place < size for place in places):
        raise ValueError(f"its cells must have places from 0 to {size - 1:,}")
    if len(set(places)) != len(places):
        raise ValueError("it gives a cell twice")
    flat = np.zeros(size, dtype)
    flat[np.array(places, np.int64)] = _array_of([value for _, value in cells], dtype)
    return flat
