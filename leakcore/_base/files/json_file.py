"""JSON of files: one value for every key, text that is UTF-8, no deeper than can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leakcore._base.printable import name_of, printable

_NO_NUMBERS = "NaN and infinities are not JSON"


def parse_json(text: str | bytes | bytearray, *, constants: bool = False) -> Any:
    """The value; ValueError where the text is not JSON, is nested beyond what can be read, or gives a key twice.

    constants: let NaN, Infinity and -Infinity pass, which `json.dumps` writes for floats.
    """
    try:
        if not isinstance(text, str):
            text = text.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=_object, parse_constant=float if constants else _refused)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as why:
        raise ValueError(printable(f"is not JSON ({why})")) from why


def read_json(path: Path, *, constants: bool = False) -> Any:
    """The value in a file of our own; FileNotFoundError where there is none, ValueError names any other file."""
    try:
        return parse_json(path.read_bytes(), constants=constants)
    except ValueError as why:
        raise ValueError(f"{printable(path)}: {why}") from why


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise ValueError(f"gives {name_of(name)} twice")
            names.add(name)
    return out


def _refused(word: str) -> Any:
    raise ValueError(f"{word}: {_NO_NUMBERS}")
