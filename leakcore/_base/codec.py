"""Values as files hold them, and back to the bit: dataclasses, arrays, numbers, and nothing else.

The annotations of a dataclass say what each field may be, so plain values stay plain: an array of float64 is a list of
numbers, a tuple is a list. Where an annotation leaves it open (`Any`, or a base class), the value says what it is:
{"array": …, "dtype": …, "shape": …}, {"tuple": …}, {"class": …}. Infinities and NaN are "inf", "-inf" and "nan", so
that strict JSON holds them. Reading makes only classes that an annotation or the caller names, and refuses what does
not fit its annotation. Nothing is pickled.

Libraries that do this (msgspec, cattrs) know no union of a number and an array, no infinities without taking every
text for a number, and no arrays of a given type and shape, which is most of what our results are.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import io
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import numpy as np

from leakcore._base.archives import read_npz
from leakcore._base.json_arrays import (
    MISSING,
    WORDS,
    array_in_json,
    float_of,
    number,
    one_value,
    plain_array,
    tagged_array,
)
from leakcore._base.lazy import import_offered
from leakcore._base.reading import allowed, parse_json
from leakcore._base.text import name_of, printable, repr_of

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """The annotation of each field that the constructor takes."""
    every = typing.get_type_hints(cls)
    return {f.name: every[f.name] for f in dataclasses.fields(cls) if f.init}


def has_custom_dict(cls: type) -> bool:
    """Whether a class has a form of its own, by `to_dict` and `from_dict` that do not come from here."""
    pair = getattr(cls, "to_dict", None), getattr(cls, "from_dict", None)
    return all(pair) and not any(getattr(f, "by_codec", False) for f in pair)


def options(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def array_only(kind: Any) -> bool:
    """Whether a list under this annotation can be nothing but an array."""
    members = options(kind)
    return np.ndarray in members and all(m in (np.ndarray, float, int, bool, str, type(None)) for m in members)


def is_named_tuple(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, tuple) and hasattr(kind, "_fields")


@functools.cache
def _fields_of(kind: Any) -> tuple[Any, ...]:
    return tuple(typing.get_type_hints(kind).values())


def is_mapping(origin: Any) -> bool:
    return inspect.isclass(origin) and issubclass(origin, collections.abc.Mapping)


def arguments(kind: Any, number: int) -> tuple[Any, ...]:
    arguments = typing.get_args(kind)
    return arguments if len(arguments) == number else (Any,) * number


def elements(kind: Any, number: int) -> tuple[Any, ...] | None:
    """The annotation of each element; None where there must be another number of them."""
    arguments = _fields_of(kind) if is_named_tuple(kind) else typing.get_args(kind)
    if not arguments:
        return (Any,) * number
    if is_named_tuple(kind):
        return arguments if len(arguments) == number else None
    if (typing.get_origin(kind) or kind) is not tuple:
        return arguments[:1] * number
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[:1] * number
    return arguments if len(arguments) == number else None


def named(kind: Any) -> str:
    """A type in words."""
    words: dict[Any, str] = {
        type(None): "null",
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        np.ndarray: "an array of numbers",
    }
    out = []
    for option in options(kind):
        origin = typing.get_origin(option) or option
        if origin is Literal:
            out.append(" or ".join(map(repr, typing.get_args(option))))
        elif is_mapping(origin):
            out.append("values by name")
        elif origin in (tuple, list, collections.abc.Sequence):
            inside = typing.get_args(option)
            fixed = origin is tuple and inside and inside[-1] is not Ellipsis
            out.append(f"a list of {len(inside)} values" if fixed else "a list")
        else:
            out.append(words.get(origin) or f"a {getattr(origin, '__name__', origin)}")
    return " or ".join(out)


def by_codec(function: F) -> F:
    """Mark a `to_dict` or `from_dict` that calls this codec, which may then write and read the class by its fields."""
    function.by_codec = True  # type: ignore[attr-defined]
    return function


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
        if has_custom_dict(cls) and not by_fields:
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
        special = "class" in written or set(written) in (*TAGS, {"array"})
        if not special and all(isinstance(k, str) for k in written):
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
        cls = base if name in (None, base.__name__) else self._known(name) or _loaded_subclass(base, name)
        if cls is None or not dataclasses.is_dataclass(cls):
            article = "an" if base.__name__[0] in "AEIO" else "a"
            wanted = "an object of a class" if base is object else f"{article} {base.__name__}"
            raise ValueError(f"{_subject(where)} must be {wanted} that is known here, got class {repr_of(name, 60)}")
        if has_custom_dict(cls) and not by_fields:
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


def _loaded_subclass(base: type, name: Any) -> type | None:
    """The subclass of that name, which is imported first where a package offers it: a new process knows none yet."""
    known = _subclass_named(base, name)
    if known is None and base is not object and isinstance(name, str):
        import_offered(name)
        known = _subclass_named(base, name)
    return known


def _subclass_named(base: type, name: Any) -> type | None:
    """The subclass of that name. `object` has none here: a file must not choose among all classes there are."""
    if base is object:
        return None
    subclasses: list[type] = base.__subclasses__()
    for cls in subclasses:
        if cls.__name__ == name:
            return cls
        if (further := _subclass_named(cls, name)) is not None:
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


def to_plain(value: Any, kind: Any = None, *, arrays: Arrays | None = None) -> Any:
    """What strict JSON can hold; `from_plain(…, kind)` makes an equal value of it. TypeError for what no file holds.

    kind: the type that the reader will expect; None: the value's own. arrays: where arrays go, by their place in the
    value; None: into the JSON.
    """
    with one_value():
        return Writer(arrays).write(value, type(value) if kind is None else kind, "")


def from_plain(
    plain: Any, kind: Any, *, classes: Iterable[type] = (), arrays: Mapping[str, np.ndarray] | None = None
) -> Any:
    """The value that `to_plain` was given, of type `kind`; ValueError names the place in it, what is there, and what
    must be.

    classes: further dataclasses that may be made where an annotation leaves it open. arrays: those stored next to the
    JSON.
    """
    with _bounded():
        return Reader(classes, arrays or {}).read(plain, kind, "")


def fields_to_plain(value: Any, kind: Any = None) -> dict[str, Any]:
    """`to_plain` of a dataclass by its fields, also where it has a form of its own (`to_dict` and `from_dict`)."""
    with one_value():
        return dict(Writer(None).dataclass(value, type(value) if kind is None else kind, by_fields=True))


def from_fields(plain: Any, kind: type) -> Any:
    """The dataclass that `fields_to_plain` was given; ValueError as `from_plain`."""
    with _bounded():
        value = Reader((), {}).dataclass(plain, kind, by_fields=True)
    if value is MISSING:
        raise ValueError(f"it must be a {kind.__name__}, got {repr_of(plain, 60)}")
    return value


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    try:
        with one_value():
            yield
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


FACTS = "facts"
"""The entry that holds the JSON."""


def to_npz(value: Any, kind: Any = None, *, compressed: bool = False) -> bytes:
    """The file's bytes. compressed: unless it became so small that `from_npz` would not unfold it."""
    arrays: dict[str, np.ndarray] = {}
    facts = to_plain(value, kind, arrays=arrays)
    return pack(facts, arrays, compressed=compressed)


