"""What this build of the native core is, for `leakcore doctor` and bug reports."""

from __future__ import annotations

from typing import Any

from leakcore import _C
from leakcore.kernels import threads


def build_info() -> dict[str, Any]:
    """Facts about the native core, for `leakcore doctor` and bug reports.

    Returns:
        A dict: `version` and `compiler` of the build; `simd`, the instruction tier in use, the widest of
        `simd_available` unless LEAKCORE_ISA names another; `cuda`, whether CUDA kernels were compiled in, and
        `cuda_archs`, for which compute capabilities; `devices`, the CUDA devices (name, compute_capability,
        memory_bytes); `device_message`, why there are none, or ""; `num_threads`, what the next kernel may use.

    Raises:
        ValueError: if LEAKCORE_ISA names a tier that this machine does not have.

    Example:
        >>> from leakcore import kernels
        >>> info = kernels.build_info()
        >>> info["simd"] in info["simd_available"]
        True
    """
    info = _C.build_info()
    info["cuda_archs"] = info["cuda_archs"].split()
    return {**info, "num_threads": threads.num_threads()}


def selftest() -> None:
    """Run the native core's own checks, including the known answers of the generator.

    Returns:
        None, if all checks pass.

    Raises:
        RuntimeError: says what is wrong.

    Example:
        >>> from leakcore import kernels
        >>> kernels.selftest()
    """
    if wrong := _C.selftest():
        raise RuntimeError(f"the native core is broken: {wrong}")
