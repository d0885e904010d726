"""Files that users bring: a reader for each format, one rule for what a file may be and may take.

A file is a regular one: a pipe that nobody writes to would stop a command for good, a device has no end. It is looked
at before it is opened and again once it is open, and it is opened so that no kind of file can make it wait.

A megabyte of zip or gzip may unfold to a thousand. What is read is at most 64 MiB, or a hundred times the file's own
size where that is more: scores, gradients and pictures compress two- to tenfold. What compresses better than that (a
gradient that is nearly all zeros) is to be saved uncompressed.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from leakcore._base.text import name_of, printable

FREE = 2**26
"""Bytes that any file may expand to."""
RATIO = 100
"""Times its own size that a file may expand to, where that is more."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def allowed(size: int) -> int:
    """Bytes that a file of this size may expand to."""
    return max(FREE, RATIO * size)


def require_allowed(expanded: int, size: int, what: str = "it") -> None:
    """ValueError where `what` would expand to more than a file of `size` bytes may; it says limit and way out."""
    if expanded > allowed(size):
        raise ValueError(
            f"{what} expands to {expanded:,} bytes or more; a file of {size:,} bytes may expand to {allowed(size):,} "
            f"({FREE >> 20} MiB, or {RATIO} times its size); save it uncompressed if it is what you mean"
        )


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, open for reading, if it is a regular one or a link to one. FileNotFoundError where nothing is;
    ValueError, which does not name the file, where it is something else or the system refuses."""
    try:
        _require_regular(os.stat(path))
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            _require_regular(os.fstat(handle))  # another file may have taken the name meanwhile
            return os.fdopen(handle, "rb")
        except BaseException:
            os.close(handle)
            raise
    except FileNotFoundError:
        raise
    except OSError as why:
        raise ValueError(f"cannot be read ({printable(why.strerror or why)})") from why


def size_of(stream: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(stream.fileno()).st_size


def read_bytes(path: Path, most: int) -> bytes:
    """All bytes of a regular file. A file of more than `most` bytes raises ValueError; other errors are those of
    `open_regular`."""
    with open_regular(path) as stream:
        size = size_of(stream)
        content = stream.read(size + 1) if size <= most else b""
        if len(content) > size:  # it grows, or it is one of /proc, which says that it is empty
            content += stream.read(most + 1 - len(content))
    if max(size, len(content)) > most:
        raise ValueError(f"is larger than {most:,} bytes")
    return content


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise ValueError(f"is {kind}, not a regular file")


LARGEST_CSV = 2**30
"""Bytes of a file: a hundred million numbers."""
_LONGEST_ROW = 2**20
"""Characters of a row."""


def read_csv(path: Path) -> Iterator[list[str]]:
    """Rows of a file in UTF-8, the first one its header; comma, semicolon or tab, whichever the first line has most of.

    A file that does not exist raises FileNotFoundError. A file above 1 GiB, one that is no text, and a row of more than
    1,048,576 characters raise ValueError, which names the file.
    """
    try:
        with open_regular(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as file:
            if size_of(stream) > LARGEST_CSV:
                raise ValueError(f"is larger than {LARGEST_CSV:,} bytes")
            head = file.readline(_LONGEST_ROW)
            file.seek(0)
            yield from _rows_of(iter(lambda: file.readline(_LONGEST_ROW + 1), ""), max(",;\t", key=head.count))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as why:
        raise ValueError(f"{printable(path)}: cannot be read as csv ({printable(why)})") from why


def table_of(content: bytes | bytearray, where: object, delimiter: str) -> tuple[list[str], list[list[str]]]:
    """(header, rows) of a whole table in UTF-8; ValueError names `where`, and the row whose length is another."""
    try:
        rows = list(_rows_of(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter))
    except ValueError as why:
        raise ValueError(f"{printable(where)}: cannot be read as csv ({printable(why)})") from why
    header = rows.pop(0) if rows else []
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            last = header[min(len(row), len(header)) - 1] if header else ""
            raise ValueError(
                f"{printable(where)}: row {number} must have {len(header)} entries, got {len(row)} (it ends or "
                f"overflows at column {name_of(last)!r})"
            )
    if not rows:
        raise ValueError(f"{printable(where)}: has no rows")
    return header, rows


def _rows_of(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """Rows of such text; ValueError where one is longer than a row may be, or broken."""
    length = 0

    def counted() -> Iterator[str]:
        nonlocal length
        for line in lines:
            length += len(line)
            if length > _LONGEST_ROW:
                raise ValueError(f"a row has more than {_LONGEST_ROW:,} characters")
            yield line

    try:
        for row in csv.reader(counted(), delimiter=delimiter, strict=True):
            length = 0
            yield row
    except csv.Error as why:
        raise ValueError(str(why)) from why


LARGEST_JSON = 2**25
"""Bytes of a file, and characters of a text."""
_MOST_VALUES = 2**20
"""Values: a report of leakcore's holds some thousands."""
_DEEPEST_JSON = 64
"""Values within values: a report of leakcore's is a dozen deep."""
_DIGITS = 308
"""Of a whole number: with as many it is a float64, too."""
_NO_NUMBERS = "NaN and infinities are not JSON"


