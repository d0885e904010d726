"""Results carry their guarantee: what kind of number, how sure, for which neighbours, and where the formula is from.

Every public bound and audit returns a frozen subclass of `Result`. Results are equal by value, arrays included.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

import numpy as np

from leakcore._base import validate
from leakcore._base.array_record import equal
from leakcore._base.codec import by_codec, fields_to_plain, from_fields
from leakcore._base.json_arrays import number
from leakcore._base.tables import Rows, as_html, as_line, as_text, one_line, rounded, short, to_frame

if TYPE_CHECKING:
    from typing_extensions import Self


def without(data: Any, *names: str) -> Any:
    """A mapping without these keys, which say again what its other values say; anything else as it is."""
    return {key: value for key, value in data.items() if key not in names} if isinstance(data, dict) else data


class Record:
    """A frozen dataclass that is equal by value, is shown in a few lines, and goes to JSON and back. A class attribute
    `schema` names the form and its version in the JSON, and is checked when it is read."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in ("__eq__", "__hash__", "__repr__"):
            if name not in cls.__dict__:
                # Of its own, so that the decorator `dataclass` does not put another one in its place.
                setattr(cls, name, getattr(cls, name))

    @by_codec
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready types; infinities become "inf" and "-inf", NaN "nan"."""
        return fields_to_plain(self)

    @classmethod
    @by_codec
    def from_dict(cls, data: Any) -> Self:
        """The inverse of `to_dict`, also after a trip through JSON.

        Raises:
            ValueError: that names what is wrong and where, for anything else.
        """
        out: Self = from_fields(data, cls)
        return out

    def table_rows(self) -> Rows:
        """What is shown of it, as (name, value in words)."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return [(f.name, short(getattr(self, f.name))) for f in fields if f.repr]

    def __repr__(self) -> str:
        return one_line(self)

    def __str__(self) -> str:
        return as_text(type(self).__name__, self.table_rows())

    def _repr_html_(self) -> str:
        return as_html(type(self).__name__, self.table_rows())

    def __eq__(self, other: object) -> bool:
        return equal(self, other) if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        # Of what has a hash anyway, so that equal records have one hash; arrays are left to the comparison.
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        small = (getattr(self, f.name) for f in fields if f.compare)
        return hash((type(self).__name__, *(v for v in small if isinstance(v, (str, int)))))


def require_comparable(first: Any, second: Any) -> None:
    """ValueError that says why two results must not be compared."""
    what = f"cannot compare {first.quantity} ({first.method}) with {second.quantity} ({second.method})"
    if first.quantity != second.quantity:
        raise ValueError(f"{what}: these are two quantities")
    if first.adjacency != second.adjacency:
        raise ValueError(
            f"{what}: one holds under {first.adjacency} adjacency, the other under {second.adjacency} adjacency; "
            "convert one of them first"
        )
    at = getattr(first, "delta", None), getattr(second, "delta", None)
    if at[0] != at[1]:
        raise ValueError(f"{what}: one is at δ = {_named(at[0])}, the other at δ = {_named(at[1])}")
    names = first.compared_at if first.compared_at == second.compared_at else ()
    for name in names:
        one, other = np.asarray(getattr(first, name)), np.asarray(getattr(second, name))
        if one.shape != other.shape or not np.allclose(one, other, rtol=1e-12, atol=0.0):
            raise ValueError(f"{what}: one is at {name} = {short(one)}, the other at {name} = {short(other)}")


def _named(delta: Any) -> str:
    return "none" if delta is None else f"{delta:g}"


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


class _Guarantee(TypedDict):
    kind: Kind
    confidence: float | None
    interval: tuple[Number, Number] | None
    assumptions: Assumptions


def attack_guarantee(
    attacker: str,
    notes: Iterable[str] = (),
    *,
    adjacency: Adjacency | None = None,
    kind: Kind = "estimate",
    confidence: float | None = None,
    interval: tuple[Number, Number] | None = None,
) -> _Guarantee:
    """What a result about this attacker guarantees: unless said otherwise it is an estimate without interval."""
    assumptions = Assumptions(adjacency, attacker, tuple(notes))
    return {"kind": kind, "confidence": confidence, "interval": interval, "assumptions": assumptions}


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
