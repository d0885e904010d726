"""Results as pieces of a run folder and back, to the bit: dataclasses, arrays and plain values, and nothing else.

JSON keeps every float64; an array says its dtype and shape. Only classes that the reader names are made, so a folder
cannot ask for any other.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def to_piece(value: Any) -> Any:
    """JSON-ready; `from_piece` makes the same value of it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_piece(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"an array of {array.dtype} is no piece")
        held = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return {"array": held, "dtype": array.dtype.str, "shape": list(array.shape)}
    if isinstance(value, Mapping):
        return {"items": [[to_piece(k), to_piece(v)] for k, v in value.items()]}
    if isinstance(value, (tuple, list)):
        return {type(value).__name__: [to_piece(v) for v in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} is no piece")


def from_piece(piece: Any, classes: Iterable[type]) -> Any:
    """What `to_piece` was given; the dataclasses in it must be among `classes`."""
    known = {c.__name__: c for c in classes}

    def read(found: Any) -> Any:
        if not isinstance(found, dict):
            return found
        if "class" in found:
            return known[found["class"]](**{k: read(v) for k, v in found["fields"].items()})
        if "array" in found:
            flat = np.frombuffer(base64.b64decode(found["array"]), dtype=np.dtype(found["dtype"]))
            array = flat.reshape(found["shape"]).copy()
            return array[()] if array.ndim == 0 else array
        if "items" in found:
            return {read(k): read(v) for k, v in found["items"]}
        ((kind, values),) = found.items()
        return {"tuple": tuple, "list": list}[kind](read(v) for v in values)

    return read(piece)
