"""What a user's file may be and may take. Every reader opens its file here, so that there is one rule.

A file is a regular one: a pipe that nobody writes to would stop a command for good, a device has no end. It is looked
at before it is opened and again once it is open, and it is opened so that no kind of file can make it wait.

A megabyte of zip or gzip may unfold to a thousand. What is read is at most 64 MiB, or a hundred times the file's own
size where that is more: scores, gradients and pictures compress two- to tenfold. What compresses better than that (a
gradient that is nearly all zeros) is to be saved uncompressed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from leakcore._base.printable import printable

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
    """The file, open for reading, if it is a regular one or a link to one.

    FileNotFoundError where nothing is; ValueError, which does not name the file, where it is something else or the
    system refuses.
    """
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
    """All bytes of a regular file that has at most so many; errors as `open_regular`."""
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
