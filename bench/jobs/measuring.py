"""One call of one doer in a process of its own, and the rounds in which all doers take turns."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench import environment
from bench.jobs.job import Job

_MIB = 1024  # of ru_maxrss, in KiB


def call_once(job: Job, doer: str, size: Mapping[str, int]) -> dict[str, Any]:
    """Seconds of the first call in this process, how many processors it kept busy, MiB that it adds to what imports and
    data take, and its answer."""
    one = job.doers[doer]
    call = one.build(size)
    before = _current_kib()
    start, processor = time.perf_counter(), time.process_time()
    answer = call()
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mib = max(0, most - before) / _MIB
    return {"seconds": seconds / one.share, "processors": processor / seconds, "mib": mib, "answer": answer}


def _current_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def in_process(name: str, doer: str, size: Mapping[str, int], threads: int = 1, checkout: str = "") -> dict[str, Any]:
    """`call_once` in a process with this number of threads; {"absent": why} where it cannot be done here.

    checkout: the folder whose leakcore is timed; "": this one's.
    """
    count = str(threads)
    variables = {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "LEAKCORE_NUM_THREADS": count}
    command = [sys.executable, "-m", "bench.jobs", "--one", json.dumps([name, doer, dict(size)])]
    environ = {**os.environ, **variables, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if checkout:
        environ["PYTHONPATH"] = checkout
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"absent": (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measured(name: str, job: Job, rounds: int) -> dict[str, Any]:
    """Every doer once per round; then how leakcore's time grows."""
    taken: dict[str, list[dict[str, Any]]] = {doer: [] for doer in job.doers}
    for _ in range(rounds):
        for doer, before in taken.items():
            if not before or "absent" not in before[0]:
                before.append(in_process(name, doer, job.size))
                _say(name, doer, before[-1])
    return {
        "title": job.title, "size": dict(job.size),
        "doers": {doer: _row(job, doer, calls) for doer, calls in taken.items()},
        "growth": [_growth(name, job, what, values) for what, values in job.growth.items()],
        "cores": _cores(name, job, taken["leakcore"]),
    }  # fmt: skip


def compared(name: str, job: Job, checkout: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of leakcore as it is in that checkout, and as it is here, in turn."""
    taken: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(rounds):
        for when, where in (("before", checkout), ("after", "")):
            answer = in_process(name, "leakcore", job.size, checkout=where)
            _say(name, when, answer)
            taken[when].append(answer["seconds"])
    return taken


def _row(job: Job, doer: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    one = job.doers[doer]
    stated = {"does": one.does, "least": one.least}
    if "absent" in calls[0]:
        return {**stated, "absent": calls[0]["absent"]}
    seconds = [c["seconds"] for c in calls]
    return {
        **stated, "seconds": seconds, "median": statistics.median(seconds),
        "mib": statistics.median(c["mib"] for c in calls), "answer": calls[0]["answer"],
        "processors": statistics.median(c["processors"] for c in calls),
    }  # fmt: skip


def _growth(name: str, job: Job, what: str, values: tuple[int, ...]) -> dict[str, Any]:
    """Seconds at each value, and the exponent b of seconds ∝ valueᵇ by least squares of the logarithms."""
    seconds = []
    for value in values:
        answer = in_process(name, "leakcore", {**job.size, **job.growth_from, what: value})
        _say(name, f"{what} = {value:,}", answer)
        seconds.append(answer["seconds"])
    exponent = float(np.polyfit(np.log(values), np.log(seconds), 1)[0])
    last = float(np.log(seconds[-1] / seconds[-2]) / np.log(values[-1] / values[-2]))
    return {"what": what, "values": list(values), "seconds": seconds, "exponent": exponent, "last": last}


def _cores(name: str, job: Job, one: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times as fast leakcore is on two cores as on one; empty on a machine with one."""
    if environment.processors() < 2:
        return {}
    two = [in_process(name, "leakcore", job.size, threads=2)["seconds"] for _ in one]
    return {"two": two, "speedup": statistics.median(c["seconds"] for c in one) / statistics.median(two)}


def _say(name: str, what: str, answer: Mapping[str, Any]) -> None:
    took = answer.get("absent") or f"{answer['seconds']:.3g} s, {answer['mib']:.0f} MiB"
    print(f"{name}, {what}: {took}", file=sys.stderr, flush=True)
