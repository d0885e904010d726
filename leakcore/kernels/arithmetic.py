"""What decides how numbers are rounded here: what was begun under one arithmetic must not be finished under another."""

from __future__ import annotations

import copy
import functools
import os
import platform
import re
from pathlib import Path
from typing import Any

from leakcore import _C
from leakcore._base.installed import version_of

_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "BLIS_ARCH_TYPE", "DNNL_MAX_CPU_ISA", "GLIBC_TUNABLES", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
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
    return {"simd": _C.build_info()["simd"], **copy.deepcopy(_found())}


@functools.cache
def _found() -> dict[str, Any]:
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

    there = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    ours = [lib for lib in there if {"numpy.libs", "scipy.libs"} & set(Path(lib["filepath"]).parts)]
    shared = [lib for lib in there if "site-packages" not in Path(lib["filepath"]).parts]  # of a system, or of conda
    words = (
        " ".join(str(lib.get(key) or "") for key in ("internal_api", "version", "architecture"))
        for lib in ours or shared
    )
    return sorted({" ".join(text.split()) for text in words})
