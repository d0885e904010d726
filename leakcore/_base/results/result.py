"""Results carry their guarantee: what kind of number, how sure, for which neighbours, and where the formula is from.

Every public bound and audit returns a frozen subclass of `Result`. Results are equal by value, arrays included.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from leakcore._base.codec import by_codec, to_plain
from leakcore._base.results.record import Record

Kind = Literal["upper", "lower", "estimate"]
Adjacency = Literal["add-remove", "replace"]
Number = float | np.ndarray
"""A float, or a float64 array where the caller asked for several values at once."""

_KINDS = ("upper", "lower", "estimate")
_ADJACENCIES: dict[str, Adjacency] = {
    "add-remove": "add-remove",
    "add/remove": "add-remove",
    "add_remove": "add-remove",
    "add-or-remove-one": "add-remove",
    "replace": "replace",
    "replacement": "replace",
    "replace-one": "replace",
}


def parse_adjacency(value: str) -> Adjacency:
    """The canonical name of a neighbouring relation; `ValueError` names what is allowed."""
    try:
        return _ADJACENCIES[value]
    except (KeyError, TypeError):
        raise ValueError(f"adjacency={value!r}: must be 'add-remove' or 'replace'") from None


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """What must hold for the number to mean what it says.

    adjacency: the neighbouring relation of the two datasets, or None where no privacy parameter is involved.
    attacker: what the attacker sees and knows, in one sentence.
    notes: anything else a reader must know before quoting the number.
    """

    adjacency: Adjacency | None
    attacker: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.adjacency is not None:
            object.__setattr__(self, "adjacency", parse_adjacency(self.adjacency))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Result(Record):
    """A number with its guarantee.

    Attributes:
        value: the number, a float or a float64 array.
        kind: "upper" (no attacker does better), "lower" (proof that at least this much leaks) or "estimate" (no
            guarantee).
        confidence: probability with which the guarantee holds; None when it is deterministic.
        interval: (low, high) around `value`; None where there is none. For a deterministic method, its error bound.
        method: the algorithm that produced the number.
        assumptions: adjacency, attacker's knowledge, notes.
        seed: seed of the randomness that was used; None when there was none.
        provenance: paper and equation.
    """

    schema: ClassVar[str] = "leakcore.result/1"

    value: Number
    kind: Kind
    confidence: float | None
    interval: tuple[Number, Number] | None
    method: str
    assumptions: Assumptions
    seed: int | None = None
    provenance: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"kind={self.kind!r}: must be one of {_KINDS}")

    @property
    def adjacency(self) -> Adjacency | None:
        """The neighbouring relation under which the number holds."""
        return self.assumptions.adjacency

    @by_codec
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready types with the schema's version; infinities become "inf" and "-inf", NaN "nan"."""
        return dict(to_plain(self, Result))

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as strict JSON (no bare Infinity or NaN)."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)


def jsonable(value: Any) -> Any:
    """Recursively turn results, arrays and numbers into what strict JSON can hold."""
    if isinstance(value, Result):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, Iterable):
        return [jsonable(v) for v in value]
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def require_same_adjacency(first: Result, second: Result) -> Adjacency | None:
    """The common adjacency of two results; `ValueError` when they may not be compared."""
    if first.adjacency != second.adjacency:
        raise ValueError(
            f"cannot compare a result under {first.adjacency} adjacency ({first.method}) with one under "
            f"{second.adjacency} adjacency ({second.method}): convert one of them explicitly first"
        )
    return first.adjacency
