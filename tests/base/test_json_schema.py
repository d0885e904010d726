"""A schema made from annotations takes what the codec writes, and refuses what the codec does not read."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import pytest

from leakcore._base.codec import from_plain, to_plain
from leakcore._base.json_schema import JsonSchemas
from leakcore._base.results import Record, jsonable

jsonschema = pytest.importorskip("jsonschema")


class Pair(NamedTuple):
    first: int
    second: float


class Words(TypedDict):
    low: float
    words: list[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Base(Record):
    number: float


@dataclasses.dataclass(frozen=True, eq=False)
class Heir(Base):
    tree: tuple[Base, ...] = ()


@dataclasses.dataclass(frozen=True)
class Drawn:
    drawing: str | Callable[[], str]


def fits(plain: Any, schema: Mapping[str, Any], schemas: JsonSchemas) -> bool:
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": schemas.definitions}
    jsonschema.Draft202012Validator.check_schema(whole)
    return bool(jsonschema.Draft202012Validator(whole).is_valid(json.loads(json.dumps(plain, allow_nan=False))))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, int | None),
        (True, bool),
        (-math.inf, float),
        (math.nan, float | None),
        (3, float),
        ("a", str),
        ("inf", str),
        ("b", Literal["a", "b"]),
        (np.arange(4.0), np.ndarray),
        (np.array([1.0, math.inf]), np.ndarray),
        (np.ones((2, 3), bool), float | np.ndarray),
        (np.zeros((0, 2)), np.ndarray),
        (np.arange(3, dtype=np.int8), np.ndarray),
        (np.eye(40, dtype=np.int64), np.ndarray),
        (np.array(["x", "y"]), np.ndarray),
        ((1, "a"), tuple[int, str]),
        ((1, 2, 3), tuple[int, ...]),
        ([(1, 2.0)], list[tuple[int, float]]),
        (Pair(1, 2.0), Pair),
        ({"a": 1}, Mapping[str, int]),
        ({3: "a"}, dict[int, str]),
        ({("a", 1): 2}, dict[tuple[str, int], int]),
        (Base(1.0), Base),
        (Heir(1.0, (Base(2.0), Heir(3.0))), Base),
        (Heir(1.0, (Heir(math.inf),)), Heir),
        (Drawn("<svg/>"), Drawn),
        ({"a": [1, None]}, Any),
    ],
)
def test_codec_values(value: Any, kind: Any) -> None:
    schemas = JsonSchemas([Heir])
    assert fits(to_plain(value, kind), schemas.of(kind), schemas)


@pytest.mark.parametrize(
    ("plain", "kind"),
    [
        (1, bool),
        (None, int),
        (1.5, int),
        ("many", float),
        (True, float),
        ("inf", str),
        ({"text": 1}, str),
        ("c", Literal["a", "b"]),
        ("a", np.ndarray),
        ([["a"]], np.ndarray),
        ({"array": [1], "dtype": "int8"}, np.ndarray),
        ({"array": [1], "cells": [], "dtype": "int8", "shape": [1]}, np.ndarray),
        ([1], tuple[int, str]),
        ([1, "a", 2], tuple[int, str]),
        ([1], Pair),
        ({"a": "b"}, dict[str, int]),
        ({"a": 1}, dict[int, int]),
        ({"number": "high"}, Base),
        ({"number": 1.0, "more": 1}, Base),
        ({}, Base),
        ({"class": "Heir", "number": 1.0}, Base),
        ({"class": "Heir", "number": 1.0, "tree": [{"class": "Other"}]}, Base),
        ({"class": "Base", "number": 1.0, "tree": []}, Heir),
    ],
)
def test_bad_codec_values(plain: Any, kind: Any) -> None:
    schemas = JsonSchemas([Heir])
    assert not fits(plain, schemas.of(kind), schemas)
    with pytest.raises(ValueError):
        from_plain(plain, kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Heir(math.inf, (Base(2.0),)), Heir),
        (np.array(2.0), np.ndarray),
        (np.ones((2, 2)), np.ndarray),
        ((np.ones(2), np.zeros(0)), tuple[np.ndarray, np.ndarray]),
        ({"low": 1.0, "words": ["inf", "a"]}, Words),
    ],
)
def test_jsonable_values(value: Any, kind: Any) -> None:
    schemas = JsonSchemas()
    assert fits(jsonable(value), schemas.of_jsonable(kind), schemas)


def test_bad_jsonable_values() -> None:
    schemas = JsonSchemas()
    assert not fits({"class": "Heir", "number": 1.0, "tree": []}, schemas.of_jsonable(Heir), schemas)
    assert not fits({"low": 1.0}, schemas.of_jsonable(Words), schemas)
    assert not fits([["a"]], schemas.of_jsonable(np.ndarray), schemas)


def test_classes_of_one_name() -> None:
    other = dataclasses.make_dataclass("Base", [("word", str)])
    schemas = JsonSchemas()
    schemas.of(Base)
    with pytest.raises(TypeError, match="Base: two classes have this name"):
        schemas.of(other)


def test_types_without_json() -> None:
    with pytest.raises(TypeError, match="no JSON has a value of this type"):
        JsonSchemas().of(Callable[[], str])
