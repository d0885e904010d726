"""Values to JSON or npz and back: to the bit, and nothing that was not expected is made."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from leakcore._base.array_record import equal
from leakcore._base.codec import from_npz, from_plain, to_npz, to_plain, unpack
from leakcore._base.results import Record

PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["inf", "-inf", "nan", "class", "array"])
    | arrays.arrays(st.sampled_from(["f8", "f4", "i8", "u1", "?", "U3"]), arrays.array_shapes(min_dims=0, min_side=0))
)  # fmt: skip
KEYS = st.text(max_size=4) | st.sampled_from(["array", "dtype", "tuple", "items", "class", "text", "shape"])
ANY = st.recursive(
    PLAIN,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inside, max_size=3)
        | st.dictionaries(st.integers(0, 9), inside, max_size=2)
    ),
    max_leaves=8,
)


def _types(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value), [_types(v) for v in value]
    return {k: _types(v) for k, v in value.items()} if isinstance(value, dict) else type(value)


@pytest.mark.full
@given(ANY)
def test_round_trip(value: Any) -> None:
    text = json.dumps(to_plain(value, Any), allow_nan=False)
    for back in (from_plain(json.loads(text), Any), from_npz(io.BytesIO(to_npz(value, Any)), Any)):
        assert equal(back, value)
        assert _types(back) == _types(value)


class Step(NamedTuple):
    number: int
    rate: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class Base(Record):
    value: float | np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Heir(Base):
    mode: Literal["a", "b"]
    steps: tuple[Step, ...]
    pair: tuple[float, np.ndarray] | None
    by_k: Mapping[int, np.ndarray]
    other: Base | None = None

    schema = "test.heir/1"


HEIR = Heir(
    np.array([1.0, math.inf]), "a", (Step(1, None), Step(2, 0.5)), (math.nan, np.zeros(2)), {3: np.ones((2, 2))},
    Heir(-math.inf, "b", (), None, {}),
)  # fmt: skip


def test_dataclasses() -> None:
    plain = HEIR.to_dict()
    assert plain == {
        "schema": "test.heir/1", "value": [1.0, "inf"], "mode": "a", "steps": [[1, None], [2, 0.5]],
        "pair": ["nan", [0.0, 0.0]], "by_k": {"3": [[1.0, 1.0], [1.0, 1.0]]},
        "other": {"class": "Heir", "schema": "test.heir/1", "value": "-inf", "mode": "b", "steps": [], "pair": None,
                  "by_k": {}, "other": None},
    }  # fmt: skip
    back = Heir.from_dict(json.loads(json.dumps(plain, allow_nan=False)))
    assert back == HEIR
    assert type(back.other) is Heir
    assert isinstance(back.steps[0], Step)
    assert from_npz(io.BytesIO(to_npz(HEIR)), Heir) == HEIR
    assert Base.from_dict({"class": "Heir", **plain}) == HEIR


def _with(**changes: Any) -> dict[str, Any]:
    return {**HEIR.to_dict(), **changes}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "it must be a Heir, got 3"),
        (_with(schema="test.heir/2"), r"`schema` must be 'test.heir/1', got 'test.heir/2'"),
        (_with(value="many"), "`value` must be a number or an array of numbers, got 'many'"),
        (_with(value=True), "`value` must be a number or an array of numbers, got True"),
        (_with(value=[1.0, "x"]), r"`value` must be a number or an array of numbers, got \[\[?1"),
        (_with(value=[[1.0], [1.0, 2.0]]), r"`value` must be a number or an array of numbers, got \[\[?1"),
        (_with(mode="c"), "`mode` must be 'a' or 'b', got 'c'"),
        (_with(steps=[[1]]), r"`steps\[0\]` must be a Step, got \[1\]"),
        (_with(steps=[["1", None]]), r"`steps\[0\]\[0\]` must be a whole number, got '1'"),
        (_with(pair=[1.0]), r"`pair` must be a list of 2 values or null, got \[1.0\]"),
        (_with(by_k={"x": [1.0]}), "`by_k` must have whole numbers as keys, got x"),
        (
            _with(other={**HEIR.to_dict(), "class": "Path"}),
            "`other` must be a Base that is known here, got class 'Path'",
        ),
        (_with(more=1), "it has a field more, which no Heir has"),
        ({k: v for k, v in HEIR.to_dict().items() if k != "pair"}, "it lacks pair"),
        (
            _with(value={"cells": [[0, 1.0]], "dtype": "int64", "shape": [2**40]}),
            r"`value` is a damaged array \(1,099,511,627,776",
        ),
        (_with(value={"cells": [[-1, 1]], "dtype": "int64", "shape": [4]}), r"`value` is a damaged array \("),
        (_with(value={"array": [1.0], "dtype": "float64", "shape": [2]}), r"`value` is a damaged array \("),
        (_with(value={"array": [1.0], "dtype": "O", "shape": [1]}), r"`value` is a damaged array \("),
        (_with(value={"array": [1.0], "dtype": "float65", "shape": [1]}), r"`value` is a damaged array \("),
        (_with(value={"array": "elsewhere"}), "`value` lacks the array 'elsewhere'"),
    ],
)
def test_bad_values(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Heir.from_dict(data)


def test_named_classes_only() -> None:
    written = to_plain({"a": HEIR})
    assert written["a"]["class"] == "Heir"
    with pytest.raises(ValueError, match="`a` must be an object of a class that is known here, got class 'Heir'"):
        from_plain(written, dict)
    assert from_plain(written, dict, classes=(Heir,)) == {"a": HEIR}


def test_unwritable_values() -> None:
    for value, place in (({"a": [object()]}, "a.0"), (Base(value=np.array([1j])), "value"), ({1, 2}, "it")):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"{place} is a.* which no file of leakcore's holds"):
            to_plain(value)


@pytest.mark.parametrize("order", ["<", ">"])
def test_bad_text(order: str) -> None:
    """NumPy makes a string of it that ends in a SystemError wherever it is shown."""
    points = np.array([ord("{"), 0x110000, ord("}")], f"{order}u4")
    file = io.BytesIO()
    np.savez(file, facts=np.frombuffer(points.tobytes(), f"{order}U3").reshape(()))
    file.seek(0)
    with pytest.raises(ValueError, match="must be text, got code points beyond Unicode's"):
        unpack(file)
