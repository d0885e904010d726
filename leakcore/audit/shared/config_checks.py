"""What the keys of a configuration may hold: types, checks by pydantic, and every fault in leakcore's words."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import functools
import itertools
import operator
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Interval, MinLen, Predicate

from leakcore._base import array_memory
from leakcore._base.text import name_of, printable
from leakcore._base.validate import either

if TYPE_CHECKING:
    import pydantic

MOST_STEPS = 2**24 - 1
"""Steps that the random generator tells apart."""
MOST_RUNS = 10**7
MOST_HIDDEN = 2**16
"""Limits of sizes: what is more would take days, or memory that no machine has."""


def _holds_no_nul(text: str) -> bool:
    return "\0" not in text


Text = Annotated[str, MinLen(1), Predicate(_holds_no_nul)]
"""A path or a name."""
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Probability = Annotated[float, Interval(ge=0, le=1)]
SampleRate = Annotated[float, Interval(gt=0, le=1)]
"""A run that samples nothing has nothing to audit."""
PositiveDelta = Annotated[float, Interval(gt=0, lt=1)]
Delta = Annotated[float, Interval(ge=0, lt=1)]
Confidence = Annotated[float, Interval(gt=0, le=1 - 1e-12)]
"""So near to 1 that its complement cannot be divided among several limits is refused."""
Claimable = Annotated[float, Interval(gt=0, le=1e6)]
"""A larger ε does not count as a claim, and no accountant goes further."""
Count = Annotated[int, Ge(1)]
CountFrom2 = Annotated[int, Ge(2)]
Runs = Annotated[int, Interval(ge=1, le=MOST_RUNS)]
Trials = Annotated[int, Interval(ge=2, le=MOST_RUNS)]
Width = Annotated[int, Interval(ge=1, le=MOST_HIDDEN)]
"""Units of a hidden layer."""
Steps = Annotated[int, Interval(ge=1, le=MOST_STEPS)]
Seed = Annotated[int, Interval(ge=0, le=2**64 - 1)]
AdjacencyName = Literal["add-remove", "replace"]
ClaimedAdjacencyName = Literal["add-remove", "replace", "zero-out"]
ActivationName = Literal["elu", "relu", "tanh", "gelu", "silu", "sigmoid", "softplus", "leaky_relu"]


def plain(value: Any) -> Any:
    """A list of plain values, a path as text, a number of any library as Python's; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return tuple(_scalar(item) for item in value)
    return str(value) if isinstance(value, Path) else _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, np.ndarray) or array_memory.is_torch(value):
        try:
            array = array_memory.array("", value)
        except (TypeError, ValueError):  # no memory that may be read
            return value
        if array.size != 1:
            return value
        value = array.reshape(())[()]
    if isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, np.generic):
        number = {"b": bool, "i": int, "u": int, "f": float}.get(value.dtype.kind)
        return value if number is None else number(value)
    try:
        return operator.index(value) if hasattr(type(value), "__index__") else float(value)
    except (TypeError, ValueError, OverflowError):
        return value


