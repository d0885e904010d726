"""What must be settled before NumPy or torch is imported, and the facts a reader needs next to a time."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

VARIABLES = {
    # A worker of OpenMP or OpenBLAS that has run out of work spins for a while before it sleeps. On a machine with few
    # cores it then holds the one that the next contender needs: passive waiting, and the shortest spin there is.
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_THREAD_TIMEOUT": "4",
}
PACKAGES = ("leakcore", "numpy", "scipy", "torch", "opacus", "riskcal", "dp-accounting", "jax-privacy", "threadpoolctl")


def python_path_first() -> None:
    """`python -m` puts the current folder before PYTHONPATH; here a checkout that is named there is the one to time."""
    named = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:0] = named


SPINNING = "peers with several threads"
"""The worker process whose libraries wait as they do by default: passive waiting costs a peer that wakes its threads
for every operation most of its speed. Until they sleep again nobody is timed."""
SPIN_SECONDS = 0.05


def of_process(home: str) -> dict[str, str]:
    """The environment of a worker process: of `SPINNING`, or of ours and all that have one thread, where `home` forces
    the instruction tier, which is read once per process."""
    env = {**os.environ, **VARIABLES}
    for name in ("LEAKCORE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LEAKCORE_ISA"):
        env.pop(name, None)  # the worker gives every contender its threads, one by one
    if home == SPINNING:
        for name in VARIABLES:
            env.pop(name)
    elif home:
        env["LEAKCORE_ISA"] = home
    return env


def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def last_level_cache() -> int:
    """Bytes of the largest cache, 32 MiB where the system does not say."""
    sizes = [_bytes(p.read_text()) for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max(sizes, default=2**25)


def caches() -> dict[str, int]:
    """Bytes of each cache that the first processor sees, by level and type."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = (index / "type").read_text().strip()
        if kind != "Instruction":
            sizes[f"L{(index / 'level').read_text().strip()}"] = _bytes((index / "size").read_text())
    return sizes


def _bytes(text: str) -> int:
    text = text.strip()
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def facts() -> dict[str, Any]:
    """Machine, versions, commit and load; no paths of this machine."""
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "processors": processors(),
        "caches": caches(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", "-uno") else ""),
        "load": os.getloadavg()[0],
        "environment": VARIABLES,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _git(*arguments: str) -> str:
    """What git says about the checkout that is being timed: the one `leakcore` comes from."""
    import leakcore

    root = Path(leakcore.__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
