"""XLA's foreign function interface as ctypes: a Python function that XLA calls with its own buffers.

The structures are declared in xla/ffi/api/c_api.h, which is C and grows at the end only; each says its size. So nothing
is compiled against JAX, and one build of leakcore serves every JAX. The call takes the GIL; kernels inside release it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

_METADATA, _EXECUTE, _BUFFER, _SCALAR = 1, 3, 1, 3
_INVALID_ARGUMENT = 3
_BFLOAT16 = 16
_TYPES = {10: "float16", 11: "float32", 12: "float64", _BFLOAT16: "bfloat16"}


class _Extension(ctypes.Structure):
    pass


_Extension._fields_ = [("size", c_size_t), ("type", c_int), ("next", POINTER(_Extension))]


class _Version(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int))


class _Metadata(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("version", _Version))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", POINTER(_Metadata)))


class _ErrorArguments(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int))


_CREATE_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))


class _Api(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", c_void_p),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class _Buffers(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("buffers", POINTER(POINTER(_Buffer))),
    )


class _Name(ctypes.Structure):
    _fields_ = (("text", c_void_p), ("length", c_size_t))


class _Scalar(ctypes.Structure):
    _fields_ = (("dtype", c_int), ("value", c_void_p))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(_Name))),
        ("values", POINTER(POINTER(_Scalar))),
    )


class _Frame(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


_HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
_handlers: dict[str, Any] = {}
"""Registered functions live as long as the process."""


def register(name: str, work: Callable[[list[np.ndarray], list[np.ndarray], dict[str, float]], None]) -> None:
    """Let XLA's CPU programs call `work(arguments, results, attributes)` as the target `name`.

    work: reads arrays over XLA's buffers, and writes into others; attributes are float64 numbers. What it raises
    becomes the error of the XLA program. ImportError: this JAX has another foreign function interface.
    """
    import jax

    if name in _handlers:
        return
    ffi: Any = jax.ffi
    major, minor = _versions(Path(ffi.include_dir()) / "xla/ffi/api/c_api.h")
    if major != 0:
        raise ImportError(f"leakcore.jax: JAX {jax.__version__} has XLA's FFI {major}.{minor}, leakcore knows 0.x")

    def called(frame: Any) -> int | None:
        frame = frame.contents
        extension = frame.extension
        if extension and extension.contents.type == _METADATA:
            metadata = ctypes.cast(extension, POINTER(_MetadataExtension)).contents.metadata.contents
            metadata.version.major, metadata.version.minor = major, minor
            return None
        if frame.stage != _EXECUTE:
            return None
        try:
            work(_arrays(frame.arguments), _arrays(frame.results), _numbers(frame.attributes))
        except Exception as error:
            return _failed(frame.api.contents, f"{type(error).__name__}: {error}")
        return None

    _handlers[name] = _HANDLER(called)
    ffi.register_ffi_target(name, ffi.pycapsule(_handlers[name]), platform="cpu")


def _versions(header: Path) -> tuple[int, int]:
    """The version of the interface, which a target must state as the runtime has it."""
    text = header.read_text(encoding="utf-8")
    major, minor = (re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR"))
    if major is None or minor is None:
        raise ImportError(f"leakcore.jax: {header.name} of this JAX does not state the version of XLA's FFI")
    return int(major[1]), int(minor[1])


def _arrays(buffers: Any) -> list[np.ndarray]:
    return [_array(buffers.buffers[i].contents) for i in range(buffers.count) if buffers.types[i] == _BUFFER]


def _array(buffer: Any) -> np.ndarray:
    """The array over this buffer, without a copy."""
    shape = tuple(buffer.dims[k] for k in range(buffer.rank))
    if buffer.dtype not in _TYPES:
        raise TypeError(f"arrays must be of {', '.join(_TYPES.values())}, got XLA's type {buffer.dtype}")
    if buffer.dtype == _BFLOAT16:
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        dtype = np.dtype(_TYPES[buffer.dtype])
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(buffer.data)
    return np.frombuffer(memory, dtype).reshape(shape)


def _numbers(attributes: Any) -> dict[str, float]:
    """The attributes that are float64 numbers."""
    out = {}
    for i in range(attributes.count):
        name = attributes.names[i].contents
        if attributes.types[i] == _SCALAR:
            text = ctypes.string_at(name.text, name.length).decode()
            value = attributes.values[i].contents.value
            out[text] = float(ctypes.cast(value, POINTER(ctypes.c_double)).contents.value)
    return out


def _failed(api: Any, message: str) -> int | None:
    create = ctypes.cast(api.create_error, _CREATE_ERROR)
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), _INVALID_ARGUMENT)
    error: int | None = create(ctypes.byref(arguments))
    return error
