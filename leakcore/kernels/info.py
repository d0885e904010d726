"""What this build of the native core is, where its header lies, and what decides how its numbers are rounded."""

from __future__ import annotations

import copy
import functools
import os
import platform
import re
from pathlib import Path
from typing import Any

from leakcore import _C
from leakcore._base.version import version_of


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
    from leakcore.kernels import threads  # not above: NumPy comes with it, and `get_include` needs none

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


def get_include() -> str:
    """The folder to add to the include path of an extension that calls a kernel from C or C++.

    It holds `leakcore/kernels.h`, which documents a table of C functions, one for each kernel. The installed leakcore
    hands the table over at run time: nothing is linked, and no other header is needed. CMake finds it by
    `find_package(leakcore CONFIG)` in the folder above. `examples/embed_kernel` and `examples/embed_cmake` are whole
    extensions.

    Returns:
        The path as text.

    Example:
        >>> import leakcore
        >>> from pathlib import Path
        >>> (Path(leakcore.get_include()) / "leakcore" / "kernels.h").is_file()
        True
    """
    return str(Path(__file__).resolve().parents[1] / "include")


_VARIABLES = (
    "ATEN_CPU_CAPABILITY BLIS_ARCH_TYPE DNNL_MAX_CPU_ISA GLIBC_TUNABLES MKL_CBWR MKL_DEBUG_CPU_TYPE "
    "MKL_ENABLE_INSTRUCTIONS ONEDNN_DEFAULT_FPMATH_MODE ONEDNN_MAX_CPU_ISA"
).split()
"""Environment variables by which torch and the libraries below it choose their instructions."""
_LIBRARIES = ("scipy", "scikit-learn", "opacus")


def arithmetic() -> dict[str, Any]:
    """What decides the last bits of a floating result on this machine, as plain values.

    What was begun under one arithmetic must not be finished under another: checkpoints are bound to it. The versions of
    leakcore, NumPy and torch are recorded elsewhere. The number of threads does not appear, because no result depends
    on it.

    Returns:
        A dict: `simd`, the instruction tier of the native core (fused multiply-add rounds once where two operations
        round twice); `machine` and `processor`, architecture and vendor, by which torch's linear algebra chooses its
        code; `numpy`, the instruction sets that NumPy uses; `blas`, the libraries behind NumPy and SciPy, each with its
        version and processor; `libc`, of the elementary functions; `libraries`, versions of SciPy and others;
        `variables`, the environment variables by which torch and the libraries below it choose their instructions.

    Raises:
        ValueError: if LEAKCORE_ISA names a tier that this machine does not have.

    Example:
        >>> from leakcore import kernels
        >>> kernels.arithmetic() == kernels.arithmetic()
        True
    """
    return {"simd": _C.build_info()["simd"], **copy.deepcopy(_without_tier())}


@functools.cache
def _without_tier() -> dict[str, Any]:
    import numpy as np

    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    return {
        "machine": platform.machine(),
        "processor": _vendor(),
        "numpy": " ".join([*extensions["baseline"], *extensions.get("found", ())]),
        "blas": _blas(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "libraries": {name: version_of(name) for name in _LIBRARIES},
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _vendor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    match = re.search(r"^(?:vendor_id|CPU implementer)\s*:\s*(\S+)", text, re.MULTILINE)
    return platform.processor() if match is None else match[1]


def _blas() -> list[str]:
    """The BLAS libraries by name, version and kernels, without the ones that other packages such as torch bring."""
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own
    import threadpoolctl

    loaded = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    ours = [lib for lib in loaded if {"numpy.libs", "scipy.libs"} & set(Path(lib["filepath"]).parts)]
    shared = [lib for lib in loaded if "site-packages" not in Path(lib["filepath"]).parts]  # of a system, or of conda
    words = (
        " ".join(str(lib.get(key) or "") for key in ("internal_api", "version", "architecture"))
        for lib in ours or shared
    )
    return sorted({" ".join(text.split()) for text in words})
