"""Zip archives that users bring, opened under one set of rules; nothing is ever written to disk from them.

Refused by name: two entries of one name, entries that overlap (a few bytes that unfold many times), encryption, another
compression than none and deflate, links, names that leave the archive, bytes before the first entry or after the end
(two readers may see two archives), and more than `_file_limits` allows. Checksums are checked as an entry is read to
its end.
"""

from __future__ import annotations

import contextlib
import itertools
import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from leakcore._base.files.limits import open_regular, require_allowed
from leakcore._base.printable import name_of

_MOST = 2**16
"""Entries of an archive."""
_DIRECTORY = 2**23
"""Bytes of its directory: zipfile makes an object for each entry, twenty times as large, before anything is checked."""
_HEADER, _END = 30, 22
"""Bytes of an entry's header without its name, and of the archive's end without a comment."""


class BadArchive(ValueError):
    """A file that is not a zip archive, or one that breaks a rule."""


@contextlib.contextmanager
def opened(source: Path | BinaryIO) -> Iterator[tuple[zipfile.ZipFile, int]]:
    """The archive, checked, and the bytes of its file. FileNotFoundError where there is none; `BadArchive` says what is
    wrong with any other file, also where what is read inside the `with` is damaged."""
    try:
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(open_regular(source)) if isinstance(source, Path) else source
            size = stream.seek(0, 2)
            if (directory := _directory_bytes(stream, size)) > _DIRECTORY:
                raise BadArchive(f"has a directory of {directory:,} bytes, may have {_DIRECTORY:,}")
            archive = stack.enter_context(zipfile.ZipFile(stream))
            _check(archive, stream, size)
            yield archive, size
    except (FileNotFoundError, BadArchive):
        raise
    except Exception as why:  # zipfile raises BadZipFile, zlib.error, NotImplementedError, EOFError, struct.error …
        raise BadArchive(str(why) or type(why).__name__) from why


def read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> bytes:
    """All bytes of one entry; `BadArchive` where it expands beyond what a file of `size` bytes may."""
    require_allowed(info.file_size, size, name_of(info.filename))
    with archive.open(info) as stream:
        return stream.read(info.file_size + 1)


def _directory_bytes(stream: BinaryIO, size: int) -> int:
    """Bytes of the archive's directory, as its end claims; 0 where it has no end, which zipfile will say."""
    stream.seek(max(size - _END - 2**16, 0))
    tail = stream.read(_END + 2**16)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END:
        return 0
    claimed: int = struct.unpack_from("<I", tail, at + 12)[0]
    if tail[max(at - 20, 0) :].startswith(b"PK\x06\x07"):  # of zip64: the record that it points at says the size
        stream.seek(min(struct.unpack_from("<Q", tail, at - 12)[0], size))
        record = stream.read(56)
        if record.startswith(b"PK\x06\x06") and len(record) == 56:
            claimed = max(claimed if claimed < 2**32 - 1 else 0, struct.unpack_from("<Q", record, 40)[0])
    return min(claimed, size)


def _check(archive: zipfile.ZipFile, stream: BinaryIO, size: int) -> None:
    entries = archive.infolist()
    if len(entries) > _MOST:
        raise BadArchive(f"holds {len(entries):,} entries, may hold {_MOST:,}")
    names: set[str] = set()
    for entry in entries:
        _check_entry(entry)
        if entry.filename in names:
            raise BadArchive(f"holds two entries named {name_of(entry.filename)}")
        names.add(entry.filename)
    spans = sorted(
        (e.header_offset, e.header_offset + _HEADER + len(e.orig_filename.encode()) + e.compress_size) for e in entries
    )
    if spans and (spans[0][0] != 0 or spans[-1][1] > size):
        raise BadArchive("holds bytes before its first entry, or is cut short")
    if any(end > begin for (_, end), (begin, _) in itertools.pairwise(spans)):
        raise BadArchive("holds entries that overlap")
    at = size - _END - len(archive.comment)
    stream.seek(max(at, 0))
    if at < 0 or stream.read(4) != b"PK\x05\x06":
        raise BadArchive("holds bytes after its end")


def _check_entry(entry: zipfile.ZipInfo) -> None:
    name = name_of(entry.filename)
    parts = PurePosixPath(entry.filename).parts
    if entry.flag_bits & 0x1:
        raise BadArchive(f"{name}: is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadArchive(f"{name}: is compressed by method {entry.compress_type}; deflate and none are read")
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise BadArchive(f"{name}: is a link")
    if not parts or parts[0] == "/" or ".." in parts:
        raise BadArchive(f"{name}: is a name that leaves the archive")
