"""Timing that can be compared: all contenders in one process, interleaved, medians with their spread.

Machines drift (turbo, neighbours), so a ratio is taken only between times of the same round, and the spread says how
far to trust it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

OURS = "leakcore"


@dataclasses.dataclass(frozen=True)
class Case:
    """One claim of speed: who does the same job, and what the hardware allows."""

    name: str
    what: str
    contenders: dict[str, Callable[[], Any]]
    limit_seconds: float
    limit: str
    """What `limit_seconds` is: the least time this machine needs, and for what."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per round of one contender, and the median over rounds of its time over ours."""

    seconds: list[float]
    ratio: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the range of the middle half, relative to the median."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float(high - low) / 2 / self.median


def measure(case: Case, rounds: int, seconds: float) -> dict[str, Timing]:
    """Every contender once per round, until `rounds` or `seconds` are used up (three rounds at least)."""
    names = list(case.contenders)
    for name in names:
        case.contenders[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for r in range(rounds):
        if r >= 3 and time.perf_counter() - start > seconds:
            break
        for name in names[r % len(names) :] + names[: r % len(names)]:
            begin = time.perf_counter()
            case.contenders[name]()
            taken[name].append(time.perf_counter() - begin)
    ours = taken[OURS]
    return {
        name: Timing(times, statistics.median(t / o for t, o in zip(times, ours, strict=True)))
        for name, times in taken.items()
    }


def best(run: Callable[[], Any], repeats: int = 7) -> float:
    """The shortest of a few runs: what the hardware can do, not what it usually does."""
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What this machine can do, measured now with all its threads."""

    read_bytes_per_second: float
    flops: float

    @staticmethod
    def measured() -> Limits:
        long = np.ones(16_000_000)
        square = np.random.default_rng(0).standard_normal((1200, 1200))
        return Limits(
            read_bytes_per_second=long.nbytes / best(lambda: np.dot(long, long)),
            flops=2 * 1200**3 / best(lambda: square @ square),
        )


def machine() -> dict[str, Any]:
    """What a reader needs to know before comparing with another machine."""
    from leakcore import kernels

    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = {name: sys.modules[name].__version__ for name in ("numpy", "scipy", "torch") if name in sys.modules}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "cpu": model,
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit,
        "load": os.getloadavg()[0],
        "leakcore": kernels.build_info(),
    }


def show(case: Case, timings: dict[str, Timing]) -> None:
    """One table per case."""
    print(f"\n{case.name}: {case.what}")
    print(f"  {'':28}{'median':>10}  {'±':>4}  {'× ours':>7}  {'of limit':>8}")
    for name, t in timings.items():
        share = case.limit_seconds / t.median
        print(f"  {name:28}{_time(t.median):>10}  {t.spread:4.0%}  {t.ratio:7.2f}  {share:8.0%}")
    print(f"  limit {_time(case.limit_seconds)}: {case.limit}")


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def write(path: Path, limits: Limits, results: dict[str, tuple[Case, dict[str, Timing]]]) -> None:
    """All rounds and the machine's facts as JSON."""
    cases = {
        name: {
            "what": case.what,
            "limit_seconds": case.limit_seconds,
            "limit": case.limit,
            "contenders": {
                who: {"median": t.median, "spread": t.spread, "ratio_to_ours": t.ratio, "seconds": t.seconds}
                for who, t in timings.items()
            },
        }
        for name, (case, timings) in results.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": "leakcore.bench/1", "machine": machine(), "limits": dataclasses.asdict(limits), "cases": cases}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
