"""A process that holds one tier's contenders and times one call when asked: `python -m bench.worker`.

LEAKCORE_ISA is read once per process, so tiers need processes of their own, and interleaving them needs processes that
wait: each line of JSON on standard input is a request, each answer a line on what was standard output.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import environment

environment.python_path_first()

from bench import cases, limits  # noqa: E402
from bench.case import Contender  # noqa: E402

M_MMAP_THRESHOLD = -3  # malloc.h
LEAST = 0.02  # seconds that one timing lasts at least, by repetition: the first call finds cold caches


class Worker:
    def __init__(self, device: str, quick: bool) -> None:
        self.device = device
        self.quick = quick
        self.cases = {case.key: case for case in cases.all_cases(device, quick)}
        self.runs: dict[str, tuple[Callable[[], Any], int, Contender]] = {}
        self.threads = 0

    def facts(self) -> dict[str, Any]:
        from leakcore import kernels

        return {**environment.facts(), "leakcore": kernels.build_info()}

    def rates(self, threads: int, streaming: bool) -> dict[str, Any]:
        self._use(threads)
        if self.device == "cuda":
            return {"rates": limits.cuda(self.quick), "reader": "torch device copy, bytes read and written"}
        rates = limits.loops(threads, self.quick)
        reader = ""
        if streaming:
            read, reader = limits.streaming(threads, self.quick)
            rates |= read | limits.products(self.quick)
        return {"rates": rates, "reader": reader}

    def build(self, case: str, contenders: list[str]) -> dict[str, Any]:
        """Makes the case's data and each contender's call, warms it up; why not, for those that cannot run."""
        self.runs = {}
        chosen = self.cases[case]
        data = chosen.data()
        absent = {}
        for contender in chosen.contenders:
            if contender.name not in contenders:
                continue
            if missing := [m for m in contender.needs if importlib.util.find_spec(m) is None]:
                absent[contender.name] = f"not installed: {', '.join(missing)}"
                continue
            self._use(contender.threads)
            try:
                run = contender.build(data)
                first = self._timed(run, 1)
            except Exception as error:  # a peer that fails is a row of the table, not the end of the benchmark
                traceback.print_exc()
                absent[contender.name] = f"{type(error).__name__}: {error}"[:200]
                continue
            usual = self._timed(run, 1) if first < 0.5 else first
            number = max(1, min(10_000, int(LEAST / max(usual, 1e-7))))
            self.runs[contender.name] = (run, number, contender)
        return {"absent": absent}

    def time(self, contender: str) -> dict[str, Any]:
        run, number, who = self.runs[contender]
        self._use(who.threads)
        return {"seconds": self._timed(run, number) / number / who.share}

    def forget(self) -> dict[str, Any]:
        """Lets go of the case's data."""
        self.runs = {}
        return {}

    def memory(self, case: str, contender: str) -> dict[str, Any]:
        """Bytes by which one call raises the high-water mark of this process, which must be fresh."""
        give_memory_back()
        built = self.build(case, [contender])
        if contender not in self.runs:
            return {"bytes": None, "why": built["absent"].get(contender, "")}
        run, _, _ = self.runs[contender]
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        result = run()
        peak = status("VmHWM")
        del result
        return {"bytes": max(peak - before, 0)}

    def extra(self, case: str) -> dict[str, Any]:
        self._use(environment.processors())
        extra = self.cases[case].extra
        return {"table": extra() if extra else []}

    def _use(self, threads: int) -> None:
        if threads == self.threads:
            return
        import torch
        from threadpoolctl import ThreadpoolController

        from leakcore import kernels

        torch.set_num_threads(threads)
        kernels.set_num_threads(threads)
        ThreadpoolController().limit(limits=threads, user_api="blas")
        self.threads = threads

    def _timed(self, run: Callable[[], Any], number: int) -> float:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            run()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin


def give_memory_back() -> None:
    """Freed arrays go back to the system at once: kept by the C library, they would hide what the next call takes."""
    with contextlib.suppress(AttributeError, OSError):  # no such knob elsewhere than in glibc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")


def main() -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    warnings.simplefilter("ignore")
    worker = Worker(device=sys.argv[1], quick=sys.argv[2] == "quick")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
