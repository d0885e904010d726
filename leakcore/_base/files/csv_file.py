"""Tables as csv, read row by row: no more memory than a row, however long the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from leakcore._base.files.limits import open_regular, size_of
from leakcore._base.printable import name_of, printable

LARGEST = 2**30
"""Bytes of a file: a hundred million numbers."""
_ROW = 2**20
"""Characters of a row."""


def read_csv(path: Path) -> Iterator[list[str]]:
    """Rows of a file in UTF-8, the first one its header; comma, semicolon or tab, whichever the first line has most of.

    FileNotFoundError where there is no such file; ValueError names any other and says what is wrong: larger than
    1 GiB, no text, a row of more than 1,048,576 characters.
    """
    try:
        with open_regular(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as file:
            if size_of(stream) > LARGEST:
                raise ValueError(f"is larger than {LARGEST:,} bytes")
            head = file.readline(_ROW)
            file.seek(0)
            yield from rows_of(iter(lambda: file.readline(_ROW + 1), ""), max(",;\t", key=head.count))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as why:
        raise ValueError(f"{printable(path)}: cannot be read as csv ({printable(why)})") from why


def table_of(content: bytes | bytearray, where: object, delimiter: str) -> tuple[list[str], list[list[str]]]:
    """(header, rows) of a whole table in UTF-8; ValueError names `where`, and the row whose length is another."""
    try:
        rows = list(rows_of(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter))
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


def rows_of(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """Rows of such text; ValueError where one is longer than a row may be, or broken."""
    length = 0

    def counted() -> Iterator[str]:
        nonlocal length
        for line in lines:
            length += len(line)
            if length > _ROW:
                raise ValueError(f"a row has more than {_ROW:,} characters")
            yield line

    try:
        for row in csv.reader(counted(), delimiter=delimiter, strict=True):
            length = 0
            yield row
    except csv.Error as why:
        raise ValueError(str(why)) from why
