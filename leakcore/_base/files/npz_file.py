"""npz files: plain arrays by name, and no more memory than the file is worth.

`numpy.load` takes a header's word for an array's size, the last of two arrays of one name, and what an archive unfolds
to. Here all of it is settled before memory is asked for, and every array is read straight into its own memory: the peak
is the arrays' size and about a megabyte. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from leakcore._base.files import zip_file
from leakcore._base.files.limits import require_allowed
from leakcore._base.printable import name_of, printable

_STEP = 2**18
"""Bytes read at a time."""


def read_npz(
    source: str | Path | BinaryIO, names: Collection[str] | None = None, *, text: bool = False, at_least: int = 1
) -> dict[str, np.ndarray]:
    """Arrays of numbers (with `text`, also of characters) by name; all of them, or the ones in `names` that are there.

    at_least: bytes that every element will take in the caller's hands, where that is more than it takes in the file.

    FileNotFoundError where there is no such file; ValueError says what is wrong with any other: no npz, damaged, two
    arrays of one name, an array of objects, a header that claims more than the file holds, or arrays that expand
    beyond what `_file_limits` allows; `_zip` lists what else is refused.
    """
    try:
        with zip_file.opened(Path(source) if isinstance(source, str) else source) as (archive, size):
            entries = _by_name(archive)
            wanted = {n: e for n, e in entries.items() if names is None or n in names}
            require_allowed(sum(e.file_size for e in wanted.values()), size)
            arrays: dict[str, np.ndarray] = {}
            total = 0
            for name, entry in wanted.items():
                with archive.open(entry) as stream:
                    shape, fortran, dtype = _header(stream, name, "biufU" if text else "biuf")
                    bytes_here = math.prod(shape) * dtype.itemsize
                    if min(shape, default=0) < 0 or bytes_here > entry.file_size:
                        raise ValueError(
                            f"{name_of(name)}: claims {shape} of {dtype}, {bytes_here:,} bytes; the file "
                            f"holds {entry.file_size:,}"
                        )
                    total += math.prod(shape) * max(dtype.itemsize, at_least)
                    require_allowed(total, size)
                    arrays[name] = _array(stream, name, shape, fortran, dtype)
            return arrays
    except FileNotFoundError:
        raise
    except Exception as why:  # zipfile, zlib, struct, ast and NumPy each have their own for a damaged file
        where = f"{source}: " if isinstance(source, (str, Path)) else ""
        raise ValueError(printable(f"{where}is not an npz file of plain arrays by name ({why})")) from why


def npz_names(source: str | Path) -> list[str]:
    """The names of the arrays, in the file's order; errors as `read_npz`."""
    try:
        with zip_file.opened(Path(source)) as (archive, _):
            return list(_by_name(archive))
    except ValueError as why:
        raise ValueError(printable(f"{source}: is not an npz file of plain arrays by name ({why})")) from why


def _by_name(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename.removesuffix(".npy")
        if name in entries:
            raise zip_file.BadArchive(f"holds two arrays named {name_of(name)}")
        entries[name] = entry
    return entries


def _header(stream: IO[bytes], name: str, kinds: str) -> tuple[tuple[int, ...], bool, np.dtype]:
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


def _array(stream: IO[bytes], name: str, shape: tuple[int, ...], fortran: bool, dtype: np.dtype) -> np.ndarray:
    flat = np.empty(math.prod(shape), dtype)
    rest = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
    while len(rest):
        block = stream.read(min(len(rest), _STEP))
        if not block:
            break
        rest[: len(block)] = np.frombuffer(block, np.uint8)
        rest = rest[len(block) :]
    if len(rest) or stream.read(1):  # reading on to the end checks the checksum
        raise ValueError(f"{name_of(name)}: holds another number of bytes than {shape} of {dtype}")
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
