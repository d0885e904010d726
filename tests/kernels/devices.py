"""The kernel tests on every device at hand: the CPU, a GPU through torch, and the emulation, whose "device memory" is
the host's and whose array library stands here in CuPy's place.

`kernels` is leakcore.kernels seen through the device that the `device` fixture chose: NumPy arrays go to it, results
come back as NumPy. A device checks for non-finite gradients only when asked, so it is asked.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys

import numpy as np
import pytest

import leakcore.kernels
from leakcore import _C
from leakcore.kernels import backends

DEVICES = ("cpu", "emulated", "cuda")
EMULATED = hasattr(_C, "emulated")  # the build of `make test-emulated`; the shipped module has no such name
_current = "cpu"


class EmulatedArray:
    """A device array as CuPy would hand it over; its memory is a NumPy array's."""

    def __init__(self, values):
        self.values = np.asarray(values)

    @property
    def __cuda_array_interface__(self):
        v = self.values
        readonly = not v.flags.writeable
        data = (v.__array_interface__["data"][0], readonly)
        return {"version": 3, "shape": v.shape, "strides": v.strides, "typestr": v.dtype.str, "data": data, "stream": 1}

    def __getitem__(self, key):
        return EmulatedArray(self.values[key])

    def reshape(self, *shape):
        return EmulatedArray(self.values.reshape(*shape))

    @property
    def dtype(self):
        return self.values.dtype


class EmulatedLibrary(backends.OnDevice):
    @classmethod
    def owns(cls, x):
        return isinstance(x, EmulatedArray)

    @classmethod
    def of(cls, x):
        return cls(0, 0)

    def empty(self, shape, dtype):
        """Poisoned: what a kernel forgets to write is seen."""
        array = EmulatedArray(np.empty(shape, dtype=dtype))
        array.values.reshape(-1).view(np.uint8)[:] = 0xFF
        return array

    def from_host(self, values):
        return EmulatedArray(values.copy())

    def to_host(self, x):
        return x.values

    def cast(self, x, dtype):
        with np.errstate(over="ignore"):
            return EmulatedArray(x.values.astype(dtype))

    def at_most(self, x, limit):
        return EmulatedArray(np.minimum(x.values, limit))


backends.LIBRARIES.append(EmulatedLibrary)


def _have_cuda():
    torch = sys.modules.get("torch") or pytest.importorskip("torch")
    return torch.cuda.is_available() and _C.with_cuda and not EMULATED


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    global _current
    if request.param == "emulated" and not EMULATED:
        pytest.skip("runs with the emulated build: make test-emulated")
    if request.param == "cuda" and (EMULATED or not _have_cuda()):
        if os.environ.get("LEAKCORE_REQUIRE_CUDA") == "1":
            pytest.fail("LEAKCORE_REQUIRE_CUDA=1, but torch or this build finds no CUDA device")
        pytest.skip("needs a CUDA device, torch for CUDA, and a build with CUDA kernels")
    _current = request.param
    yield request.param
    _current = "cpu"


def current():
    return _current


def to_device(x):
    """A NumPy array on the current device; a sequence of them likewise; anything else as it is."""
    if isinstance(x, (list, tuple)) and x and all(isinstance(v, np.ndarray) for v in x):
        return type(x)(to_device(v) for v in x)
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray) or _current == "cpu":
        return x
    if _current == "emulated":
        return EmulatedArray(x)
    return strided(x, "cuda") if x.dtype.kind in "fbiu" and x.dtype.isnative else x


def strided(x, where):
    """A torch tensor with the array's strides, and its place within 64 bytes: what a copy would hide is how kernels
    load what does not lie aligned or in line. torch knows no negative strides: such an array lies in line."""
    import torch

    values = torch.from_numpy(x.copy())  # ascontiguousarray keeps negative strides of short axes, and makes 0-d (1,)
    steps = [s // x.itemsize for s in x.strides]
    odd = any(s % x.itemsize for s in x.strides) or x.ctypes.data % x.itemsize
    if odd or x.size == 0 or any(step <= 0 and n > 1 for step, n in zip(steps, x.shape, strict=True)):
        return values.to(where)
    head = x.ctypes.data % 64 // x.itemsize
    span = 1 + sum(step * (n - 1) for step, n in zip(steps, x.shape, strict=True))
    memory = torch.empty(head + span, dtype=values.dtype, device=where)
    view = memory.as_strided(x.shape, [max(step, 1) for step in steps], head)
    view.copy_(values)
    return view


def to_host(x):
    if isinstance(x, (list, tuple)):
        return type(x)(to_host(v) for v in x)
    if isinstance(x, EmulatedArray):
        return x.values
    return x.cpu().numpy() if hasattr(x, "cpu") else x


_ON_DEVICE = {
    "clip_and_noise": ("grads", "noise", "mask", "out"),
    "clip_scores": ("grads", "observed"),
    "solve_labels": ("jacobian", "gradient"),
    "mixture_log_ratio": ("out",),
    "mixture_tail": (),
    "allocation_log_ratio": (),
    "allocation_tail": (),
    "standard_normal": ("out",),
    "uniform": ("out",),
}
_FIRST = {"clip_and_noise": 1, "clip_scores": 2, "solve_labels": 2}


def _through(name, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        if _current == "cpu":
            return function(*args, **kwargs)
        lead = _FIRST.get(name, 0)
        args = [to_device(a) if k < lead else a for k, a in enumerate(args)]
        arguments = {k: to_device(v) if k in _ON_DEVICE[name] else v for k, v in kwargs.items()}
        if name.startswith(("clip", "solve")):
            arguments.setdefault("check_finite", True)
        if name.startswith(("mixture", "allocation", "standard", "uniform")) and "out" not in kwargs:
            arguments.setdefault("like", to_device(np.zeros(1)))
        result = function(*args, **arguments)
        if dataclasses.is_dataclass(result):
            changed = {
                f.name: to_host(getattr(result, f.name))
                for f in dataclasses.fields(result)
                if f.name not in ("samples", "exact_sums")
            }
            result = dataclasses.replace(result, **changed)
            if kwargs.get("out") is not None:
                if _current == "cuda":
                    _copy_back(kwargs["out"], result.sum)
                result = dataclasses.replace(result, sum=kwargs["out"])
            return result
        return to_host(result)

    return call


def _copy_back(out, values):
    for target, value in zip(out, values, strict=True) if isinstance(out, (list, tuple)) else [(out, values)]:
        target[...] = value


class _Kernels:
    def __getattr__(self, name):
        function = getattr(leakcore.kernels, name)
        return _through(name, function) if name in _ON_DEVICE else function


kernels = _Kernels()
