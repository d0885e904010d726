"""Archives that trick a reader: what they hold and what is said of them."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

FREE = 2**20
"""What a test lets a file expand to (`a_megabyte`), so that what is too much is quickly made."""


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def written(entries: dict[str, bytes], **how: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **how) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return out.getvalue()


def twice(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as file:
        warnings.simplefilter("ignore")
        for name, content in [*entries.items(), *entries.items()]:
            file.writestr(name, content)
    return out.getvalue()


def _twice_without_its_ending(entries: dict[str, bytes]) -> bytes:
    """numpy takes `a` and `a.npy` for one name."""
    first = next(iter(entries))
    return written({**entries, first.removesuffix(".npy"): entries[first]})


def _changed(entries: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None]) -> bytes:
    """The directory says otherwise of the first entry than it was written."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
        change(file.filelist[0])
    return out.getvalue()


def _overlapping(entries: dict[str, bytes]) -> bytes:
    """Every entry's bytes begin where the first one's do, so that one of them unfolds as often as there are names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
        for entry in file.filelist[1:]:
            entry.header_offset = file.filelist[0].header_offset
    return out.getvalue()


def _encrypted(entry: zipfile.ZipInfo) -> None:
    entry.flag_bits |= 1


def _link(entry: zipfile.ZipInfo) -> None:
    entry.external_attr = 0o120777 << 16


def _other_checksum(entry: zipfile.ZipInfo) -> None:
    entry.CRC ^= 1


def _bomb(entries: dict[str, bytes]) -> bytes:
    """Zeros that unfold a thousand times, as the first array."""
    first = next(iter(entries))
    return written({**entries, first: npy(np.zeros(2 * FREE, np.uint8))}, compression=zipfile.ZIP_DEFLATED)


TRICKS: dict[str, tuple[Callable[[dict[str, bytes]], bytes], str]] = {
    "two of one name": (twice, "two entries named|two arrays named"),
    "one name, two endings": (_twice_without_its_ending, "two arrays named"),
    "overlap": (_overlapping, "overlap"),
    "encrypted": (lambda e: _changed(e, _encrypted), "is encrypted"),
    "link": (lambda e: _changed(e, _link), "is a link"),
    "checksum": (lambda e: _changed(e, _other_checksum), "CRC"),
    "bzip2": (lambda e: written(e, compression=zipfile.ZIP_BZIP2), "compressed by method 12"),
    "lzma": (lambda e: written(e, compression=zipfile.ZIP_LZMA), "compressed by method 14"),
    "absolute": (lambda e: written({f"/{n}": c for n, c in e.items()}), "leaves the archive"),
    "above": (lambda e: written({f"../{n}": c for n, c in e.items()}), "leaves the archive"),
    "bytes before": (lambda e: b"x" * 9 + written(e), "before its first entry"),
    "two archives": (lambda e: written(e) + written(e), "before its first entry"),
    "bytes after": (lambda e: written(e) + b"x" * 9, "after its end"),
    "cut short": (lambda e: written(e)[:-30], "not a zip file|cut short"),
    "nested": (lambda e: written(dict.fromkeys(e, written(e))), "magic|is not an npz"),
    "objects": (lambda e: written(dict.fromkeys(e, npy(np.array([{}], dtype=object)))), "never unpickled"),
    "folder": (lambda e: written({**e, "sub/": b""}), "magic|is not an npz"),
    "bomb": (_bomb, "may expand to 1,048,576"),
}
