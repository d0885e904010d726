"""From values to JSON, and arrays to a place of their own where there is one."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from leakcore._base.codec.annotations import arguments, array_only, elements, hints, is_mapping, options, says_itself
from leakcore._base.codec.numbers import WORDS, array_in_json, number

Arrays = MutableMapping[str, np.ndarray]
"""Arrays by name, which are stored next to the JSON instead of in it."""
TAGS = ({"array", "dtype", "shape"}, {"cells", "dtype", "shape"}, {"tuple"}, {"items"}, {"text"})


_NAME = re.compile(r"\w[\w .-]*")
"""What may name an entry of a zip file."""


class Writer:
    def __init__(self, arrays: Arrays | None) -> None:
        self._arrays = arrays

    def write(self, value: Any, kind: Any, where: str) -> Any:
        if value is None or isinstance(value, (bool, np.bool_)):
            return None if value is None else bool(value)
        if isinstance(value, str):
            return {"text": value} if value in WORDS else str(value)
        if isinstance(value, (int, np.integer)):
            return int(value)
        if isinstance(value, (float, np.floating)):
            return number(float(value))
        if isinstance(value, np.ndarray):
            return self._array(value, kind, where)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.dataclass(value, kind, where)
        if isinstance(value, Mapping):
            return self._mapping(value, kind, where)
        if isinstance(value, (tuple, list)):
            return self._sequence(value, kind, where)
        raise TypeError(f"{where or 'it'} is a {type(value).__name__}, which no file of leakcore's holds")

    def _array(self, array: np.ndarray, kind: Any, where: str) -> Any:
        if array.dtype.kind not in "biufU" or (array.dtype.itemsize > 8 and array.dtype.kind == "f"):
            raise TypeError(f"{where or 'it'} is an array of {array.dtype}, which no file of leakcore's holds")
        if self._arrays is not None:
            safe = _NAME.fullmatch(where) and where not in self._arrays
            name = where if safe else f"array-{len(self._arrays)}"
            self._arrays[name] = array
            return {"array": name}
        return array_in_json(array, as_list=array_only(kind))

    def dataclass(self, value: Any, kind: Any, where: str = "", *, by_fields: bool = False) -> Any:
        """by_fields: also where the class has a form of its own."""
        cls: type = type(value)
        own = cls in options(kind)
        if says_itself(cls) and not by_fields:
            fields = dict(value.to_dict())
        else:
            fields = {
                name: self.write(getattr(value, name), hint, f"{where}.{name}".lstrip("."))
                for name, hint in hints(cls).items()
            }
            if isinstance(schema := getattr(cls, "schema", None), str):
                fields = {"schema": schema, **fields}
        return fields if own else {"class": cls.__name__, **fields}

    def _mapping(self, value: Mapping[Any, Any], kind: Any, where: str) -> Any:
        keys, inside = next(
            (arguments(o, 2) for o in options(kind) if is_mapping(typing.get_origin(o) or o)), (Any, Any)
        )
        written = {k: self.write(v, inside, f"{where}.{k}".lstrip(".")) for k, v in value.items()}
        plain = all(isinstance(k, str) for k in written) and not _looks_special(written)
        if plain:
            return {str(k): v for k, v in written.items()}
        if keys is int:
            return {str(int(k)): v for k, v in written.items()}
        return {"items": [[self.write(k, keys, where), v] for k, v in written.items()]}

    def _sequence(self, value: tuple[Any, ...] | list[Any], kind: Any, where: str) -> Any:
        for option in options(kind):
            if (typing.get_origin(option) or option) is type(value):
                kinds = elements(option, len(value))
                if kinds is not None:
                    parts = zip(value, kinds, strict=True)
                    return [self.write(v, h, f"{where}.{i}".lstrip(".")) for i, (v, h) in enumerate(parts)]
        parts_of_any = [self.write(v, Any, f"{where}.{i}".lstrip(".")) for i, v in enumerate(value)]
        return parts_of_any if isinstance(value, list) else {"tuple": parts_of_any}


def _looks_special(written: Mapping[Any, Any]) -> bool:
    keys = set(written)
    return "class" in keys or keys in (*TAGS, {"array"})
