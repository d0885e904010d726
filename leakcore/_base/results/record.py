"""What frozen dataclasses share that users keep: equality by value, and a form in JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from leakcore._base.codec import by_codec, fields_to_plain, from_fields
from leakcore._base.results.equal import equal
from leakcore._base.results.table import Rows, as_html, as_text, one_line, short

if TYPE_CHECKING:
    from typing_extensions import Self


def without(data: Any, *names: str) -> Any:
    """A mapping without these keys, which say again what its other values say; anything else as it is."""
    return {key: value for key, value in data.items() if key not in names} if isinstance(data, dict) else data


class Record:
    """A frozen dataclass that is equal by value, is shown in a few lines, and goes to JSON and back.

    A class attribute `schema` names the form and its version in the JSON, and is checked when it is read.
    """

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
