"""Results carry their guarantee: what kind of number, how sure, for which neighbours, and where the formula is from.

Every public bound and audit returns a frozen subclass of `Result`. Results are equal by value, arrays included.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from leakcore._base import validate
from leakcore._base.codec import by_codec, fields_to_plain
from leakcore._base.codec.numbers import number
from leakcore._base.results.comparison import require_comparable
from leakcore._base.results.frame import to_frame
from leakcore._base.results.record import Record
from leakcore._base.results.table import Rows, as_html, as_line, as_text, rounded, short

Kind = Literal["upper", "lower", "estimate"]
Adjacency = Literal["add-remove", "replace", "zero-out"]
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
    "zero-out": "zero-out",
}


def parse_adjacency(value: str) -> Adjacency:
    """The canonical name of a neighbouring relation; `ValueError` names what is allowed."""
    try:
        return _ADJACENCIES[value]
    except (KeyError, TypeError):
        raise ValueError(f"`adjacency` must be 'add-remove' or 'replace', got {value!r}") from None


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

    `float(r)` and `f"{r:.3f}"` give the number, `print(r)` a small table. `r < s` compares the numbers of two results
    of one quantity, and raises ValueError where adjacency or δ differ. Results are equal by value, arrays included.

    Attributes:
        quantity: what the number is.
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

    schema: ClassVar[str] = "leakcore.result/2"
    compared_at: ClassVar[tuple[str, ...]] = ()
    """Fields that must be equal for two results to be compared, besides quantity, adjacency and δ."""

    quantity: str = "number"
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
            raise ValueError(f"`kind` must be {validate.either(map(repr, _KINDS))}, got {self.kind!r}")

    @property
    def adjacency(self) -> Adjacency | None:
        """The neighbouring relation under which the number holds."""
        return self.assumptions.adjacency

    def __float__(self) -> float:
        if np.ndim(self.value):
            raise TypeError(
                f"{type(self).__name__}.value is an array of shape {np.shape(self.value)}: choose one entry, such as "
                "float(result.value[0])"
            )
        return float(self.value)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def _other(self, other: object) -> Any:
        """The number to compare with; None where `other` is not a number."""
        if isinstance(other, Result):
            require_comparable(self, other)
            return other.value
        plain = isinstance(other, (int, float, np.integer, np.floating)) and not isinstance(other, bool)
        return other if plain else None

    def __lt__(self, other: object) -> Any:
        number = self._other(other)
        return NotImplemented if number is None else self.value < number

    def __le__(self, other: object) -> Any:
        number = self._other(other)
        return NotImplemented if number is None else self.value <= number

    def __gt__(self, other: object) -> Any:
        number = self._other(other)
        return NotImplemented if number is None else self.value > number

    def __ge__(self, other: object) -> Any:
        number = self._other(other)
        return NotImplemented if number is None else self.value >= number

    def table_rows(self) -> Rows:
        """The lines of its table, as (name, value in words)."""
        rows = [("value", rounded(self.value, self.kind))]
        if self.interval is not None:
            low, high = (rounded(end, side) for end, side in zip(self.interval, ("lower", "upper"), strict=True))
            many = np.ndim(self.interval[0]) > 0
            rows.append(("interval", f"low: {low}; high: {high}" if many else f"{low} to {high}"))
        sure = "exact" if self.confidence is None and self.kind != "estimate" else "none stated"
        rows += [
            ("kind", self.kind),
            ("confidence", sure if self.confidence is None else f"{100 * self.confidence:.10g}%"),
            ("adjacency", self.adjacency or "none"),
        ]
        at = [name for name in ("delta", *self.compared_at) if getattr(self, name, None) is not None]
        rows += [({"delta": "δ", "epsilon": "ε", "kappa": "κ"}.get(n, n), short(getattr(self, n))) for n in at]
        return [*rows, ("method", self.method)]

    def __repr__(self) -> str:
        return as_line(type(self).__name__, self.table_rows())

    def __str__(self) -> str:
        return as_text(self._title, self.table_rows())

    def _repr_html_(self) -> str:
        return as_html(self._title, self.table_rows())

    @property
    def _title(self) -> str:
        return f"{type(self).__name__}: {self.quantity}"

    def to_frame(self) -> Any:
        """A tidy pandas DataFrame: one row for each value.

        Returns:
            Columns quantity, kind, value, low, high, confidence, adjacency; the index is the place in the array.

        Raises:
            ImportError: where pandas is not installed (`pip install 'leakcore[pandas]'`).
        """
        return to_frame(self)

    @by_codec
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready types with the schema's version; infinities become "inf" and "-inf", NaN "nan"."""
        return fields_to_plain(self, Result)

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
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (str, int, bool)) or value is None:
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
