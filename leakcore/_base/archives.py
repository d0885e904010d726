"""Archives that users bring: zip, npz, gzip and tar, read within limits and never written to disk."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

import numpy as np

from leakcore._base.reading import open_regular, require_allowed, size_of
from leakcore._base.text import name_of, printable

_MOST_ENTRIES = 2**16
"""Entries of an archive."""
_DIRECTORY = 2**23
"""Bytes of its directory: zipfile makes an object for each entry, twenty times as large, before anything is checked."""
_HEADER_BYTES, _END_BYTES = 30, 22
"""Bytes of an entry's header without its name, and of the archive's end without a comment."""


class BadArchive(ValueError):
    """A file that is not a zip archive, or one that breaks a rule."""


@contextlib.contextmanager
def opened_zip(source: Path | BinaryIO) -> Iterator[tuple[zipfile.ZipFile, int]]:
    """The archive, checked, and the bytes of its file. FileNotFoundError where there is none; `BadArchive` says what is
    wrong with any other file, also where what is read inside the `with` is damaged."""
    try:
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(open_regular(source)) if isinstance(source, Path) else source
            size = stream.seek(0, 2)
            if (directory := _directory_bytes(stream, size)) > _DIRECTORY:
                raise BadArchive(f"has a directory of {directory:,} bytes, may have {_DIRECTORY:,}")
            archive = stack.enter_context(zipfile.ZipFile(stream))
            _check_zip(archive, stream, size)
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
    stream.seek(max(size - _END_BYTES - 2**16, 0))
    tail = stream.read(_END_BYTES + 2**16)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END_BYTES:
        return 0
    claimed: int = struct.unpack_from("<I", tail, at + 12)[0]
    if tail[max(at - 20, 0) :].startswith(b"PK\x06\x07"):  # of zip64: the record that it points at says the size
        stream.seek(min(struct.unpack_from("<Q", tail, at - 12)[0], size))
        record = stream.read(56)
        if record.startswith(b"PK\x06\x06") and len(record) == 56:
            claimed = max(claimed if claimed < 2**32 - 1 else 0, struct.unpack_from("<Q", record, 40)[0])
    return min(claimed, size)


def _check_zip(archive: zipfile.ZipFile, stream: BinaryIO, size: int) -> None:
    entries = archive.infolist()
    if len(entries) > _MOST_ENTRIES:
        raise BadArchive(f"holds {len(entries):,} entries, may hold {_MOST_ENTRIES:,}")
    names: set[str] = set()
    for entry in entries:
        _check_entry(entry)
        if entry.filename in names:
            raise BadArchive(f"holds two entries named {name_of(entry.filename)}")
        names.add(entry.filename)
    spans = sorted(
        (e.header_offset, e.header_offset + _HEADER_BYTES + len(e.orig_filename.encode()) + e.compress_size)
        for e in entries
    )
    if spans and (spans[0][0] != 0 or spans[-1][1] > size):
        raise BadArchive("holds bytes before its first entry, or is cut short")
    if any(end > begin for (_, end), (begin, _) in itertools.pairwise(spans)):
        raise BadArchive("holds entries that overlap")
    at = size - _END_BYTES - len(archive.comment)
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


_BLOCK = 2**18
"""Bytes read at a time."""


def read_npz(
    source: str | Path | BinaryIO, names: Collection[str] | None = None, *, text: bool = False, at_least: int = 1
) -> dict[str, np.ndarray]:
    """Arrays of numbers (with `text`, also of characters) by name; all of them, or the ones in `names` that are there.

    at_least: bytes that every element will take in the caller's hands, where that is more than it takes in the file.

    A file that does not exist raises FileNotFoundError. A file that is no npz or is damaged raises ValueError. So does
    one with two arrays of one name, with an array of objects, with a header that claims more than the file holds, or
    with arrays that expand beyond what `reading` allows. `opened_zip` lists what else is refused.
    """
    try:
        with opened_zip(Path(source) if isinstance(source, str) else source) as (archive, size):
            entries = _by_name(archive)
            wanted = {n: e for n, e in entries.items() if names is None or n in names}
            require_allowed(sum(e.file_size for e in wanted.values()), size)
            arrays: dict[str, np.ndarray] = {}
            total = 0
            for name, entry in wanted.items():
                with archive.open(entry) as stream:
                    shape, fortran, dtype = _read_header(stream, name, "biufU" if text else "biuf")
                    bytes_here = math.prod(shape) * dtype.itemsize
                    if min(shape, default=0) < 0 or bytes_here > entry.file_size:
                        raise ValueError(
                            f"{name_of(name)}: claims {shape} of {dtype}, {bytes_here:,} bytes; the file "
                            f"holds {entry.file_size:,}"
                        )
                    total += math.prod(shape) * max(dtype.itemsize, at_least)
                    require_allowed(total, size)
                    arrays[name] = _read_array(stream, name, shape, fortran, dtype)
            return arrays
    except FileNotFoundError:
        raise
    except Exception as why:  # zipfile, zlib, struct, ast and NumPy each have their own for a damaged file
        where = f"{source}: " if isinstance(source, (str, Path)) else ""
        raise ValueError(printable(f"{where}is not an npz file of plain arrays by name ({why})")) from why


def npz_names(source: str | Path) -> list[str]:
    """The names of the arrays, in the file's order; errors as `read_npz`."""
    try:
        with opened_zip(Path(source)) as (archive, _):
            return list(_by_name(archive))
    except ValueError as why:
        raise ValueError(printable(f"{source}: is not an npz file of plain arrays by name ({why})")) from why


