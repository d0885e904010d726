"""From JSON to values: what does not fit its annotation is refused, and only classes that were named are made."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from leakcore._base.codec.annotations import (
    arguments,
    elements,
    hints,
    is_mapping,
    is_named_tuple,
    named,
    options,
    says_itself,
)
from leakcore._base.codec.numbers import MISSING, WORDS, float_of, plain_array, tagged_array
from leakcore._base.codec.writing import TAGS
from leakcore._base.lazy import import_offered
from leakcore._base.printable import name_of, printable, repr_of

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,307}")


def _subject(where: str) -> str:
    """The place in the value as an error begins with it."""
    return f"`{where}`" if where else "it"


class Reader:
    def __init__(self, classes: Iterable[type], arrays: Mapping[str, np.ndarray]) -> None:
        self._classes = {c.__name__: c for c in classes}
        self._arrays = arrays

    def read(self, plain: Any, kind: Any, where: str) -> Any:
        for option in options(kind):
            value = self._one(plain, option, where)
            if value is not MISSING:
                return value
        raise ValueError(f"{_subject(where)} must be {named(kind)}, got {repr_of(plain, 60)}")

    def _one(self, plain: Any, kind: Any, where: str) -> Any:
        """The value where it can be of this type, else MISSING."""
        origin = typing.get_origin(kind) or kind
        if origin is Any or origin is object or isinstance(kind, typing.TypeVar):
            return self._any(plain, where)
        if origin is type(None):
            return None if plain is None else MISSING
        if origin is Literal:
            return plain if any(plain == a and type(plain) is type(a) for a in typing.get_args(kind)) else MISSING
        if origin in (bool, int):
            return plain if type(plain) is origin else MISSING
        if origin is float:
            return float_of(plain)
        if origin is str:
            return _text(plain)
        if origin is np.ndarray:
            return self._array(plain, where)
        if origin in (tuple, list, collections.abc.Sequence):
            return self._sequence(plain, kind, origin, where)
        if is_named_tuple(origin):
            values = self._sequence(plain, kind, tuple, where)
            return MISSING if values is MISSING else origin(*values)
        if is_mapping(origin):
            keys, inside = arguments(kind, 2)
            return self._mapping(plain, keys, inside, where)
        if inspect.isclass(origin):
            return self.dataclass(plain, origin, where)
        return MISSING

    def _any(self, plain: Any, where: str) -> Any:
        if isinstance(plain, str):
            return WORDS.get(plain, plain)
        if isinstance(plain, list):
            return [self._any(v, f"{where}[{i}]") for i, v in enumerate(plain)]
        if not isinstance(plain, dict):
            return plain
        if "class" in plain:
            return self.dataclass(plain, object, where)
        if set(plain) == {"text"}:
            return _text(plain)
        if set(plain) == {"tuple"}:
            if not isinstance(plain["tuple"], list):
                raise ValueError(f"{_subject(where)} must hold a list under `tuple`, got {repr_of(plain['tuple'])}")
            return tuple(self._any(plain["tuple"], where))
        if set(plain) in (*TAGS[:2], {"array"}):
            return self._array(plain, where)
        return self._mapping(plain, Any, Any, where)

    def _array(self, plain: Any, where: str) -> Any:
        if isinstance(plain, list):
            return plain_array(plain)
        if not isinstance(plain, dict):
            return MISSING
        if set(plain) == {"array"}:
            name = plain["array"]
            if not isinstance(name, str) or name not in self._arrays:
                raise ValueError(f"{_subject(where)} lacks the array {repr_of(name, 60)}")
            return self._arrays[name]
        if set(plain) not in TAGS[:2]:
            return MISSING
        try:
            return tagged_array(plain)
        except ValueError as why:
            raise ValueError(f"{_subject(where)} is a damaged array ({printable(why, 120)})") from None

    def _sequence(self, plain: Any, kind: Any, origin: Any, where: str) -> Any:
        if origin is tuple and isinstance(plain, dict) and set(plain) == {"tuple"}:
            plain = plain["tuple"]
        kinds = elements(kind, len(plain)) if isinstance(plain, list) else None
        if kinds is None:
            return MISSING
        parts = zip(plain, kinds, strict=True)
        values = [self.read(v, h, f"{where}[{i}]") for i, (v, h) in enumerate(parts)]
        return values if origin is list else tuple(values)

    def _mapping(self, plain: Any, keys: Any, inside: Any, where: str) -> Any:
        if not isinstance(plain, dict):
            return MISSING
        if set(plain) == {"items"}:
            pairs = plain["items"]
            if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
                raise ValueError(f"{_subject(where)} must hold pairs of a key and a value")
            read = [(self.read(k, keys, where), self.read(v, inside, where)) for k, v in pairs]
        else:
            read = [
                (_key(k, keys, where), self.read(v, inside, f"{where}.{name_of(k)}".lstrip(".")))
                for k, v in plain.items()
            ]
        try:
            out = dict(read)
        except TypeError as why:
            raise ValueError(f"{_subject(where)} has a key that no dict takes ({printable(why)})") from None
        if len(out) != len(read):
            raise ValueError(f"{_subject(where)} gives a key twice")
        return out

    def _known(self, name: Any) -> type | None:
        return self._classes.get(name) if isinstance(name, str) else None

    def dataclass(self, plain: Any, base: type, where: str = "", *, by_fields: bool = False) -> Any:
        """MISSING for what is not a mapping. by_fields: read the fields even of a class with a form of its own."""
        if not isinstance(plain, dict):
            return MISSING
        fields = dict(plain)
        name = fields.pop("class", None)
        cls = base if name in (None, base.__name__) else self._known(name) or _loaded_heir(base, name)
        if cls is None or not dataclasses.is_dataclass(cls):
            article = "an" if base.__name__[0] in "AEIO" else "a"
            wanted = "an object of a class" if base is object else f"{article} {base.__name__}"
            raise ValueError(f"{_subject(where)} must be {wanted} that is known here, got class {repr_of(name, 60)}")
        if says_itself(cls) and not by_fields:
            try:
                return cls.from_dict(fields)  # type: ignore[attr-defined]
            except (ValueError, TypeError) as why:
                raise ValueError(f"`{where}`: {printable(why)}" if where else str(why)) from why
        schema = getattr(cls, "schema", None)
        if isinstance(schema, str) and fields.pop("schema", None) != schema:
            raise ValueError(
                f"{_subject(f'{where}.schema'.lstrip('.'))} must be {schema!r}, got {repr_of(plain.get('schema'), 60)}"
            )
        kinds = hints(cls)
        if unknown := sorted(set(fields) - set(kinds)):
            raise ValueError(f"{_subject(where)} has a field {name_of(unknown[0])}, which no {cls.__name__} has")
        if lacking := [n for n in kinds if n not in fields]:
            raise ValueError(f"{_subject(where)} lacks {', '.join(lacking)}")
        return _made(cls, {n: self.read(v, kinds[n], f"{where}.{n}".lstrip(".")) for n, v in fields.items()}, where)


def _made(cls: type, fields: dict[str, Any], where: str) -> Any:
    """The object; what its class says against the values is a ValueError with the place, whatever class says it."""
    try:
        return cls(**fields)
    except RecursionError:
        raise
    except Exception as why:  # values of the right type may still be none that the class can compute with
        text = printable(why) if isinstance(why, (ValueError, TypeError)) else f"{type(why).__name__}: {printable(why)}"
        raise ValueError(f"`{where}`: {text}" if where else text) from why


def _loaded_heir(base: type, name: Any) -> type | None:
    """The subclass of that name, which is imported first where a package offers it: a new process knows none yet."""
    known = _heir(base, name)
    if known is None and base is not object and isinstance(name, str):
        import_offered(name)
        known = _heir(base, name)
    return known


def _heir(base: type, name: Any) -> type | None:
    """The subclass of that name. `object` has none here: a file must not choose among all classes there are."""
    if base is object:
        return None
    heirs: list[type] = base.__subclasses__()
    for cls in heirs:
        if cls.__name__ == name:
            return cls
        if (further := _heir(cls, name)) is not None:
            return further
    return None


def _text(plain: Any) -> Any:
    if isinstance(plain, dict) and set(plain) == {"text"} and isinstance(plain["text"], str):
        return plain["text"]
    return plain if isinstance(plain, str) and plain not in WORDS else MISSING


def _key(key: str, kind: Any, where: str) -> Any:
    if int not in options(kind):
        return key
    if not _WHOLE.fullmatch(key):
        raise ValueError(f"{_subject(where)} must have whole numbers as keys, got {name_of(key)}")
    return int(key)
