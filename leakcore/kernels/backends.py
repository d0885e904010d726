"""Where a call's results and scratch are made: in the caller's library, on its device and stream.

NumPy makes everything for the CPU, whatever library the caller uses; on a CUDA device torch and CuPy serve themselves,
and any other library is served by one of them through DLPack or `__cuda_array_interface__`. None is imported here
unless an array on a device asks for it.
"""

from __future__ import annotations

import abc
import importlib
import math
import sys
from typing import Any

import numpy as np

from leakcore import _C
from leakcore._base.array_memory import is_torch as is_torch

CPU = _C.Place.cpu()


class Library(abc.ABC):
    """Makes and converts arrays; they support `x[i]` and `x.reshape`, as NumPy's do."""

    device: str

    @property
    @abc.abstractmethod
    def place(self) -> _C.Place:
        """Device and stream as the native core takes them."""

    @abc.abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any: ...

    @abc.abstractmethod
    def from_host(self, values: np.ndarray) -> Any:
        """The values on this device."""

    @abc.abstractmethod
    def to_host(self, x: Any) -> np.ndarray:
        """The values as NumPy sees them; on a device this waits for the stream."""

    @abc.abstractmethod
    def header(self, x: Any) -> np.ndarray:
        """Address, shape and strides of `x`. On a device only those may be used: reading an element would crash."""

    @abc.abstractmethod
    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any: ...

    @abc.abstractmethod
    def at_most(self, x: Any, limit: float) -> Any: ...

    def give(self, x: Any) -> Any:
        """`x` as the caller's kind of array."""
        return x

    def address(self, x: Any) -> int:
        return int(self.header(x).__array_interface__["data"][0])


class Host(Library):
    """NumPy, with results shared with the library of `like`."""

    device = "the CPU"

    @property
    def place(self) -> _C.Place:
        return CPU

    def __init__(self, like: Any) -> None:
        self.like = like
        self._own = like is None or isinstance(like, np.ndarray) or is_torch(like)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype=dtype) if self._own else _aligned(shape, np.dtype(dtype))

    def from_host(self, values: np.ndarray) -> np.ndarray:
        return values

    def to_host(self, x: np.ndarray) -> np.ndarray:
        return x

    def header(self, x: np.ndarray) -> np.ndarray:
        return x

    def cast(self, x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        if x.dtype == dtype:
            return x
        copied = self.empty(x.shape, dtype)
        with np.errstate(over="ignore"):
            copied[...] = x
        return copied

    def at_most(self, x: np.ndarray, limit: float) -> np.ndarray:
        copied = self.empty(x.shape, x.dtype)
        np.minimum(x, limit, out=copied)
        return copied

    def give(self, x: np.ndarray) -> Any:
        if self.like is None or isinstance(self.like, np.ndarray):
            return x
        if is_torch(self.like):
            return sys.modules["torch"].from_numpy(x)
        if hasattr(self.like, "__array_namespace__"):
            return self.like.__array_namespace__().from_dlpack(x)
        return x


class OnDevice(Library):
    """A CUDA device and the stream that the library is using there. RuntimeError where that stream is being captured
    into a graph, before anything of a call goes there."""

    def __init__(self, index: int, stream: int) -> None:
        _C.require_stream(index, stream)
        self.device = f"cuda:{index}"
        self._index, self._stream = index, stream
        self._held: Any = None
        self._bytes = 0

    @property
    def place(self) -> _C.Place:
        """Not kept: a reference to itself would keep scratch until a collection."""
        return _C.Place.cuda(device=self._index, stream=self._stream, scratch=self._scratch)

    @classmethod
    @abc.abstractmethod
    def owns(cls, x: Any) -> bool:
        """Whether `x` is this library's array and lies on a CUDA device."""

    @classmethod
    @abc.abstractmethod
    def of(cls, x: Any) -> OnDevice:
        """The device and stream of an array that this library owns."""

    def header(self, x: Any) -> np.ndarray:
        return header_of_interface(x)

    def synchronize(self) -> None:
        """Waits for what the stream has been given."""

    def _scratch(self, size: int) -> int:
        """Device memory for a native call. The calls of one library run one after the other on its stream, so that the
        next one may have what this one used."""
        if self._bytes < size:
            self._held, self._bytes = self.empty((size,), np.dtype(np.uint8)), size
        return self.address(self._held)


class Torch(OnDevice):
    @classmethod
    def owns(cls, x: Any) -> bool:
        return is_torch(x) and x.device.type == "cuda"

    @classmethod
    def of(cls, x: Any) -> Torch:
        cuda = sys.modules["torch"].cuda
        return cls(x.device.index, cuda.current_stream(x.device).cuda_stream)

    def synchronize(self) -> None:
        sys.modules["torch"].cuda.current_stream(self.device).synchronize()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name), device=self.device)

    def from_host(self, values: np.ndarray) -> Any:
        return sys.modules["torch"].from_numpy(np.asarray(values, order="C")).to(self.device)

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x.cpu().numpy())

    def header(self, x: Any) -> np.ndarray:
        # bfloat16 has no NumPy type: its bits will do, for nothing is read.
        name = str(x.dtype).removeprefix("torch.")
        dtype = np.dtype("int16" if name == "bfloat16" else name)
        strides = tuple(s * dtype.itemsize for s in x.stride())
        return _header(x.data_ptr(), tuple(x.shape), strides, dtype)

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        return x.to(getattr(sys.modules["torch"], dtype.name))

    def at_most(self, x: Any, limit: float) -> Any:
        return x.clamp(max=limit)


