"""Values checked by pydantic against the dataclass that defines them. Every fault is named, in leakcore's words."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leakcore.audit.config.faults import (
    MOST,
    Fault,
    missing,
    no_such_key,
    no_such_section,
    raise_all,
    shown,
    wrong_value,
)
from leakcore.audit.config.plain import plain

if TYPE_CHECKING:
    import pydantic

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


def checked(cls: type, values: Mapping[str, Any]) -> Values:
    """The value of every field of the dataclass, with its default if it is missing.

    Raises:
        ValueError: lists every fault by the field's name, its value and what is allowed.
        TypeError: the same, where each of them is a value of another type.
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
    return [
        Fault(f"`{name}` must be a section, [{name}], got {shown(value)}", True)
        if name in known
        else no_such_section(name, known)
        for name, value in sections.items()
        if name not in known or not isinstance(value, Mapping)
    ]


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
            return (
                super().default_schema(schema)
                if schema["default"] is not None
                else self.generate_inner(schema["schema"])
            )

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
    within = f"{section.name}." if section.name else ""
    listed = False
    for (key, *place), kind in _places(error).items():
        if kind == "extra_forbidden":
            fault = no_such_key(within, key, values[key], section.keys, section.others)
            known = f"; {f'[{section.name}] has' if within else 'there are'} {', '.join(section.keys)}"
            yield fault if listed else Fault(fault.text + known)
            listed = True
            continue
        schema = schema_of(section.cls)["properties"][key]
        if kind == "missing":
            yield missing(f"{within}{key}", schema)
            continue
        value = values[key]
        for i in place:
            schema, value = _items(schema), value[i]
        name = f"{within}{key}" + "".join(f"[{i}]" for i in place)
        yield wrong_value(name, value, schema, of_type=kind.endswith(("_type", "instance_of")))


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
