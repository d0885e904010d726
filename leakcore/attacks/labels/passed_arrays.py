"""Arrays as an observation stores them: read, and in the precision in which they were passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakcore._base import array_memory, validate


def parts_of_layers(name: str, value: Any) -> Any:
    """An array, a tuple of arrays or a dictionary of them, one per layer; ValueError or TypeError that names it.

    `validate.host_array` reads from it the numbers and the unit roundoff that it reads from `value`.
    """
    if isinstance(value, Mapping):
        return {key: parts_of_layers(name, part) for key, part in value.items()}
    if not isinstance(value, list | tuple) or all(type(part) is float or type(part) is int for part in value):
        return _one(name, value)
    parts = tuple(parts_of_layers(name, part) for part in value)
    if all(getattr(part, "shape", None) == () for part in parts):  # numbers that form one array
        joined = _one(name, parts)
        return joined if validate.roundoff(parts) <= validate.roundoff(joined) else parts
    return parts


def _one(name: str, value: Any) -> Any:
    array = array_memory.array(name, value)
    if array.dtype.kind == "O":
        array, _ = validate.host_array(finite=False, **{name: array})  # objects that are numbers
    array = validate.plain_array(**{name: array})
    # Only bfloat16, which NumPy lacks, is finer as an array than it was as a tensor.
    return array_memory.plain_tensor(name, value) if validate.roundoff(value) > validate.roundoff(array) else array