def parse_json(text: str | bytes | bytearray, *, constants: bool = False) -> Any:
    """The value; ValueError where the text is not JSON, gives a key twice, holds a number beyond float64, is nested
    deeper than 64, has more than 2²⁵ characters or more than 2²⁰ values (as many commas and brackets). constants: let
    NaN, Infinity and -Infinity pass, which `json.dumps` writes for floats."""
    _require_size(text)
    try:
        if not isinstance(text, str):
            text = text.decode("utf-8-sig")
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=float if constants else _refused_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except RecursionError:
        raise ValueError(f"is nested too deeply, more than {_DEEPEST_JSON} values within values") from None
    except ValueError as why:
        raise ValueError(printable(f"is not JSON ({why})")) from why
    _require_flat(value)
    return value


def read_json(path: Path, *, constants: bool = False) -> Any:
    """The value in a file of our own; FileNotFoundError where there is none, ValueError names any other file."""
    try:
        return parse_json(read_bytes(path, LARGEST_JSON), constants=constants)
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
    if len(text) > LARGEST_JSON:
        raise ValueError(f"has {len(text):,} characters, at most {LARGEST_JSON:,} are read")
    if isinstance(text, str):
        values = sum(text.count(mark) for mark in ",[{")
    else:
        values = sum(text.count(mark) for mark in (b",", b"[", b"{"))
    if values > _MOST_VALUES:
        raise ValueError(f"holds {values:,} values, at most {_MOST_VALUES:,} are read")


def _require_flat(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST_JSON + 1):
        level = [
            inside
            for outside in level
            if isinstance(outside, (dict, list))
            for inside in (outside.values() if isinstance(outside, dict) else outside)
        ]
        if not level:
            return
    raise ValueError(f"is nested too deeply, more than {_DEEPEST_JSON} values within values")


def _float(word: str) -> float:
    value = float(word)
    if math.isinf(value):
        raise ValueError(f"{name_of(word)} is a number beyond float64")
    return value


def _int(word: str) -> int:
    if len(word.lstrip("-")) > _DIGITS:
        raise ValueError(f"{name_of(word)} is a number beyond float64")
    return int(word)


def _refused_constant(word: str) -> Any:
    raise ValueError(f"{word}: {_NO_NUMBERS}")


LARGEST_TOML = 2**18
"""Bytes of a configuration: what is longer is some other file."""
_DEEPEST_TOML = 16
"""Tables within tables, and names joined by dots."""
_LONGEST_TEXT = 4096
"""Characters of a text, as long as a path may be."""
_LARGEST_INTEGER = 2**64
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_NAME}[ \t]*\.[ \t]*){{{_DEEPEST_TOML},}}")


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
    """The tables of a TOML file. ValueError names the file and says why it cannot be read: where it is not TOML, with
    line and column; where it is larger than 256 KiB, nested deeper than 16, or holds a text of more than 4,096
    characters or an integer beyond 64 bits, which no configuration does."""
    where = Path(path)
    what = called(where)
    try:
        with open_regular(where) as stream:
            raw = stream.read(LARGEST_TOML + 1)
        if len(raw) > LARGEST_TOML:
            raise ValueError(f"is larger than {LARGEST_TOML:,} bytes, which no configuration is")
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
        raise ValueError(
            f"{what}: line {line} joins more than {_DEEPEST_TOML} names by dots, which no configuration does"
        )
    # Python 3.10 has no tomllib; tomli is the same module under its first name.
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        tables = dict(tomllib.loads(content))
    except (ValueError, RecursionError) as why:  # ValueError: TOMLDecodeError, and an integer of too many digits
        raise ValueError(f"{what}: is not TOML ({printable(why, 300)})") from None
    for place, problem in _toml_problems(tables):
        raise ValueError(f"{what}: {printable(place, 300)} {problem}, which no configuration does")
    return tables


def _toml_problems(tables: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What no configuration holds, with the place where it is; without recursion, as depth is one of them."""
    rest: list[tuple[str, int, Any]] = [("", 0, tables)]
    while rest:
        place, depth, value = rest.pop()
        if depth > _DEEPEST_TOML:
            yield place, f"is nested deeper than {_DEEPEST_TOML}"
        elif isinstance(value, dict):
            rest += [(f"{place}.{name_of(k)}".lstrip("."), depth + 1, v) for k, v in value.items()]
        elif isinstance(value, list):
            rest += [(f"{place}[{i}]", depth + 1, v) for i, v in enumerate(value)]
        elif isinstance(value, str) and len(value) > _LONGEST_TEXT:
            yield place, f"is a text of {len(value):,} characters"
        elif isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
            yield place, "is an integer beyond 64 bits"
