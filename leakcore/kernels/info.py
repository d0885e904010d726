"""What this build of the native core is, for `leakcore doctor` and bug reports."""

from __future__ import annotations

from typing import Any

from leakcore import _C
from leakcore.kernels import threads


def build_info() -> dict[str, Any]:
    """Facts about the native core.

    version, compiler: of the build. simd: the instruction tier in use, the widest of simd_available unless the
    environment variable LEAKCORE_ISA names another (ValueError if this machine does not have it). cuda: whether CUDA
    kernels were compiled in. cuda_archs: for which compute capabilities. devices: CUDA devices found (name,
    compute_capability, memory_bytes). device_message: why there are none, "" otherwise. num_threads: what the next
    kernel may use.
    """
    info = _C.build_info()
    info["cuda_archs"] = info["cuda_archs"].split()
    return {**info, "num_threads": threads.num_threads()}


def selftest() -> None:
    """Run the native core's own checks (known answers of the generator among them); RuntimeError says what is wrong."""
    if wrong := _C.selftest():
        raise RuntimeError(f"the native core is broken: {wrong}")
