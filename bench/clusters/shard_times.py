"""How long one shard takes: in this process, on a worker of a cluster, and on every worker at once, in turns.

A machine's speed drifts by more than a cluster costs, so that only what ran in turns can be compared.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

TURNS = 100


class _Enough(Exception):
    """The first shard is known."""


class _First(Executor):
    """Keeps the first task that it gets, and does none."""

    task: Callable[[], Any]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.task = functools.partial(fn, *args, **kwargs)
        raise _Enough


def first_shard(job: Callable[[Any], object]) -> Callable[[], Any]:
    """The first shard that a job, a function of an executor, hands out."""
    taken = _First()
    with contextlib.suppress(_Enough):
        job(taken)
    return taken.task


def in_turns(shard: Callable[[], Any], client: Any, turns: int = TURNS) -> dict[str, list[float]]:
    """Seconds of a shard "here", on "one" of the client's workers, and on "all" at once, where the mean counts."""
    workers = sorted(client.scheduler_info()["workers"])

    def on(some: list[str]) -> float:
        futures = [client.submit(_seconds, shard, workers=[worker], pure=False) for worker in some]
        return statistics.mean(client.gather(futures))

    for _ in range(2):
        on(workers)  # imports, and what is made once for each process
        _seconds(shard)
    places: dict[str, Callable[[], float]] = {
        "here": lambda: _seconds(shard), "one": lambda: on(workers[:1]), "all": lambda: on(workers),
    }  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in places}
    for turn in range(turns):
        order = list(places) if turn % 2 else list(places)[::-1]
        for name in order:
            taken[name].append(places[name]())
    return taken


def ratio(taken: dict[str, list[float]], place: str) -> tuple[float, float, float]:
    """How many times as long as here: the geometric mean over turns and its interval of 95%."""
    logs = [math.log(there / here) for there, here in zip(taken[place], taken["here"], strict=True)]
    mean, error = statistics.mean(logs), 1.96 * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - error), math.exp(mean + error)


def _seconds(shard: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    shard()
    return time.perf_counter() - begin
