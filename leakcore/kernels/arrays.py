"""Arrays of any library as the native core sees them, and results back as the same kind.

torch is recognised without being imported. Nothing is copied: what the core sees of an array (`_C.Rows`) is an address,
an element type, sizes and element strides. An array on a CUDA device is described by a NumPy array over its address, of
which only the layout is used; a build without CUDA kernels refuses it by the kernel's name, and there is no hidden copy
to the CPU. `empty_on` stands for a device that a caller names instead of handing over an array on it.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from typing import Any

import numpy as np

from leakcore import _C
from leakcore._base import array_memory, validate
from leakcore._base.array_memory import is_torch as is_torch
from leakcore.kernels import backends
from leakcore.kernels.backends import CPU as CPU
from leakcore.kernels.backends import Host as Host
from leakcore.kernels.backends import Library as Library

_DTYPE_CODES = {name: code for code, name in enumerate(validate.FLOATING)}
"""The numbers of `DType` in csrc/core/runtime/array.h."""
_NAMES = {
    np.dtype(name): name for name in ("float16", "float32", "float64", "bool")
}  # NumPy builds a name each time, slowly
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_ALLOWED = validate.either(validate.FLOATING)
_NUMPY = Host(None)
_DLPACK_CPU = 1
_DLPACK_CUDA = (2, 13)  # device memory, managed memory


def dtype_name(dtype: np.dtype[Any]) -> str:
    return _NAMES.get(dtype) or dtype.name


@dataclasses.dataclass(slots=True, eq=False)  # not frozen, which would triple the time it takes to make one
class Array:
    """A caller's array: its values as NumPy sees them (the bits, for bfloat16), its element type, its origin, and the
    library that makes results for it. On a CUDA device `values` is a header: no element may be read."""

    name: str
    values: np.ndarray
    dtype: str
    origin: Any
    library: Library

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """What a result computed from it holds: float64 from float64, else float32."""
        return _FLOAT64 if self.dtype == "float64" else _FLOAT32

    @property
    def epsilon(self) -> float:
        """Spacing of the element type at 1."""
        return 2.0**-7 if self.dtype == "bfloat16" else float(np.finfo(self.dtype).eps)

    @property
    def vanishing(self) -> float:
        """The largest number that the element type rounds to 0 (of float64 the next that a float holds)."""
        if self.dtype == "bfloat16":
            return 2.0**-134
        return max(0.5 * float(np.finfo(self.dtype).smallest_subnormal), 2.0**-1074)


def _refuse_cuda(kernel: str, name: str, device: str) -> None:
    if not _C.with_cuda:
        raise ValueError(
            f"{kernel}: `{name}` is on {device}, but this build of leakcore has no CUDA kernels: rebuild it with "
            f"LEAKCORE_CUDA=1 where nvcc is installed, or move {name} to the CPU"
        )


def _of_torch(kernel: str, name: str, x: Any) -> Array:
    torch = sys.modules["torch"]
    on_cpu = x.is_cpu
    if not on_cpu and x.device.type != "cuda":
        raise ValueError(f"{kernel}: `{name}` must be on the CPU or a CUDA device, got device {str(x.device)!r}")
    if x.requires_grad:
        raise ValueError(
            f"{kernel}: `{name}` must not require grad, for kernels have no derivative: pass {name}.detach()"
        )
    if array_memory.differentiated(x):
        raise ValueError(
            f"{kernel}: `{name}` must not have a tangent, for kernels have no derivative: pass {name}.detach()"
        )
    whole = array_memory.plain_tensor(name, x, kernel=kernel)
    if whole.is_neg() or whole.is_conj():
        whole = whole.resolve_neg().resolve_conj()
    if not on_cpu:
        return _on_device(kernel, name, whole, str(x.device))
    narrow = x.dtype == torch.bfloat16
    try:
        with array_memory.untransformed():
            # Of bfloat16, which NumPy has no type for, the bits.
            values: np.ndarray = (whole.view(torch.int16) if narrow else whole).numpy()
    except (TypeError, RuntimeError) as why:
        dtype = str(x.dtype).removeprefix("torch.")
        if dtype not in _DTYPE_CODES and dtype != "bool":  # of eight bits
            raise TypeError(f"{kernel}: `{name}` must be of type {_ALLOWED}, got {dtype}") from why
        raise TypeError(f"{kernel}: `{name}` cannot be read here: {why}") from why
    return Array(name, values, "bfloat16" if narrow else dtype_name(values.dtype), x, Host(x))


def _of_numpy(name: str, values: np.ndarray, origin: Any) -> Array:
    dtype = dtype_name(values.dtype)
    bits = values.view(np.int16) if dtype == "bfloat16" else values  # ml_dtypes' type, as JAX has it
    return Array(name, bits, dtype, origin, Host(origin))


def _on_device(kernel: str, name: str, x: Any, device: str) -> Array:
    _refuse_cuda(kernel, name, device)
    try:
        served = backends.serve(x)
        if served is None:
            raise TypeError("no library serves it")
        library, view = served
        values = library.header(view)
    except TypeError as error:
        raise TypeError(f"{kernel}: `{name}`, a {type(x).__name__} on {device}, cannot be read: {error}") from error
    dtype = str(view.dtype).removeprefix("torch.") if is_torch(view) else dtype_name(values.dtype)
    return Array(name, values, dtype, view, library)


def _any(kernel: str, name: str, x: Any) -> Array:
    if is_torch(x):
        return _of_torch(kernel, name, x)
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{kernel}: `{name}` must be a plain array, got a masked one, whose mask would be lost")
    if isinstance(x, np.ndarray):
        return _of_numpy(name, array_memory.of_numpy(name, x, kernel=kernel), x)
    if hasattr(x, "__dlpack_device__") and hasattr(x, "__dlpack__"):
        device_type, device_index = x.__dlpack_device__()
        if int(device_type) in _DLPACK_CUDA:
            return _on_device(kernel, name, x, f"cuda:{device_index}")
        if int(device_type) != _DLPACK_CPU:
            raise ValueError(
                f"{kernel}: `{name}` must be on the CPU or a CUDA device, got DLPack device {int(device_type)}"
            )
        if str(getattr(x, "dtype", "")) == "bfloat16" and hasattr(x, "__array__"):  # NumPy's DLPack lacks the type
            return _of_numpy(name, np.asarray(x), x)
        try:
            values = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError) as error:
            raise TypeError(f"{kernel}: `{name}` cannot be read through DLPack: {error}") from error
        return Array(name, values, dtype_name(values.dtype), x, Host(x))
    if hasattr(x, "__cuda_array_interface__"):
        return _on_device(kernel, name, x, "a CUDA device")
    raise TypeError(
        f"{kernel}: `{name}` must be a NumPy array, a torch tensor or a DLPack array, got {type(x).__name__}"
    )


def read(kernel: str, name: str, x: Any) -> Array:
    """A caller's floating-point array, without a copy. Raises TypeError (not an array, masked, sparse, integer or
    otherwise unsupported type) and ValueError (requires grad, wrong device, a CUDA array in a CPU-only build, byte
    order or alignment); each names the kernel and the argument."""
    array = _any(kernel, name, x)
    values = array.values
    if array.dtype not in _DTYPE_CODES:
        raise TypeError(f"{kernel}: `{name}` must be of type {_ALLOWED}, got {array.dtype}")
    if not values.dtype.isnative:
        raise ValueError(f"{kernel}: `{name}` must be in native byte order, got {values.dtype.str!r}")
    if not values.flags.aligned and not any(s % values.itemsize for s in values.strides):
        raise ValueError(
            f"{kernel}: `{name}` must begin at a multiple of its {values.itemsize}-byte elements: pass a copy"
        )
    if any(s % values.itemsize for s in values.strides):
        raise ValueError(
            f"{kernel}: `{name}` must have strides that are multiples of its {values.itemsize}-byte elements, got "
            f"{values.strides} bytes: pass a copy"
        )
    return array


def read_bool(kernel: str, name: str, x: Any) -> Array:
    """A caller's boolean array, without a copy."""
    array = _any(kernel, name, x)
    if array.dtype != "bool":
        raise TypeError(f"{kernel}: `{name}` must be of type bool, got {array.dtype}")
    return array


