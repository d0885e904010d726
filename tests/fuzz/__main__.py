"""`python tests/fuzz [TARGET …] [--seconds N] [--seed S] [--replay] [--limit BYTES]`: coverage-guided fuzzing.

A mutant that reaches lines of leakcore that none before it reached is kept and bent further. A find is written to
build/fuzz and ends the run with code 1. With --atheris libFuzzer drives instead, where atheris is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import mutate
from targets import READERS, TARGETS, Refused, corpus

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "build" / "fuzz"
LONGEST = 20.0
"""Seconds of the processor that a file of a few kilobytes may take."""


_WATCHED = tuple(f"/{reader}.py" for reader in READERS)


class Coverage:
    """Lines of leakcore that a call reaches."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._now: set[tuple[str, int]] = set()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.endswith(_WATCHED) or "leakcore" not in name:
            return None
        self._now.add((name, frame.f_lineno))
        return self._trace

    def run(self, call: Callable[[bytes], object], data: bytes) -> bool:
        """Call it; whether it went where none went before."""
        self._now = set()
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            with contextlib.suppress(Refused):
                call(data)
        finally:
            sys.settrace(before)
        new = self._now - self.seen
        self.seen |= new
        return bool(new)


def fuzz(name: str, seconds: float, seed: int, *, replay: bool = False) -> int:
    """Replay the corpus, then mutate for so long; the number of files tried."""
    target, coverage, rng = TARGETS[name], Coverage(), random.Random(f"{name} {seed}")
    files = corpus(name)
    tried = 0

    def attempt(data: bytes) -> bool:
        nonlocal tried
        tried += 1
        began = time.process_time()  # of the processor: a machine that was asleep does not make a parser slow
        try:
            new = coverage.run(target, data)
        except BaseException:
            traceback.print_exc()
            print(f"FOUND {name}: {keep(data)}", flush=True)
            raise SystemExit(1) from None
        took = time.process_time() - began
        if took > LONGEST:
            print(f"SLOW {name}: a file of {len(data)} bytes took {took:.1f} s: {keep(data)}", flush=True)
            raise SystemExit(1)
        return new

    def keep(data: bytes) -> Path:
        FOUND.mkdir(parents=True, exist_ok=True)
        where = FOUND / f"{name}-{seed}-{tried}"
        where.write_bytes(data)
        return where

    for data in files:
        attempt(data)
    end = time.monotonic() + seconds
    pool = list(files)
    while not replay and time.monotonic() < end:
        data = mutate.mutated(rng.choice(pool), pool, rng)
        if len(data) < 200_000 and attempt(data):
            pool.append(data)
    print(f"{name}: {tried} files, {len(coverage.seen)} lines, {len(pool) - len(files)} kept", flush=True)
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", action="store_true", help="the corpus alone")
    parser.add_argument("--limit", type=int, help="bytes of memory beyond what the imports take")
    parser.add_argument("--atheris", action="store_true", help="libFuzzer drives one target")
    options = parser.parse_args()
    warnings.simplefilter("error")
    names = options.targets or list(TARGETS)
    for name in names:  # what is imported on first use does not count
        for data in corpus(name)[:2]:
            with contextlib.suppress(Refused):
                TARGETS[name](data)
    if options.limit:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + options.limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if options.atheris:
        _atheris(names[0], options.seconds)
    for name in names:
        fuzz(name, options.seconds, options.seed, replay=options.replay)


def _atheris(name: str, seconds: float) -> None:
    import atheris

    target = TARGETS[name]

    def once(data: bytes) -> None:
        with contextlib.suppress(Refused):
            target(data)

    atheris.instrument_all()
    folder = FOUND / f"corpus-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(corpus(name)):
        (folder / f"seed-{i}").write_bytes(data)
    atheris.Setup(
        [sys.argv[0], str(folder), f"-max_total_time={int(seconds)}", "-rss_limit_mb=4096", "-timeout=30",
         f"-artifact_prefix={FOUND}/{name}-"], once,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
