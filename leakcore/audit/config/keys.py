"""How keys of a configuration are read: checked, with errors that name section.key, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from leakcore._base import validate as check
from leakcore._base.printable import name_of, printable
from leakcore._base.results import parse_adjacency

Keys = dict[str, tuple[Any, Callable[..., Any]]]
"""Key: default, and how it is read."""


@dataclasses.dataclass(frozen=True, eq=False)
class KeyReader:
    """How a key is read, and what it accepts as a JSON Schema; for an optional key that of `inner`."""

    read: Callable[..., Any]
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inner: Callable[..., Any] | None = None

    def __call__(self, **named: Any) -> Any:
        """The value of section.key, checked."""
        return self.read(**named)


def optional(read: Callable[..., Any]) -> KeyReader:
    """None, or what `read` takes."""
    return KeyReader(lambda **named: None if next(iter(named.values())) is None else read(**named), inner=read)


def whole(low: int, high: int | None = None) -> KeyReader:
    """An integer in [low, high]."""
    schema = {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})
    return KeyReader(lambda **named: check.integer(low, high, **named), schema)


def words(*allowed: str) -> KeyReader:
    """One of these."""
    return KeyReader(lambda **named: check.one_of(*allowed, **named), {"enum": list(allowed)})


def wholes(low: int) -> KeyReader:
    """A list of integers ≥ low."""

    def read(**named: Any) -> tuple[int, ...]:
        ((name, value),) = named.items()
        if not isinstance(value, list | tuple):
            raise TypeError(f"{name}={value!r}: must be a list of integers")
        return tuple(check.integer(low, None, **{f"{name}[{i}]": v}) for i, v in enumerate(value))

    return KeyReader(read, {"type": "array", "items": {"type": "integer", "minimum": low}})


def _flag(**named: Any) -> bool:
    ((name, value),) = named.items()
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: must be true or false")
    return value


def _text(**named: Any) -> str:
    ((name, value),) = named.items()
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise TypeError(f"{name}={value!r}: must be a path or a name, in quotes")
    return str(value)


def _texts(**named: Any) -> str | tuple[str, ...]:
    ((name, value),) = named.items()
    if not isinstance(value, list | tuple) or not value:
        return _text(**named)
    read = tuple(_text(**{f"{name}[{i}]": item}) for i, item in enumerate(value))
    return read[0] if len(read) == 1 else read


def _adjacency(**named: Any) -> str:
    ((name, value),) = named.items()
    try:
        return parse_adjacency(value)
    except ValueError:
        raise ValueError(f"{name}={value!r}: must be 'add-remove' or 'replace'") from None


_NAME = {"type": "string", "minLength": 1}
flag = KeyReader(_flag, {"type": "boolean"})
"""true or false."""
text = KeyReader(_text, _NAME)
"""A path or a name."""
texts = KeyReader(_texts, {"anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}]})
"""A path or a name, or a list of some: one of them as such."""
adjacency = KeyReader(_adjacency, {"enum": ["add-remove", "replace"]})
"""add-remove or replace."""


def nearest(word: str, known: Iterable[str]) -> str:
    """(did you mean ...?), or nothing if no word is close."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def require_known(section: str, values: Mapping[str, Any], keys: Keys, others: Mapping[str, Keys]) -> None:
    """ValueError that names the first unknown key, its value, the known keys, and the one that was probably meant."""
    for key, value in values.items():
        if key not in keys:
            near = nearest(key, keys) or nearest(key, [k for o in others.values() for k in o])
            for name, theirs in others.items():
                if key in theirs:
                    near = f" (did you mean {name}.{key}?)"
            raise ValueError(
                f"{section}.{name_of(key)}={_short(value)}: no such key; there are {', '.join(keys)}{near}"
            )


def _short(value: Any) -> str:
    text = printable(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_section(section: str, values: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Every key, checked, with its default if it is missing."""
    return {key: how(**{f"{section}.{key}": values.get(key, default)}) for key, (default, how) in keys.items()}
