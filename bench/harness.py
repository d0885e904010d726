"""Runs cases: worker processes, rounds that take every contender in turn, medians with their spread.

Machines drift (turbo, neighbours), so a ratio is the median over rounds of two times of the same round, and the spread
says how far to trust it.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from typing import Any

from bench import environment
from bench.case import Case, Contender, Rates


class Process:
    """A worker, and the requests it answers."""

    def __init__(self, device: str, quick: bool, home: str = "") -> None:
        command = [sys.executable, "-m", "bench.worker", device, "quick" if quick else "full"]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment.of_process(home)
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker process ended while it did {do} {arguments}; its message is above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{do} {arguments}: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)


class Bench:
    """The workers of one run, one per instruction tier and one for threaded peers, started when a case needs them."""

    def __init__(self, device: str = "cpu", quick: bool = False) -> None:
        self.device = device
        self.quick = quick
        self._processes: dict[str, Process] = {}
        self._rates: dict[tuple[str, int], Rates] = {}
        self.readers: dict[str, str] = {}
        self.facts = self.process("").ask("facts")

    def process(self, home: str) -> Process:
        if home not in self._processes:
            self._processes[home] = Process(self.device, self.quick, home)
        return self._processes[home]

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def rates(self, tier: str, threads: int) -> Rates:
        """The rates of a tier's loops, with the bandwidth of the widest tier."""
        if (tier, threads) not in self._rates:
            answer = self.process(tier).ask("rates", threads=threads, streaming=not tier)
            if tier:
                self._rates[tier, threads] = {**self.rates("", threads), **answer["rates"]}
            else:
                self._rates["", threads] = answer["rates"]
                self.readers[str(threads)] = answer["reader"]
        return self._rates[tier, threads]

    def limits(self) -> dict[str, Any]:
        """All rates measured so far, for the report."""
        rates = {f"{tier or self.facts['leakcore']['simd']}, {n} threads": r for (tier, n), r in self._rates.items()}
        return {"per_second": rates, "reader": self.readers}

    def run(self, case: Case) -> dict[str, Any]:
        """Times of every contender that this machine can run, as the report and the JSON hold them."""
        tiers = self.facts["leakcore"]["simd_available"]
        usable = [
            c for c in case.contenders if c.threads <= environment.processors() and (not c.tier or c.tier in tiers)
        ]
        absent: dict[str, str] = {}
        for home in dict.fromkeys(c.home for c in usable):
            names = [c.name for c in usable if c.home == home]
            absent |= self.process(home).ask("build", case=case.key, contenders=names)["absent"]
        present = [c for c in usable if c.name not in absent]
        taken = self._rounds(case, present)
        rows = {}
        for contender in usable:
            if contender.name in absent:
                rows[contender.name] = {"absent": absent[contender.name], "threads": contender.threads}
            else:
                rows[contender.name] = self._row(case, contender, taken)
        result = {
            "kernel": case.kernel,
            "size": case.size,
            "unit": case.unit,
            "limit": case.limit,
            "contenders": rows,
            "extra": self._extra(case) if case.extra else [],
        }
        for home in dict.fromkeys(c.home for c in usable):
            self.process(home).ask("forget")
        if case.memory and not self.quick and self.device == "cpu":
            for contender in (c for c in present if c.threads == 1):
                rows[contender.name]["peak_bytes"] = self._memory(case, contender)
        return result

    def _rounds(self, case: Case, present: list[Contender]) -> dict[str, list[float]]:
        """Every contender once per round, in another order in each, so that none always finds what the same one left
        behind, until the case's time is used up.
        """
        most, least = (3, 2) if self.quick else (15, 3)
        allowed = case.seconds / 5 if self.quick else case.seconds
        taken: dict[str, list[float]] = {c.name: [] for c in present}
        start = time.perf_counter()
        for r in range(most):
            if r >= least and time.perf_counter() - start > allowed:
                break
            for contender in random.Random(r).sample(present, len(present)):
                taken[contender.name].append(
                    self.process(contender.home).ask("time", contender=contender.name)["seconds"]
                )
                if contender.home == environment.SPINNING:
                    time.sleep(environment.SPIN_SECONDS)
        return taken

    def _row(self, case: Case, contender: Contender, taken: dict[str, list[float]]) -> dict[str, Any]:
        seconds = taken[contender.name]
        middle = statistics.median(seconds)
        limit, of_limit = self._limit(case, contender, taken)
        reference = contender.against
        return {
            "threads": contender.threads,
            "tier": (contender.tier or self.facts["leakcore"]["simd"]) if contender.ours else "",
            "median": middle,
            "spread": spread(seconds),
            "per_unit": middle / case.work,
            "against": reference,
            "ratio": ratio(seconds, taken[reference]) if reference in taken else None,
            "limit_seconds": limit,
            "of_limit": of_limit,
            "share": contender.share,
            "seconds": seconds,
        }

    def _limit(
        self, case: Case, contender: Contender, taken: dict[str, list[float]]
    ) -> tuple[float | None, float | None]:
        """Seconds that the hardware needs at least, and which part of the time taken they are."""
        seconds = taken[contender.name]
        bare = next((c for c in case.contenders if c.least and c.threads == contender.threads), None)
        if case.least and bare is not None and bare.name in taken:
            if contender is bare:
                return None, None
            floors = [case.least * b for b in taken[bare.name]]
            return statistics.median(floors), ratio(floors, seconds)
        limit = (contender.floor or case.floor)(self.rates(contender.tier, contender.threads))
        return limit, None if limit is None else limit / statistics.median(seconds)

    def _extra(self, case: Case) -> list[list[str]]:
        """In a process of its own: what the peers leave behind in a process is not our accuracy's business."""
        process = Process(self.device, self.quick)
        try:
            table: list[list[str]] = process.ask("extra", case=case.key)["table"]
        finally:
            process.close()
        return table

    def _memory(self, case: Case, contender: Contender) -> int | None:
        process = Process(self.device, self.quick, contender.home)
        try:
            peak = process.ask("memory", case=case.key, contender=contender.name)["bytes"]
        finally:
            process.close()
        return None if peak is None else int(peak)


def spread(seconds: list[float]) -> float:
    """Half the distance between the quartiles, relative to the median."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / 2 / middle


def ratio(theirs: list[float], ours: list[float]) -> float:
    """The median over rounds of their time over ours."""
    return statistics.median(t / o for t, o in zip(theirs, ours, strict=True))
