"""gzip files: their bytes, within what `_file_limits` allows, read in pieces."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from leakcore._base.files.limits import open_regular, require_allowed, size_of
from leakcore._base.printable import printable


class Expanding(io.RawIOBase):
    """The bytes that a gzip file holds, as a stream; ValueError where they are more than the file may expand to.

    Damage of any kind (a wrong checksum, a file cut short, bytes after the end) is a ValueError, too.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_regular(path)
        self._size = size_of(self._file)
        self._stream = gzip.GzipFile(fileobj=self._file)
        self._expanded = 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """The next bytes; 0 at the end."""
        try:
            block = self._stream.read1(len(buffer))
        except (OSError, EOFError, zlib.error) as why:
            raise ValueError(f"is not a gzip file, or a damaged one ({why})") from why
        self._expanded += len(block)
        require_allowed(self._expanded, self._size)
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        """Close the file as well."""
        self._stream.close()
        self._file.close()
        super().close()


def read_gzip(path: Path) -> bytearray:
    """All bytes; ValueError names the file and says what is wrong with it."""
    out = bytearray()
    try:
        with Expanding(path) as stream:
            while block := stream.read(2**20):
                out += block
    except ValueError as why:
        raise ValueError(printable(f"{path}: {why}")) from why
    return out