def same_library(kernel: str, first: Array, other: Array) -> None:
    """Results follow the first array's library and device, so mixing them is refused."""
    same_device(kernel, first, other)
    if type(first.origin) is type(other.origin):
        return
    if is_torch(first.origin) != is_torch(other.origin):
        raise TypeError(
            f"{kernel}: `{first.name}` and `{other.name}` must come from the same library, got "
            f"{type(first.origin).__name__} and {type(other.origin).__name__}"
        )


def same_device(kernel: str, first: Array, other: Array) -> None:
    if first.library.device != other.library.device:
        raise ValueError(
            f"{kernel}: `{first.name}` and `{other.name}` must be on the same device, got {first.library.device} and "
            f"{other.library.device}"
        )


def to_numpy(x: Any) -> np.ndarray:
    """The NumPy view of an array that `wrap` made; on a device, a copy."""
    if isinstance(x, np.ndarray):
        return x
    array = _any("to_numpy", "x", x)
    return array.values if array.library.place is CPU else array.library.to_host(array.origin)


def wrap(result: np.ndarray, like: Any) -> Any:
    """`result` as the kind of array that `like` is: sharing memory on the CPU, copied to its device, NumPy for None."""
    library = read_like("wrap", like)
    return library.give(library.from_host(result))


def read_like(kernel: str, like: Any) -> Library:
    """The library and device that a result follows: those of the array `like`, NumPy for None."""
    return _NUMPY if like is None else _any(kernel, "like", like).library