MOST = 10
"""Faults that one error lists."""
_LONGEST = 60
"""Characters of a value that is shown."""
_NAMES = {"boolean": "true or false", "integer": "an integer", "number": "a number", "string": "text"}
_PLURALS = {"integer": "integers", "number": "numbers", "string": "paths or names"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that is wrong. of_type: the value is of another type, not out of range."""

    text: str
    of_type: bool = False


def raise_all(faults: Sequence[Fault]) -> None:
    """Nothing if there is none; TypeError if all of them are values of another type, otherwise ValueError."""
    if not faults:
        return
    lines = [fault.text for fault in faults[:MOST]]
    if len(faults) > MOST:
        lines.append("and more")
    kind = TypeError if all(fault.of_type for fault in faults) else ValueError
    raise kind("\n".join(lines))


def nearest(word: object, known: Iterable[str]) -> str:
    """The known word that was probably meant; "" if none is close."""
    return next(iter(difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)), "")


def _meant(word: str, form: str) -> str:
    return f" (did you mean {form.format(word)}?)" if word else ""


def shown(value: Any) -> str:
    """The value as it is written, cut where it is long. Of what is not plain only the type: its memory may be freed."""
    if isinstance(value, (datetime.date, datetime.time)):
        return str(value)
    return printable(repr(value), _LONGEST) if _is_plain(value) else type(value).__name__


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, [*value, *value.values()]))
    return isinstance(value, (str, bytes, int, float, complex, type(None), datetime.date, datetime.time))


def allowed(schema: Mapping[str, Any], value: Any = None) -> str:
    """What a JSON Schema allows, in words; for a number that is out of range the range alone."""
    if "anyOf" in schema:
        return ", or ".join(allowed(option) for option in schema["anyOf"])
    if "enum" in schema:
        return either(map(repr, schema["enum"]))
    kind = schema["type"]
    if kind == "array":
        each, least = _range(schema["items"]), ", at least one" if schema.get("minItems") else ""
        return f"a list of {_PLURALS[schema['items']['type']]}{each and f', each {each}'}{least}"
    if kind == "string" and schema.get("minLength"):
        return "a path or a name"
    numbers = {"number": (int, float), "integer": (int,)}.get(kind, ())
    limits = _range(schema)
    if limits and isinstance(value, numbers) and not isinstance(value, bool):
        return limits
    return _NAMES[kind] + (limits and f" {limits}".replace(" at least", " of at least"))


def _range(schema: Mapping[str, Any]) -> str:
    """Where numbers must lie: "above 0", "at least 1", "in (0, 1]"; empty without a limit."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        return ""
    if high is None:
        return f"{'at least' if 'minimum' in schema else 'above'} {_number(low)}"
    ends = "[" if "minimum" in schema else "(", "]" if "maximum" in schema else ")"
    return f"in {ends[0]}{_number(low)}, {_number(high)}{ends[1]}"


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if 0.999999 < value < 1:
        return f"1 - {1 - value:.3g}"
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Section:
    """A section by its dataclass. others: the keys of the sections that go with it."""

    cls: type
    name: str = ""
    others: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        return _names(self.cls)

    @property
    def within(self) -> str:
        """What stands before its keys: "run.", or nothing."""
        return self.name and f"{self.name}."

    def no_such_key(self, key: str, value: Any) -> str:
        """A key that does not exist, and the one that was probably meant: of another section, or spelt otherwise."""
        elsewhere = [f"{name}.{key}" for name, keys in self.others.items() if key in keys]
        every = {k: f"{name}.{k}" for name, keys in self.others.items() for k in keys}
        close = nearest(key, self.keys)
        meant = elsewhere[-1] if elsewhere else self.within + close if close else every.get(nearest(key, every), "")
        return f"`{self.within}{name_of(key)} = {shown(value)}`: no such key{_meant(meant, '`{}`')}"


def checked(cls: type, values: Mapping[str, Any]) -> Values:
    """The value of every field of the dataclass, with its default if it is missing.

    ValueError lists every fault by the field's name, its value and what is allowed; TypeError where each of them is a
    value of another type.
    """
    read, faults = _read(_Section(cls), values)
    raise_all(faults)
    return read


def refuse_sections(sections: Mapping[str, Any], known: Collection[str]) -> None:
    """An error that lists every name that no section has, and every section that is none."""
    raise_all(_wrong_sections(sections, known))


def checked_sections(classes: Mapping[str, type], sections: Mapping[str, Any]) -> dict[str, Values]:
    """`checked` of every section by its dataclass; faults name section.key."""
    faults = _wrong_sections(sections, classes)
    out = {}
    for name, cls in classes.items():
        section = sections.get(name, {})
        if isinstance(section, Mapping):
            others = {other: _names(c) for other, c in classes.items() if other != name}
            out[name], more = _read(_Section(cls, name, others), section)
            faults += more
    raise_all(faults)
    return out


def _wrong_sections(sections: Mapping[str, Any], known: Collection[str]) -> list[Fault]:
    faults = []
    for name, value in sections.items():
        if name not in known:
            meant = _meant(nearest(name, known), "[{}]")
            faults.append(Fault(f"[{name_of(name)}]: no such section{meant}; there are {', '.join(known)}"))
        elif not isinstance(value, Mapping):
            faults.append(Fault(f"`{name}` must be a section, [{name}], got {shown(value)}", True))
    return faults


@functools.cache
def model_of(cls: type) -> type[pydantic.BaseModel]:
    """The dataclass's fields as a model of pydantic. (A dataclass that checks itself would check without end.)"""
    import pydantic

    hints = typing.get_type_hints(cls, include_extras=True)
    # By alias: a field may have the name of a method of pydantic's, such as "json".
    fields: Values = {
        f"{f.name}_": (
            hints[f.name],
            pydantic.Field(... if f.default is dataclasses.MISSING else f.default, alias=f.name),
        )
        for f in dataclasses.fields(cls)
    }
    config = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return pydantic.create_model(cls.__name__, __config__=config, **fields)


@functools.cache
def schema_of(cls: type) -> Values:
    """The dataclass as a JSON Schema. TOML has no null: an optional key may be absent."""
    from pydantic.json_schema import GenerateJsonSchema

    class Schema(GenerateJsonSchema):
        def nullable_schema(self, schema: Any) -> Values:
            return self.generate_inner(schema["schema"])

        def default_schema(self, schema: Any) -> Values:
            has_default = schema["default"] is not None
            return super().default_schema(schema) if has_default else self.generate_inner(schema["schema"])

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    schema = model_of(cls).model_json_schema(schema_generator=Schema)
    return {name: part for name, part in schema.items() if name != "title"}


def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


def _read(section: _Section, values: Mapping[str, Any]) -> tuple[Values, list[Fault]]:
    import pydantic

    values = {str(name): value for name, value in values.items()}
    try:
        model = model_of(section.cls).model_validate({name: plain(value) for name, value in values.items()})
    except pydantic.ValidationError as error:
        return {}, list(itertools.islice(_faults(section, values, error), MOST + 1))
    return {name: getattr(model, f"{name}_") for name in section.keys}, []


def _faults(section: _Section, values: Values, error: pydantic.ValidationError) -> Iterator[Fault]:
    known = f"; {f'[{section.name}] has' if section.name else 'there are'} {', '.join(section.keys)}"
    for (key, *place), kind in _places(error).items():
        name = f"{section.within}{key}" + "".join(f"[{i}]" for i in place)
        if kind == "extra_forbidden":
            yield Fault(section.no_such_key(key, values[key]) + known)
            known = ""  # said once
            continue
        schema = schema_of(section.cls)["properties"][key]
        if kind == "missing":
            yield Fault(f"`{name}` must be given: {allowed(schema)}")
            continue
        value = values[key]
        for i in place:
            schema, value = _items(schema), value[i]
        of_type = kind.endswith(("_type", "instance_of"))
        yield Fault(f"`{name}` must be {allowed(schema, value)}, got {shown(value)}", of_type)


def _places(error: pydantic.ValidationError) -> dict[tuple[Any, ...], str]:
    """Key and positions in its list: what is wrong there, in pydantic's word.

    Of a union pydantic names what each member refuses: the innermost is the member that was meant.
    """
    places: dict[tuple[Any, ...], str] = {}
    depth: dict[Any, int] = {}
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        key, *inside = one["loc"]
        place = (key, *(i for i in inside if isinstance(i, int)))
        depth[key] = max(depth.get(key, 0), len(place))
        places[place] = one["type"]
    return {place: kind for place, kind in places.items() if len(place) == depth[place[0]]}


def _items(schema: Values) -> Values:
    """The schema of a list's entries."""
    return dict(next(option["items"] for option in schema.get("anyOf", [schema]) if "items" in option))
