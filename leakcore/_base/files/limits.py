"""How much a file of a user may expand to. Every reader of a compressed file asks here, so that there is one rule.

A megabyte of zip or gzip may unfold to a thousand. What is read is at most 64 MiB, or a hundred times the file's own
size where that is more: scores, gradients and pictures compress two- to tenfold. What compresses better than that (a
gradient that is nearly all zeros) is to be saved uncompressed.
"""

from __future__ import annotations

from pathlib import Path

FREE = 2**26
"""Bytes that any file may expand to."""
RATIO = 100
"""Times its own size that a file may expand to, where that is more."""


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


def size_of(path: Path) -> int:
    """The file's bytes; FileNotFoundError where there is none, ValueError for a folder or a device."""
    status = path.stat()
    if not path.is_file():
        raise ValueError("is not a regular file")
    return status.st_size
