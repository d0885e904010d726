from __future__ import annotations

import dataclasses
import json
import math
import operator
import sys
from typing import Any

import numpy as np
import pytest

from leakcore._base.results import Assumptions, Result, parse_adjacency, require_same_adjacency
from leakcore._base.tables import Table


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


def test_json() -> None:
    text = result(value=np.array([1.0, math.inf, -math.inf, math.nan]), interval=None).to_json()
    data = json.loads(text, parse_constant=lambda word: pytest.fail(f"bare {word} in JSON"))
    assert data["value"] == [1.0, "inf", "-inf", "nan"]
    assert data["schema"] == "leakcore.result/2"
    assert data["assumptions"] == {"adjacency": "add-remove", "attacker": "sees everything", "notes": []}


def test_frozen_and_equal() -> None:
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


def test_kind() -> None:
    with pytest.raises(ValueError, match="`kind` must be 'upper', 'lower' or 'estimate', got 'exact'"):
        result(kind="exact")


@pytest.mark.parametrize("name", ["add-remove", "add/remove", "add_remove"])
def test_adjacency_spellings(name: str) -> None:
    assert parse_adjacency(name) == "add-remove"


def test_unknown_adjacency() -> None:
    with pytest.raises(ValueError, match="`adjacency` must be 'add-remove' or 'replace', got 'swap'"):
        parse_adjacency("swap")


def test_two_adjacencies() -> None:
    replace = result(assumptions=Assumptions("replace", "sees everything"))
    with pytest.raises(ValueError, match=r"cannot compare a result under add-remove adjacency .* replace adjacency"):
        require_same_adjacency(result(), replace)
    assert require_same_adjacency(result(), result()) == "add-remove"


def test_arithmetic() -> None:
    one = result(value=1.23456789)
    assert float(one) == 1.23456789
    assert f"{one:.3f}" == "1.235"
    assert f"{one}" == str(one)
    many = result(value=np.arange(3.0), interval=None)
    for read in (lambda: float(many), lambda: f"{many:.2f}"):
        with pytest.raises(TypeError, match=r"Result.value is an array of shape \(3,\): choose one entry"):
            read()


def test_comparison() -> None:
    low, high = result(value=1.0), result(value=2.0)
    assert low < high
    assert low <= result(value=1.0)
    assert high > low
    assert high >= 2
    assert not low > np.float64(1.5)
    assert sorted([high, low])[0] is low
    assert (result(value=np.array([1.0, 3.0]), interval=None) < high).tolist() == [True, False]
    with pytest.raises(TypeError, match="not supported"):
        assert low < "2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _At(Result):
    compared_at = ("kappa",)
    delta: float | None = None
    kappa: float = 0.1


def _at(**changes: Any) -> _At:
    return _At(**{**{f.name: getattr(result(), f.name) for f in dataclasses.fields(Result)}, **changes})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (_at(assumptions=Assumptions("replace", "a")), "one holds under add-remove adjacency, the other under replace"),
        (_at(delta=1e-5), "one is at δ = none, the other at δ = 1e-05"),
        (_at(quantity="δ"), "these are two quantities"),
        (_at(kappa=0.2), "one is at kappa = 0.1, the other at kappa = 0.2"),
    ],
)
def test_incomparable_numbers(other: _At, message: str) -> None:
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(ValueError, match=f"cannot compare .*{message}"):
            compare(_at(), other)
    assert _at() != other
    assert _at() <= _at(value=9.0)


def test_table_rounding() -> None:
    text = str(result(value=0.12345612, kind="lower", interval=(0.12345612, 0.99999961), confidence=0.99))
    assert text.splitlines() == [
        "Result: number",
        "  value       0.123456",
        "  interval    0.123456 to 1",
        "  kind        lower",
        "  confidence  99%",
        "  adjacency   add-remove",
        "  method      exact",
    ]
    assert "value=0.123457" in repr(result(value=0.12345612, kind="upper"))
    assert "&lt;b&gt;" in result(method="<b>")._repr_html_()


def test_own_methods_with_a_decorator() -> None:
    assert _At.__eq__ is Result.__eq__
    assert _At.__hash__ is Result.__hash__
    assert _At.__repr__ is Result.__repr__


def test_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    grid = result(value=np.arange(6.0).reshape(2, 3), interval=(np.zeros((2, 3)), np.ones((2, 3))), confidence=0.9)
    frame = grid.to_frame()
    assert frame.loc[(1, 2)].to_dict() == {
        "quantity": "number", "kind": "upper", "value": 5.0, "low": 0.0, "high": 1.0, "confidence": 0.9,
        "adjacency": "add-remove",
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'leakcore\[pandas\]'"):
        grid.to_frame()


def test_table_formats() -> None:
    table = Table(("name", "σ"), [("a|b", "1"), ("<i>\x1b", "2.5")])
    assert table.to_text().splitlines()[:3] == ["name  σ", "────  ───", "a|b   1"]
    assert "<td>&lt;i&gt;\\u001b</td><td>2.5</td>" in table.to_html()
    assert table.to_markdown().splitlines()[1:3] == ["|---|---|", "| `a\\|b` | 1 |"]
    assert table.to_frame()["σ"].tolist() == ["1", "2.5"]
