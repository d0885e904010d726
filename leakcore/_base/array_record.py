"""What results share that are arrays of the caller's own library: a short `repr`, a table, and equality by value.

Kernels make such results in a loop: nothing here runs when one is made, and importing this imports nothing more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_LISTED = 3
"""Arrays of a list that are described; more are counted."""


class ArrayRecord:
    """A frozen dataclass whose fields are arrays of NumPy, torch or another library.

    Subclasses are declared with `dataclass(frozen=True, eq=False, repr=False)`, which leaves these methods as they are.
    """

    def __repr__(self) -> str:
        from leakcore._base.results.table import as_line

        return as_line(type(self).__name__, _rows(self))

    def __str__(self) -> str:
        from leakcore._base.results.table import as_text

        return as_text(type(self).__name__, _rows(self))

    def _repr_html_(self) -> str:
        from leakcore._base.results.table import as_html

        return as_html(type(self).__name__, _rows(self))

    def __eq__(self, other: object) -> bool:
        from leakcore._base.results.equal import equal

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
    from leakcore._base.results.table import short

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
