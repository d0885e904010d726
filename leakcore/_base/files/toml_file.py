"""TOML configurations: one reader, and limits that no configuration comes near."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leakcore._base.files.limits import open_regular
from leakcore._base.printable import name_of, printable

LARGEST = 2**18
"""Bytes of a configuration: what is longer is some other file."""
_DEEPEST = 16
"""Tables within tables, and names joined by dots."""
_LONGEST = 4096
"""Characters of a text, as long as a path may be."""
_INTEGERS = 2**64
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_NAME}[ \t]*\.[ \t]*){{{_DEEPEST},}}")


def called(path: str | Path) -> str:
    """A configuration, as errors name it."""
    return f"config={printable(repr(str(path)))}"


@contextlib.contextmanager
def of_file(path: str | Path) -> Iterator[None]:
    """What the block finds wrong with the keys of a configuration names its file."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{called(path)}: {error}") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file.

    ValueError names the file and says why it cannot be read: where it is not TOML, with line and column; where it is
    larger than 256 KiB, nested deeper than 16, or holds a text of more than 4,096 characters or an integer beyond 64
    bits, which no configuration does.
    """
    where = Path(path)
    what = called(where)
    try:
        with open_regular(where) as stream:
            raw = stream.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise ValueError(f"is larger than {LARGEST:,} bytes, which no configuration is")
        content = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError as why:
        raise ValueError(f"{what}: cannot be read ({printable(why.strerror)})") from None
    except UnicodeDecodeError as why:
        raise ValueError(f"{what}: cannot be read ({printable(why)})") from None
    except ValueError as why:
        raise ValueError(f"{what}: {printable(why)}") from None
    # A parser takes time that grows with the square of the dots.
    if dots := _DOTTED.search(content):
        line = content.count("\n", 0, dots.start()) + 1
        raise ValueError(f"{what}: line {line} joins more than {_DEEPEST} names by dots, which no configuration does")
    # Python 3.10 has no tomllib; tomli is the same module under its first name.
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        tables = dict(tomllib.loads(content))
    except (ValueError, RecursionError) as why:  # ValueError: TOMLDecodeError, and an integer of too many digits
        raise ValueError(f"{what}: is not TOML ({printable(why, 300)})") from None
    for place, problem in _problems(tables):
        raise ValueError(f"{what}: {printable(place, 300)} {problem}, which no configuration does")
    return tables


def _problems(tables: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What no configuration holds, with the place where it is; without recursion, as depth is one of them."""
    rest: list[tuple[str, int, Any]] = [("", 0, tables)]
    while rest:
        place, depth, value = rest.pop()
        if depth > _DEEPEST:
            yield place, f"is nested deeper than {_DEEPEST}"
        elif isinstance(value, dict):
            rest += [(f"{place}.{name_of(k)}".lstrip("."), depth + 1, v) for k, v in value.items()]
        elif isinstance(value, list):
            rest += [(f"{place}[{i}]", depth + 1, v) for i, v in enumerate(value)]
        elif isinstance(value, str) and len(value) > _LONGEST:
            yield place, f"is a text of {len(value):,} characters"
        elif isinstance(value, int) and abs(value) > _INTEGERS:
            yield place, "is an integer beyond 64 bits"
