"""How much memory this process may have, asked before a size is turned into arrays that it cannot hold.

Linux grants more memory than there is and ends a process, or another's, when it is used; a refusal comes before.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Any

_SMALL = 1 << 26
"""Bytes that are not asked about: a question takes some microseconds."""


def require(nbytes: int, **sizes: Any) -> None:
    """ValueError, naming the sizes, where arrays of this many bytes are more than the process may hold."""
    if nbytes < _SMALL:
        return
    limit = _allowed()
    if nbytes > limit:
        asked = ", ".join(f"`{name}={value}`" for name, value in sizes.items())
        raise ValueError(
            f"{asked} needs {nbytes / 2**30:.3g} GiB of memory, and this process may have {limit / 2**30:.3g}: ask "
            "for less at a time"
        )


def _allowed() -> int:
    """Bytes: of the machine's memory, its container's, and what RLIMIT_AS leaves."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(OSError, ValueError):
        if soft != resource.RLIM_INFINITY:
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            limits.append(max(soft - mapped, 0))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return min(limits)