class CuPy(OnDevice):
    @classmethod
    def owns(cls, x: Any) -> bool:
        cupy = sys.modules.get("cupy")
        return cupy is not None and hasattr(cupy, "ndarray") and isinstance(x, cupy.ndarray)

    @classmethod
    def of(cls, x: Any) -> CuPy:
        index = int(x.device.id)
        with sys.modules["cupy"].cuda.Device(index):
            return cls(index, int(sys.modules["cupy"].cuda.get_current_stream().ptr))

    def synchronize(self) -> None:
        with self._here():
            sys.modules["cupy"].cuda.get_current_stream().synchronize()

    def _here(self) -> Any:
        return sys.modules["cupy"].cuda.Device(self._index)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        with self._here():
            return sys.modules["cupy"].empty(shape, dtype=dtype)

    def from_host(self, values: np.ndarray) -> Any:
        with self._here():
            return sys.modules["cupy"].asarray(values)

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(sys.modules["cupy"].asnumpy(x))

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        with self._here():
            return x.astype(dtype, copy=False)

    def at_most(self, x: Any, limit: float) -> Any:
        with self._here():
            return sys.modules["cupy"].minimum(x, limit)


LIBRARIES: list[type[OnDevice]] = [Torch, CuPy]
"""The libraries that serve their own arrays on a CUDA device."""


class Imported(OnDevice):
    """Another library's array, served by torch or CuPy; results go back through DLPack."""

    def __init__(self, server: OnDevice, like: Any) -> None:
        super().__init__(server._index, server._stream)
        self.server, self.like = server, like

    @classmethod
    def owns(cls, x: Any) -> bool:
        return False

    @classmethod
    def of(cls, x: Any) -> Imported:
        raise TypeError(f"{type(x).__name__} is imported, not owned")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.server.empty(shape, dtype)

    def from_host(self, values: np.ndarray) -> Any:
        return self.server.from_host(values)

    def to_host(self, x: Any) -> np.ndarray:
        return self.server.to_host(x)

    def header(self, x: Any) -> np.ndarray:
        return self.server.header(x)

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        return self.server.cast(x, dtype)

    def at_most(self, x: Any, limit: float) -> Any:
        return self.server.at_most(x, limit)

    def give(self, x: Any) -> Any:
        # The array's own library knows nothing of this stream: it may reuse the memory of a temporary at once.
        self.server.synchronize()
        if hasattr(self.like, "__array_namespace__"):
            return self.like.__array_namespace__().from_dlpack(x)
        return x


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Uninitialised, at an address that XLA takes over: JAX copies from any other, and NumPy promises 16 bytes."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + 64, dtype=np.uint8)
    start = -int(buffer.__array_interface__["data"][0]) % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def serve(x: Any) -> tuple[OnDevice, Any] | None:
    """The library for an array on a CUDA device, and the array as that library sees it; None for any other. Raises
    TypeError if neither torch nor CuPy can read the array."""
    for library in LIBRARIES:
        if library.owns(x):
            return library.of(x), x
    speaks_dlpack = hasattr(x, "__dlpack_device__") and hasattr(x, "__dlpack__")
    if not hasattr(x, "__cuda_array_interface__") and not speaks_dlpack:
        return None
    imported = _import(x, speaks_dlpack)
    server = next((library.of(imported) for library in LIBRARIES if library.owns(imported)), None)
    if server is None:
        raise TypeError(f"a {type(x).__name__} was not read as an array on a CUDA device")
    return Imported(server, x), imported


def _import(x: Any, speaks_dlpack: bool) -> Any:
    problems = []
    for name in ("cupy", "torch"):
        try:
            library = importlib.import_module(name)
            if speaks_dlpack:
                return library.from_dlpack(x)  # the protocol makes the consumer's stream wait for the producer's
            if name == "cupy":
                return library.asarray(x)  # waits for the interface's stream
            stream = x.__cuda_array_interface__.get("stream")
            tensor = library.as_tensor(x, device="cuda")
            if stream is not None:
                producer = library.cuda.ExternalStream(stream, device=tensor.device)
                library.cuda.current_stream(tensor.device).wait_stream(producer)
            return tensor
        except (ImportError, AssertionError, BufferError, RuntimeError, TypeError, ValueError) as error:
            problems.append(f"{name}: {error}")
    raise TypeError("neither CuPy nor torch can read it (" + "; ".join(problems) + ")")


class _Described:
    """An object that NumPy turns into an array without reading its elements."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.__array_interface__ = description


def _header(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: Any, readonly: bool = False
) -> np.ndarray:
    dtype = np.dtype(dtype)
    if address == 0 or 0 in shape:
        return np.empty(shape, dtype=dtype)
    described = {"version": 3, "typestr": dtype.str, "data": (address, readonly), "shape": shape, "strides": strides}
    return np.asarray(_Described(described))


def header_of_interface(x: Any) -> np.ndarray:
    """The header of anything with `__cuda_array_interface__`; masks are refused."""
    interface = x.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise TypeError("an array with a mask, which would be lost")
    address, readonly = interface["data"]
    return _header(address, tuple(interface["shape"]), interface.get("strides"), interface["typestr"], bool(readonly))
