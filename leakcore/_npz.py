"""npz files that users bring: plain numbers only, and no more memory than the file is worth.

`numpy.load` takes a header's word for an array's size, and a zip archive may unfold to a thousand times its bytes. Here
both are settled before memory is asked for; nothing is ever unpickled.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

FREE = 2**30
"""Bytes that any file may unfold to; beyond it at most `RATIO` times its own size (real scores and gradients compress
two- to tenfold)."""
RATIO = 20


def read_npz(path: str | Path, names: Iterable[str] | None = None, *, text: bool = False) -> dict[str, np.ndarray]:
    """Arrays of numbers (with `text`, also of characters) by name; all of them, or those of `names` that are there.

    FileNotFoundError where there is no such file; ValueError says what is wrong with any other: no npz, damaged, an
    array of objects, a header that claims more than the file holds, more than 1 GiB from a file a twentieth of that.
    """
    where = Path(path)
    try:
        with zipfile.ZipFile(where) as file:
            members = {i.filename.removesuffix(".npy"): i for i in file.infolist()}
            if len(members) != len(file.infolist()):
                raise ValueError("holds two arrays of one name")
            wanted = {n: i for n, i in members.items() if names is None or n in set(names)}
            total = sum(i.file_size for i in wanted.values())
            allowed = max(FREE, RATIO * where.stat().st_size)
            if total > allowed:
                raise ValueError(f"claims {total:,} bytes; a file of its size may hold {allowed:,}")
            return {name: member_of(file, info, "biufU" if text else "biuf") for name, info in wanted.items()}
    except FileNotFoundError:
        raise
    except Exception as why:  # zipfile, zlib, struct, ast and NumPy each have their own for a damaged file
        raise ValueError(f"{where}: is no npz file of plain arrays by name ({why})") from why


def member_of(file: zipfile.ZipFile, info: zipfile.ZipInfo, kinds: str) -> np.ndarray:
    """One array of an npz file, its size settled by its header; ValueError where it is of other kinds or damaged."""
    name = info.filename.removesuffix(".npy")
    with file.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"{name}: is of npy version {version}")
        shape, fortran, dtype = readers[version](stream)
        if dtype.kind not in kinds:
            raise ValueError(f"{name}: is of type {dtype}, must be numbers; objects are never unpickled")
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size > info.file_size:
            raise ValueError(f"{name}: claims {shape} of {dtype}, {size:,} bytes; the file holds {info.file_size:,}")
        raw = stream.read(size)
        if len(raw) != size or stream.read(1):
            raise ValueError(f"{name}: holds another number of bytes than {shape} of {dtype}")
    array = np.frombuffer(bytearray(raw), dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
