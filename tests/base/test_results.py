from __future__ import annotations

import json
import math

import numpy as np
import pytest

from leakcore._base.results import Assumptions, Result, parse_adjacency, require_same_adjacency


def result(**changes: object) -> Result:
    fields: dict[str, object] = {
        "value": 1.5,
        "kind": "upper",
        "confidence": None,
        "interval": (1.4, 1.6),
        "method": "exact",
        "assumptions": Assumptions("add-remove", "sees everything"),
        "provenance": "a paper, eq. 1",
    }
    return Result(**{**fields, **changes})  # type: ignore[arg-type]


def test_to_json_is_strict_json_with_infinities_as_words() -> None:
    text = result(value=np.array([1.0, math.inf, -math.inf, math.nan]), interval=None).to_json()
    data = json.loads(text, parse_constant=lambda word: pytest.fail(f"bare {word} in JSON"))
    assert data["value"] == [1.0, "inf", "-inf", "nan"]
    assert data["schema"] == "leakcore.result/2"
    assert data["assumptions"] == {"adjacency": "add-remove", "attacker": "sees everything", "notes": []}


def test_results_are_frozen_and_equal_by_value() -> None:
    one = result(value=np.array([1.0, math.nan]))
    with pytest.raises(AttributeError):
        one.value = 2.0  # type: ignore[misc]
    assert one == result(value=np.array([1.0, math.nan]))
    assert hash(one) == hash(result(value=np.array([1.0, math.nan])))
    for other in (
        result(), result(value=np.array([1.0, 2.0])), result(value=np.array([1.0, math.nan]), seed=3),
        result(value=np.array([1.0, math.nan], np.float32)), result(value=np.array([[1.0, math.nan]])),
    ):  # fmt: skip
        assert one != other


def test_kind_is_checked() -> None:
    with pytest.raises(ValueError, match=r"kind='exact': must be one of \('upper', 'lower', 'estimate'\)"):
        result(kind="exact")


@pytest.mark.parametrize("name", ["add-remove", "add/remove", "add_remove"])
def test_adjacency_spellings(name: str) -> None:
    assert parse_adjacency(name) == "add-remove"


def test_unknown_adjacency_names_value_and_choices() -> None:
    with pytest.raises(ValueError, match=r"adjacency='swap': must be 'add-remove' or 'replace'"):
        parse_adjacency("swap")


def test_two_adjacencies_are_not_compared() -> None:
    replace = result(assumptions=Assumptions("replace", "sees everything"))
    with pytest.raises(ValueError, match=r"cannot compare a result under add-remove adjacency .* replace adjacency"):
        require_same_adjacency(result(), replace)
    assert require_same_adjacency(result(), result()) == "add-remove"
