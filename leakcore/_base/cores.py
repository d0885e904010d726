"""How many processors this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those that the process's affinity allows; all of the machine's where the system knows no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
