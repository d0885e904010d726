"""Results that are arrays of the caller's own library: a short `repr`, a table, and equality by value.

Kernels make such results in a loop: nothing here runs when one is made, and importing this imports nothing more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

_LISTED = 3
"""Arrays of a list that are described; more are counted."""


class ArrayRecord:
    """A frozen dataclass whose fields are arrays of NumPy, torch or another library. Subclasses are declared with
    `dataclass(frozen=True, eq=False, repr=False)`, which leaves these methods as they are."""

    def __repr__(self) -> str:
        from leakcore._base.tables import as_line

        return as_line(type(self).__name__, _rows(self))

    def __str__(self) -> str:
        from leakcore._base.tables import as_text

        return as_text(type(self).__name__, _rows(self))

    def _repr_html_(self) -> str:
        from leakcore._base.tables import as_html

        return as_html(type(self).__name__, _rows(self))

    def __eq__(self, other: object) -> bool:

        return equal(self, other) if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        # Of what has a hash anyway, so that equal records have one hash; arrays are left to the comparison.
        values = (getattr(self, f.name) for f in dataclasses.fields(self) if f.compare)  # type: ignore[arg-type]
        return hash((type(self).__name__, *(v for v in values if isinstance(v, (str, int)))))


def _rows(record: Any) -> list[tuple[str, str]]:
    """Names and descriptions of the fields that are not None. No array's values are read."""
    fields = [(f.name, getattr(record, f.name)) for f in dataclasses.fields(record) if f.repr]
    return [(name, _described(value)) for name, value in fields if value is not None]


def _described(value: Any) -> str:
    """An array by type, shape, and device where it has another one than the CPU; any other value in a few words."""
    from leakcore._base.tables import short

    if hasattr(value, "dtype") and hasattr(value, "shape"):
        device = getattr(value, "device", None)
        place = "" if device is None or str(device).lower().startswith(("cpu", "tfrt_cpu")) else f" on {device}"
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}{place}"
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "shape"):
        listed = ", ".join(map(_described, value[:_LISTED]))
        return f"[{listed}{f', …: {len(value)} arrays' if len(value) > _LISTED else ''}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_described(array)}" for name, array in value.items()) + "}"
    return type(value).__name__ if hasattr(value, "state_dict") else short(value)


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same: every number, type of element, shape and field; NaN equals NaN. A list and a
    tuple of equal values are equal, as are mappings in any order."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
            return False
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
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
