"""How keys of a configuration are read: checked, with errors that name section.key, the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from leakcore._base import validate as check
from leakcore._base.printable import name_of, printable
from leakcore._base.results import parse_adjacency

Keys = dict[str, tuple[Any, Callable[..., Any]]]
"""Key: default, and how it is read."""


def optional(read: Callable[..., Any]) -> Callable[..., Any]:
    """None, or what `read` takes."""
    return lambda **given: None if next(iter(given.values())) is None else read(**given)


def whole(low: int, high: int | None = None) -> Callable[..., int]:
    """An integer in [low, high]."""
    return lambda **given: check.integer(low, high, **given)


def words(*allowed: str) -> Callable[..., str]:
    """One of these."""
    return lambda **given: check.one_of(*allowed, **given)


def wholes(low: int) -> Callable[..., tuple[int, ...]]:
    """A list of integers ≥ low."""

    def read(**given: Any) -> tuple[int, ...]:
        ((name, value),) = given.items()
        if not isinstance(value, list | tuple):
            raise TypeError(f"{name}={value!r}: must be a list of integers")
        return tuple(check.integer(low, None, **{f"{name}[{i}]": v}) for i, v in enumerate(value))

    return read


def flag(**given: Any) -> bool:
    """true or false."""
    ((name, value),) = given.items()
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: must be true or false")
    return value


def text(**given: Any) -> str:
    """A path or a name."""
    ((name, value),) = given.items()
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise TypeError(f"{name}={value!r}: must be a path or a name, in quotes")
    return str(value)


def texts(**given: Any) -> str | tuple[str, ...]:
    """A path or a name, or a list of some: one of them as such."""
    ((name, value),) = given.items()
    if not isinstance(value, list | tuple) or not value:
        return text(**given)
    read = tuple(text(**{f"{name}[{i}]": item}) for i, item in enumerate(value))
    return read[0] if len(read) == 1 else read


def adjacency(**given: Any) -> str:
    """add-remove or replace."""
    ((name, value),) = given.items()
    try:
        return parse_adjacency(value)
    except ValueError:
        raise ValueError(f"{name}={value!r}: must be 'add-remove' or 'replace'") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """(did you mean …?), or nothing where nothing is near."""
    found = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def require_known(section: str, given: Mapping[str, Any], keys: Keys, others: Mapping[str, Keys]) -> None:
    """ValueError that names the first unknown key, its value, what there is, and what was probably meant."""
    for key, value in given.items():
        if key not in keys:
            near = nearest(key, keys) or nearest(key, [k for o in others.values() for k in o])
            for name, theirs in others.items():
                if key in theirs:
                    near = f" (did you mean {name}.{key}?)"
            raise ValueError(
                f"{section}.{name_of(key)}={_short(value)}: no such key; there are {', '.join(keys)}{near}"
            )


def _short(value: Any) -> str:
    shown = printable(repr(value))
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def read_section(section: str, given: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Every key, checked, with its default where it is not given."""
    return {key: how(**{f"{section}.{key}": given.get(key, default)}) for key, (default, how) in keys.items()}
