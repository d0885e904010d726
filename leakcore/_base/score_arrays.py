"""Two arrays of scores by which an audit proves something: labels in the place of one of them are refused.

`f(y_true, y_score)` is the habit of scikit-learn, ART and others. Labels that are read as the scores of one side lie
all below (or above) the scores of the other, and an audit would prove a leak where nothing is related.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_ALPHABETS = ((0.0, 1.0), (-1.0, 1.0))
_FEW = 20
"""Fewer scores than this may take two values by chance."""
_FEWEST = 8
"""Fewer may even be 0 and 1; what so few could prove is next to nothing."""


def is_boolean(values: Any) -> bool:
    """Whether an array or a sequence holds truth values."""
    dtype = getattr(values, "dtype", None)
    if dtype is not None and getattr(dtype, "kind", "?") != "O":
        return "bool" in str(dtype)  # of NumPy, torch, or a nullable column of pandas
    array = np.asarray(values)
    if array.dtype.kind == "O":
        return array.size > 0 and all(isinstance(value, (bool, np.bool_)) for value in array.flat)
    return bool(array.dtype.kind == "b")


def ascending(scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Places of the scores from the lowest to the highest, along the last axis. Equal scores come in a random order,
    the same for all rows of the array: their own order may tell who is a member."""
    shuffled = random.permutation(scores.shape[-1])
    return np.asarray(shuffled[np.argsort(scores[..., shuffled], axis=-1, kind="stable")])


def within_labels(values: np.ndarray) -> bool:
    """Whether all values are 0 or 1, or all are -1 or 1."""
    return bool(values.size) and any(bool(np.isin(values, alphabet).all()) for alphabet in _ALPHABETS)


def label_like(values: np.ndarray) -> bool:
    """Whether exactly two values occur, 0 and 1 or -1 and 1, in more than a handful of entries."""
    return values.size >= _FEWEST and within_labels(values) and bool((values != values.flat[0]).any())


def require_no_labels(sides: Mapping[str, Any], arrays: Mapping[str, np.ndarray], remedy: str) -> None:
    """ValueError where one of two arrays of scores looks like labels; `sides` as they came, by argument, `arrays` in
    float64.

    These are refused: truth values; and an array of only 0 and 1 (or -1 and 1) whose other side has as many entries and
    other values. Counts are scores: integers are let through where both sides have some of the two values.
    """
    for name, other in (tuple(arrays), tuple(arrays)[::-1]):
        if is_boolean(sides[name]):
            raise ValueError(f"`{name}` must hold scores, got truth values, which look like labels: {remedy}")
        here, there = arrays[name], arrays[other]
        if here.shape != there.shape or not label_like(here) or within_labels(there):
            continue
        counts = bool((there == np.round(there)).all()) and bool(np.isin(there, here).any())
        if not counts:
            raise ValueError(
                f"`{name}` must hold scores, got only {_pair(here)}, which look like labels of `{other}`: {remedy}"
            )


def require_no_label_at_all(sides: Mapping[str, Any], arrays: Mapping[str, np.ndarray], remedy: str) -> None:
    """As `require_no_labels`, where scores and labels can be told by name: whatever may be labels is refused.

    These are refused in addition: any array of 0 and 1 (or -1 and 1); two arrays without other values; an array of two
    values whose other side has as many entries and more values; whole numbers where the other side has none, as classes
    and indices are; and the same scores twice.
    """
    require_no_labels(sides, arrays, remedy)
    names = tuple(arrays)
    for name, other in (names, names[::-1]):
        here, there = arrays[name], arrays[other]
        if label_like(here) or (within_labels(here) and within_labels(there)):
            raise ValueError(f"`{name}` must hold scores, got only {_pair(here)}, which look like labels: {remedy}")
        if here.shape == there.shape and here.size >= _FEW and _values(here) == 2 < _values(there):
            raise ValueError(
                f"`{name}` must hold scores, got only {_pair(here)}, which look like labels of `{other}`: {remedy}"
            )
        if min(here.size, there.size) >= _FEW and _values(here) > 1 and _whole(here).all() and not _whole(there).any():
            raise ValueError(
                f"`{name}` must hold scores, got whole numbers alone, and `{other}` has none, so they look like labels "
                f"or indices: {remedy}"
            )
    first, second = arrays.values()
    if first.shape == second.shape and np.array_equal(first, second) and _values(first) > 2:
        raise ValueError(f"`{names[1]}` must differ from `{names[0]}`, got the same scores twice: {remedy}")


def _whole(array: np.ndarray) -> np.ndarray:
    """Which entries are whole numbers; ±∞ are none."""
    return np.asarray(np.isfinite(array) & (array == np.round(array)))


def _values(array: np.ndarray) -> int:
    """1, 2, or 3 for more distinct values."""
    others = array[array != array.flat[0]]
    return 1 if not others.size else 2 if bool((others == others.flat[0]).all()) else 3


def _pair(array: np.ndarray) -> str:
    return " and ".join(f"{value:g}" for value in np.unique(array))
