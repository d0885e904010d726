"""The JSON of dataclasses as JSON Schemas (draft 2020-12), from the annotations by which the codec writes and reads."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from leakcore._base.codec import arguments, elements, has_custom_dict, hints, is_mapping, is_named_tuple, options
from leakcore._base.json_arrays import WORDS
from leakcore._base.results import Result

Schema = dict[str, Any]
OfKind = Callable[[Any], Schema]

_PLAIN: dict[Any, Schema] = {type(None): {"type": "null"}, bool: {"type": "boolean"}, int: {"type": "integer"}}
_WORD = f"^({'|'.join(WORDS)})$"
_NUMBER: Schema = {"type": ["number", "string"], "pattern": _WORD}
"""A number, or a word for one that JSON has no number for."""
_CELL: Schema = {"type": ["number", "boolean", "string"], "pattern": _WORD}
_LIST: Schema = {
    "description": "Numbers in lists of any depth.",
    "type": "array",
    "anyOf": [{"items": _CELL}, {"items": {"$ref": "#/$defs/list"}}],
}
_TEXT: Schema = {
    "description": 'Text; one that could be taken for a number is written as {"text": "inf"}.',
    "type": ["string", "object"],
    "not": {"enum": list(WORDS)},
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
_ARRAY: Schema = {
    "description": "An array: lists of numbers, or all cells or the cells that are not zero, with type and shape.",
    "type": ["array", "object"],
    "anyOf": _LIST["anyOf"],
    "properties": {
        "array": {},
        "cells": {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}},
        "dtype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    },
    "required": ["dtype", "shape"],
    "if": {"type": "object"},
    "then": {"oneOf": [{"required": ["array"]}, {"required": ["cells"]}]},
    "additionalProperties": False,
}
_PAIRS: Schema = {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}}


class JsonSchemas:
    """Schemas of types, which refer to `definitions`, to be put under "$defs" of the whole. `heirs` are subclasses
    whose fields are known, where an annotation names their base class; any other subclass fits with the base's
    fields."""

    def __init__(self, heirs: Iterable[type] = ()) -> None:
        self.definitions: dict[str, Schema] = {}
        self._classes: dict[str, type] = {}
        self._heirs = tuple(heirs)

    def of(self, kind: Any) -> Schema:
        """What `to_plain` writes under this annotation."""
        return self._any_of(kind, self.of, self._dataclass, exact=True)

    def of_jsonable(self, kind: Any) -> Schema:
        """What `jsonable` makes of a value of this annotation."""
        return self._any_of(kind, self.of_jsonable, self._jsonable_dataclass, exact=False)

    def fields(self, cls: type, *, but: Iterable[str] = ()) -> Schema:
        """What `fields_to_plain` writes, without the fields in `but`."""
        return _object(self._properties(cls, but), optional=("class",))

    def _any_of(self, kind: Any, of: OfKind, dataclass: OfKind, *, exact: bool) -> Schema:
        schemas = [s for option in options(kind) if (s := self._one(option, of, dataclass, exact)) is not None]
        if not schemas:
            raise TypeError(f"{kind!r}: no JSON has a value of this type")
        simple = [s["type"] for s in schemas if s.keys() == {"type"}]
        if len(simple) == len(schemas) > 1:
            return {"type": simple}
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _one(self, kind: Any, of: OfKind, dataclass: OfKind, exact: bool) -> Schema | None:
        """The schema of one member of a union; None for what no JSON holds, such as a function."""
        origin = typing.get_origin(kind) or kind
        if origin in (Any, object) or isinstance(kind, typing.TypeVar):
            return {}
        if origin is Literal:
            return {"enum": list(typing.get_args(kind))}
        if origin in _PLAIN:
            return dict(_PLAIN[origin])
        if origin is float:
            return dict(_NUMBER)
        if origin is str:
            return self._shared("text", _TEXT) if exact else {"type": "string"}
        if origin is np.ndarray:
            numbers = self._shared("list", _LIST)
            return self._shared("array", _ARRAY) if exact else {"anyOf": [_CELL, numbers]}
        if origin in (tuple, list, collections.abc.Sequence) or is_named_tuple(origin):
            return _sequence(kind, of)
        if typing.is_typeddict(origin):
            return _object({name: of(hint) for name, hint in typing.get_type_hints(origin).items()})
        if is_mapping(origin):
            return _mapping(kind, of, exact)
        return dataclass(origin) if inspect.isclass(origin) and dataclasses.is_dataclass(origin) else None

    def _shared(self, name: str, schema: Schema) -> Schema:
        self.definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}

    def _define(self, name: str, cls: type, make: Callable[[], Schema]) -> Schema:
        """A reference to the definition of that name, which is made once."""
        if self._classes.setdefault(name, cls) is not cls:
            raise TypeError(f"{name}: two classes have this name, {cls!r} and {self._classes[name]!r}")
        if name not in self.definitions:
            self.definitions[name] = {}  # a class may hold itself
            self.definitions[name] = make()
        return {"$ref": f"#/$defs/{name}"}

    def _properties(self, cls: type, but: Iterable[str] = ()) -> dict[str, Schema]:
        schema = getattr(cls, "schema", None)
        facts: dict[str, Schema] = {"class": {"const": cls.__name__}}
        if isinstance(schema, str):
            facts["schema"] = {"const": schema}
        return {**facts, **{name: self.of(hint) for name, hint in hints(cls).items() if name not in but}}

    def _dataclass(self, cls: type) -> Schema:
        if has_custom_dict(cls):
            form = getattr(cls, "json_form", None)
            return self._all_fields(cls) if form is None else self.of(form)
        own = self._define(cls.__name__, cls, lambda: self.fields(cls))
        heirs = [heir for heir in self._heirs if issubclass(heir, cls) and heir is not cls]
        if not heirs:
            return own
        return self._define(f"{cls.__name__}.any", cls, lambda: self._by_class(cls, own, heirs))

    def _by_class(self, cls: type, own: Schema, heirs: list[type]) -> Schema:
        """The schema that "class" chooses: the annotation's own where there is none."""
        choices = [{"if": _class({"const": cls.__name__}), "then": own}]
        for heir in heirs:
            named = self._define(heir.__name__, heir, functools.partial(self.fields, heir))
            choices.append({"if": {**_class({"const": heir.__name__}), "required": ["class"]}, "then": named})
        known = [cls.__name__, *(heir.__name__ for heir in heirs)]
        properties = {name: s for name, s in self._properties(cls).items() if name != "class"}
        other = {"properties": properties, "required": list(properties)}
        choices.append({"if": {**_class({"not": {"enum": known}}), "required": ["class"]}, "then": other})
        return {"type": "object", "properties": {"class": {"type": "string"}}, "allOf": choices}

    def _jsonable_dataclass(self, cls: type) -> Schema:
        if not issubclass(cls, Result):
            return self._all_fields(cls)
        if cls is Result or any(issubclass(heir, cls) and heir is not cls for heir in self._heirs):
            return self._dataclass(cls)
        return {**self._dataclass(cls), "required": ["class"]}

    def _all_fields(self, cls: type) -> Schema:
        every = typing.get_type_hints(cls)
        return self._define(
            f"{cls.__name__}.plain",
            cls,
            lambda: _object({f.name: self.of_jsonable(every[f.name]) for f in dataclasses.fields(cls)}),
        )


def _class(schema: Schema) -> Schema:
    return {"properties": {"class": schema}}


def _object(properties: Mapping[str, Schema], *, optional: Iterable[str] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def _sequence(kind: Any, of: OfKind) -> Schema:
    inside = typing.get_args(kind)
    origin = typing.get_origin(kind) or kind
    fixed = is_named_tuple(kind) or (origin is tuple and inside and inside[-1] is not Ellipsis)
    if not fixed:
        return {"type": "array", "items": of(inside[0]) if inside else {}}
    number = len(kind._fields) if is_named_tuple(kind) else len(inside)
    kinds = elements(kind, number)
    assert kinds is not None
    return {"type": "array", "prefixItems": [of(k) for k in kinds], "minItems": number, "maxItems": number}


def _mapping(kind: Any, of: OfKind, exact: bool) -> Schema:
    keys, inside = arguments(kind, 2)
    by_name: Schema = {"type": "object", "additionalProperties": of(inside)}
    if keys is int:
        by_name["propertyNames"] = {"pattern": "^-?[0-9]+$"}
    if not exact:
        return by_name
    pairs = {"type": "object", "properties": {"items": _PAIRS}, "required": ["items"], "additionalProperties": False}
    return {"anyOf": [by_name, pairs]}
