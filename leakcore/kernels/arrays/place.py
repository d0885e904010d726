"""Where sampling happens when a caller names a device instead of handing over an array on it."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np

from leakcore import _C
from leakcore.kernels.arrays import arrays


def check(device: Any) -> None:
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


def anchor(device: str | None) -> Any:
    """An empty array on the device, for a kernel's `like`: None for the CPU, else torch's or, without torch, CuPy's.

    Raises ValueError where the device is not to be had, saying why.
    """
    check(device)
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


def to_numpy(x: Any) -> np.ndarray:
    """The values of a kernel's result on the host; waits for the device."""
    return arrays.to_numpy(x)
