"""What NumPy can make of an array, and arrays of other kinds that hold the same values."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

from tests.arrays.state import State


class Plain(np.ndarray):
    """A subclass that adds nothing."""


class Spoken:
    """Another library's array: DLPack and nothing more."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.shape, self.ndim, self.dtype = values.shape, values.ndim, values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return self.values.__dlpack__()


class Convertible:
    """Only `__array__`, as pandas has it."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.shape, self.ndim, self.dtype = values.shape, values.ndim, values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)


class Broken:
    """`__array__` fails, as that of a closed file or another device does."""

    def __init__(self, values: np.ndarray) -> None:
        self.shape, self.ndim, self.dtype = values.shape, values.ndim, values.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise RuntimeError("this array is elsewhere")


def copy(a: np.ndarray) -> np.ndarray:
    return np.array(a)


def as_type(kind: Any) -> Any:
    return lambda a: np.array(a).astype(kind)


def through(kind: Any) -> Any:
    """Values that the narrow type holds, in the type of the array."""
    return lambda a: np.array(a).astype(kind).astype(a.dtype if a.dtype.kind == "f" else kind)


def _reversed(a: np.ndarray) -> np.ndarray:
    back = (slice(None, None, -1),) * a.ndim
    return a[back].copy()[back]


def _spaced(a: np.ndarray) -> np.ndarray:
    wide = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
    part = wide[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)]
    part[...] = a
    return part


def _read_only(a: np.ndarray) -> np.ndarray:
    out = a.copy()
    out.flags.writeable = False
    return out


def _swapped(a: np.ndarray) -> np.ndarray:
    return a.astype(a.dtype.newbyteorder())


def _unaligned(a: np.ndarray) -> np.ndarray:
    buffer = np.zeros(a.nbytes + 1, np.uint8)
    out = buffer[1:].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def _structured(a: np.ndarray) -> np.ndarray:
    return np.zeros(a.shape, [("x", a.dtype), ("y", a.dtype)])


def _same_rows(a: np.ndarray) -> np.ndarray:
    return np.broadcast_to(a[:1], a.shape)


def _mapped(a: np.ndarray, keep: float) -> np.ndarray:
    handle, path = tempfile.mkstemp()
    os.close(handle)
    try:
        start = 2 * os.sysconf("SC_PAGE_SIZE")  # what is cut off lies on pages of its own
        out = np.memmap(path, a.dtype, "w+", start, a.shape)
        out[...] = a
        out.flush()
        if keep < 1:
            os.truncate(path, int(start * keep))
    finally:
        if keep == 1:
            os.unlink(path)
    return out


def _masked(a: np.ndarray) -> np.ndarray:
    mask = np.zeros(a.shape, bool)
    mask.flat[0] = True
    return np.ma.MaskedArray(a.copy(), mask)


def _objects(a: np.ndarray) -> np.ndarray:
    return a.astype(object)


STATES = (
    State("read-only", _read_only, copy),
    State("fortran", np.asfortranarray, copy),
    State("negative strides", _reversed, copy),
    State("spaced", _spaced, copy),
    State("byte-swapped", _swapped, copy),
    State("unaligned", _unaligned, copy),
    State("structured", _structured),
    State("repeated rows (stride 0)", _same_rows, lambda a: _same_rows(a).copy()),
    State("memory-mapped", lambda a: _mapped(a, 1), copy),
    State("memory-mapped file cut short", lambda a: _mapped(a, 0.5)),
    State("view of a memory-mapped file cut short", lambda a: np.asarray(_mapped(a, 0.5))[...]),
    State("masked", _masked),
    State("subclass", lambda a: a.copy().view(Plain), copy),
    State("objects", _objects, copy),
    State("long double", as_type("g"), copy),
    State("float32", as_type("f4"), through("f4")),
    State("float16", as_type("f2"), through("f2")),
    State("complex", as_type("c16")),
    State("text", as_type("U8")),
    State("dates", lambda a: a.astype("i8").astype("M8[s]")),
    State("bool", as_type("?"), as_type("?")),
    State("int8", as_type("i1"), as_type("i1")),
    State("uint64", lambda a: np.abs(a).astype("u8"), lambda a: np.abs(a).astype("u8")),
    State("no rows", lambda a: a[:0], lambda a: a[:0].copy()),
    State("no columns", lambda a: a[..., :0], lambda a: a[..., :0].copy()),
    State("no dimensions", lambda a: a.reshape(-1)[0:1].reshape(()), lambda a: a.reshape(-1)[0:1].reshape(()).copy()),
    State("scalar", lambda a: a.reshape(-1)[0], lambda a: np.array(a.reshape(-1)[0])),
    State("many dimensions", lambda a: a.reshape((1,) * 40 + a.shape), lambda a: a.reshape((1,) * 40 + a.shape).copy()),
    State("nested lists", np.ndarray.tolist, copy),
    State("list of arrays", list, copy),
    State("uneven lists", lambda a: [[1.0], [1.0, 2.0]]),
    State("memoryview", lambda a: memoryview(a.copy()), copy),
    State("DLPack", lambda a: Spoken(a.copy()), copy),
    State("__array__", lambda a: Convertible(a.copy()), copy),
    State("__array__ that fails", lambda a: Broken(a)),
)
