"""tar archives, compressed by gzip or not at all: the bytes of the files in them, never written to disk."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO

from leakcore._base.files.gzip_file import Expanding
from leakcore._base.files.limits import open_regular
from leakcore._base.printable import name_of, printable

_MOST = 2**12
"""Entries of an archive."""


def read_tar(path: Path, names: set[str] | None = None) -> dict[str, bytes]:
    """Contents by the last part of each file's name; all of them, or the ones in `names` that are there.

    Links, devices and folders are passed over. FileNotFoundError where there is no such file; ValueError says what is
    wrong with any other: no archive, damaged, two files of one name, or one that expands beyond what `_file_limits`
    allows.
    """
    contents: dict[str, bytes] = {}
    with _opened(path) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for number, member in enumerate(archive):
                    if number >= _MOST:
                        raise ValueError(f"holds more than {_MOST:,} entries")
                    base = member.name.rsplit("/", 1)[-1]
                    content = archive.extractfile(member) if member.isreg() and not member.sparse else None
                    if content is None or (names is not None and base not in names):
                        continue
                    if base in contents:
                        raise ValueError(f"holds two files named {name_of(base)}")
                    contents[base] = content.read()
                    if len(contents[base]) != member.size:
                        raise ValueError(f"{name_of(base)} is cut short")
        except Exception as why:  # a chain of long names is a RecursionError, and other damage has errors of its own
            raise ValueError(printable(why) or type(why).__name__) from why
    return contents


def _opened(path: Path) -> IO[bytes]:
    file = open_regular(path)
    if file.read(2) == b"\x1f\x8b":
        file.close()
        return Expanding(path)  # type: ignore[return-value]
    file.seek(0)
    return file