def lead_stride(values: np.ndarray, dims: int) -> tuple[int, int] | None:
    """Size and element stride of the first `dims` dimensions as one; None if they do not lie in line."""
    strides = tuple(s // values.itemsize for s in values.strides[:dims])
    sizes, merged = _C.merge(values.shape[:dims], strides)
    if len(sizes) > 1:
        return None
    return (sizes[0], merged[0]) if sizes else (1, 0)


def rows_of(array: Array, *, runs: bool = False, rows: bool = False) -> _C.Rows:
    """Leading dimensions of runs and of rows, where there are any, and the rest flattened into columns."""
    try:
        return _C.Rows.of(array.values, _DTYPE_CODES[array.dtype], runs, rows)
    except ValueError as error:
        raise ValueError(f"`{array.name}` has {error}") from None


def rows_by_stride(array: Array, *, run: int, row: int, columns: int, column: int) -> _C.Rows:
    """Rows described by strides in elements: of a run, of a row (0 if there is none) and of a column."""
    return _C.Rows.by_stride(
        data=address(array.values),
        dtype=_DTYPE_CODES[array.dtype],
        run_stride=run,
        row_stride=row,
        columns=columns,
        column_stride=column,
    )


def address(values: np.ndarray) -> int:
    """Address of the first element (not of the lowest one: strides may be negative)."""
    return _C.address(values)


def require_device(device: Any) -> None:
    """Raise ValueError unless `device` is None, "cpu", "cuda" or "cuda:N" and this build has kernels for it."""
    if device is None or device == "cpu":
        return
    if not isinstance(device, str) or not re.fullmatch(r"cuda(:\d+)?", device):
        raise ValueError(f"`device` must be None, 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if not _C.with_cuda:
        raise ValueError(
            f"`device` must be None or 'cpu' in a build of leakcore without CUDA kernels, got {device!r}: rebuild it "
            "with LEAKCORE_CUDA=1 where nvcc is installed"
        )


def empty_on(device: str | None) -> Any:
    """An empty array on the device, for a kernel's `like`: None for the CPU, else torch's or, without torch, CuPy's.

    Raises ValueError where the device is not to be had, saying why.
    """
    require_device(device)
    if device is None or device == "cpu":
        return None
    problems = []
    for name in ("torch", "cupy"):
        try:
            library = importlib.import_module(name)
            if name == "torch":
                return library.empty(0, device=device)
            with library.cuda.Device(int(device.partition(":")[2] or 0)):
                return library.empty(0)
        except Exception as error:  # whatever a library says of a missing driver or device
            problems.append(f"{name}: {' '.join(str(error).split())}")
    raise ValueError(f"`device` must be one that torch or CuPy can use here, got {device!r} ({'; '.join(problems)})")
