"""Tables as csv, read row by row: no more memory than a row, however long the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from leakcore._base.files.limits import open_regular, size_of
from leakcore._base.printable import printable

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