def from_npz(source: str | Path | BinaryIO, kind: Any, *, classes: Iterable[type] = ()) -> Any:
    """The value. FileNotFoundError if the file does not exist; ValueError says why a file cannot be read."""
    facts, arrays = unpack(source)
    return from_plain(facts, kind, classes=classes, arrays=arrays)


def pack(facts: Any, arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> bytes:
    """JSON and arrays as one file."""
    whole = {FACTS: np.array(json.dumps(facts, allow_nan=False)), **arrays}
    buffer = io.BytesIO()
    if compressed:
        np.savez_compressed(buffer, allow_pickle=False, **whole)
        if sum(np.asarray(a).nbytes for a in whole.values()) <= allowed(buffer.tell()) // 2:
            return buffer.getvalue()
        buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **whole)
    return buffer.getvalue()


def unpack(source: str | Path | BinaryIO, names: Collection[str] | None = None) -> tuple[Any, dict[str, np.ndarray]]:
    """What `pack` was given; all of its entries, or the ones in `names`."""
    arrays = read_npz(source, names, text=True)
    if FACTS not in arrays:
        raise ValueError(f"holds no entry {FACTS!r}")
    return parse_json(_facts_text(arrays.pop(FACTS))), arrays


def _facts_text(array: np.ndarray) -> str:
    """The text of an array; NumPy makes a string of code points that Unicode does not have, and nobody reads it."""
    if array.dtype.kind == "U" and array.size:
        points = np.frombuffer(array.tobytes(), np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if points.max(initial=0) > sys.maxunicode:
            raise ValueError(f"entry `{FACTS}` must be text, got code points beyond Unicode's")
    return str(array)
