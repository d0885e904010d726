"""JSON of files: one value for every key, text that is UTF-8, no deeper and no larger than what leakcore writes.

Python makes up to sixty bytes of one byte of JSON (of `{},{},{}`), so both bytes and values are bounded before parsing.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from leakcore._base.files.limits import read_bytes
from leakcore._base.printable import name_of, printable

LARGEST = 2**25
"""Bytes of a file, and characters of a text."""
_MOST = 2**20
"""Values: a report of leakcore's holds some thousands."""
_DEEPEST = 64
"""Values within values: a report of leakcore's is a dozen deep."""
_DIGITS = 308
"""Of a whole number: with as many it is a float64, too."""
_NO_NUMBERS = "NaN and infinities are not JSON"


def parse_json(text: str | bytes | bytearray, *, constants: bool = False) -> Any:
    """The value; ValueError where the text is not JSON, gives a key twice, holds a number beyond float64, is nested
    deeper than 64, has more than 2²⁵ characters or more than 2²⁰ values (as many commas and brackets).

    constants: let NaN, Infinity and -Infinity pass, which `json.dumps` writes for floats.
    """
    _require_size(text)
    try:
        if not isinstance(text, str):
            text = text.decode("utf-8-sig")
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=float if constants else _refused,
            parse_float=_float,
            parse_int=_int,
        )
    except RecursionError:
        raise ValueError(f"is nested too deeply, more than {_DEEPEST} values within values") from None
    except ValueError as why:
        raise ValueError(printable(f"is not JSON ({why})")) from why
    _require_flat(value)
    return value


def read_json(path: Path, *, constants: bool = False) -> Any:
    """The value in a file of our own; FileNotFoundError where there is none, ValueError names any other file."""
    try:
        return parse_json(read_bytes(path, LARGEST), constants=constants)
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


def _require_size(text: str | bytes | bytearray) -> None:
    if len(text) > LARGEST:
        raise ValueError(f"has {len(text):,} characters, at most {LARGEST:,} are read")
    if isinstance(text, str):
        values = sum(text.count(mark) for mark in ",[{")
    else:
        values = sum(text.count(mark) for mark in (b",", b"[", b"{"))
    if values > _MOST:
        raise ValueError(f"holds {values:,} values, at most {_MOST:,} are read")


def _require_flat(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [
            inside
            for outside in level
            if isinstance(outside, (dict, list))
            for inside in (outside.values() if isinstance(outside, dict) else outside)
        ]
        if not level:
            return
    raise ValueError(f"is nested too deeply, more than {_DEEPEST} values within values")


def _float(word: str) -> float:
    value = float(word)
    if math.isinf(value):
        raise ValueError(f"{name_of(word)} is a number beyond float64")
    return value


def _int(word: str) -> int:
    if len(word.lstrip("-")) > _DIGITS:
        raise ValueError(f"{name_of(word)} is a number beyond float64")
    return int(word)


def _refused(word: str) -> Any:
    raise ValueError(f"{word}: {_NO_NUMBERS}")
