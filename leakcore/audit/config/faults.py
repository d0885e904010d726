"""What is wrong with a configuration, in words: the key, its value, what is allowed, and what was probably meant."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leakcore._base.text import name_of, printable
from leakcore._base.validate import either

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


def wrong_value(name: str, value: Any, schema: Mapping[str, Any], *, of_type: bool) -> Fault:
    """A value that the key's JSON Schema does not allow."""
    return Fault(f"`{name}` must be {allowed(schema, value)}, got {shown(value)}", of_type)


def missing(name: str, schema: Mapping[str, Any]) -> Fault:
    """A key that has no default."""
    return Fault(f"`{name}` must be given: {allowed(schema)}")


def no_such_section(name: object, known: Iterable[str]) -> Fault:
    """A section that does not exist, and the one that was probably meant."""
    known = list(known)
    return Fault(
        f"[{name_of(name)}]: no such section{_meant(nearest(name, known), '[{}]')}; there are {', '.join(known)}"
    )


def no_such_key(within: str, key: str, value: Any, known: Sequence[str], others: Mapping[str, Sequence[str]]) -> Fault:
    """A key that does not exist, and the one that was probably meant: of another section, or spelt otherwise.

    Args:
        within: what stands before the section's keys: "run.", or nothing.
        key: as it is spelt.
        value: that it has.
        known: the section's keys.
        others: the keys of the sections that go with it.
    """
    elsewhere = [f"{name}.{key}" for name, keys in others.items() if key in keys]
    every = {k: f"{name}.{k}" for name, keys in others.items() for k in keys}
    close = nearest(key, known)
    meant = elsewhere[-1] if elsewhere else within + close if close else every.get(nearest(key, every), "")
    return Fault(f"`{within}{name_of(key)} = {shown(value)}`: no such key{_meant(meant, '`{}`')}")


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