def _by_name(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename.removesuffix(".npy")
        if name in entries:
            raise BadArchive(f"holds two arrays named {name_of(name)}")
        entries[name] = entry
    return entries


def _read_header(stream: IO[bytes], name: str, kinds: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"{name_of(name)}: is of npy version {version}")
    shape, fortran, dtype = readers[version](stream)
    if not dtype.itemsize:  # NumPy makes one character of none, which the file does not hold
        raise ValueError(f"{name_of(name)} is of type {dtype}, whose values take no bytes")
    if dtype.kind not in kinds:
        raise ValueError(f"{name_of(name)} is of type {dtype}, and only numbers are read: objects are never unpickled")
    return shape, fortran, dtype


def _read_array(stream: IO[bytes], name: str, shape: tuple[int, ...], fortran: bool, dtype: np.dtype) -> np.ndarray:
    flat = np.empty(math.prod(shape), dtype)
    rest = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
    while len(rest):
        block = stream.read(min(len(rest), _BLOCK))
        if not block:
            break
        rest[: len(block)] = np.frombuffer(block, np.uint8)
        rest = rest[len(block) :]
    if len(rest) or stream.read(1):  # reading on to the end checks the checksum
        raise ValueError(f"{name_of(name)}: holds another number of bytes than {shape} of {dtype}")
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


class Expanding(io.RawIOBase):
    """The bytes that a gzip file holds, as a stream; ValueError where they are more than the file may expand to. Damage
    of any kind (a wrong checksum, a file cut short, bytes after the end) is a ValueError, too."""

    def __init__(self, path: Path) -> None:
        import gzip

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


_MOST_MEMBERS = 2**12
"""Entries of an archive."""


def read_tar(path: Path, names: set[str] | None = None) -> dict[str, bytes]:
    """Contents by the last part of each file's name; all of them, or the ones in `names` that are there. Links, devices
    and folders are passed over.

    A file that does not exist raises FileNotFoundError. A file that is no archive, is damaged, has two members of one
    name or expands beyond what `reading` allows raises ValueError.
    """
    import tarfile

    contents: dict[str, bytes] = {}
    with _opened_tar(path) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for number, member in enumerate(archive):
                    if number >= _MOST_MEMBERS:
                        raise ValueError(f"holds more than {_MOST_MEMBERS:,} entries")
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


def _opened_tar(path: Path) -> IO[bytes]:
    file = open_regular(path)
    if file.read(2) == b"\x1f\x8b":
        file.close()
        return Expanding(path)  # type: ignore[return-value]
    file.seek(0)
    return file
