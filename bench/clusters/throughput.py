"""Jobs shared out over a Dask cluster, one worker killed in the middle: `python -m bench.clusters.throughput`.

Certified counting, trainings and the audit of a claim: in this process, on one worker of a `LocalCluster` of separate
processes, on two, and on two again, where one gets SIGKILL at half of the time. All have the same bits. How long one
shard takes here and there is measured in turns. Dask is set as docs/how-to/clusters.md advises. `--out JSON` keeps the
result;
`--show JSON --page PAGE` writes what it says between the marks of a page.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

from bench import environment, kept_page
from bench.clusters import shard_times

# One thread per worker: what is compared is workers.
os.environ.update(environment.VARIABLES, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", LEAKCORE_NUM_THREADS="1")
environment.python_path_first()

import numpy as np  # noqa: E402

from leakcore import audit, bounds, datasets, dpsgd, kernels  # noqa: E402

MARKS = ("<!-- cluster-throughput -->", "<!-- /cluster-throughput -->")
NETWORK, STEPS, RATE = (30, 16, 1), 100, 0.1
SIZES = {"samples": 1_500_000_000, "trainings": 32_000, "models": 80_000}
_FEW = {"samples": 4_000_000, "trainings": 1024, "models": 1024}
_MOST_SHARDS, _SHARD_SECONDS = 8192, 5.0
"""Of a bound that is counted; of a shard of many trainings."""
_AIM = 0.97
"""Throughput of a worker, of one process alone."""
PLANNED = {"samples": 10**12, "trainings": 10**6, "models": 10**6}
TITLES = {
    "samples": "certified counting, samples of 10 steps",
    "trainings": "DP-SGD trainings of a 30-16-1 network, 100 steps",
    "models": "audit of a claim, models of 20 steps",
}


class Counted(Executor):
    """An executor that notes each start of a task, also on a worker that dies, and how long each took that ended.

    Args:
        executor: whose workers do the work.
        folder: that all workers can write to.
    """

    def __init__(self, executor: Any, folder: str) -> None:
        self._executor, self._folder, self._number = executor, folder, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._number += 1
        future: Future[Any] = self._executor.submit(
            _noted, self._folder, self._number, functools.partial(fn, *args, **kwargs)
        )
        return future

    def starts(self) -> Counter[int]:
        """How often each task was started."""
        return Counter(int(line) for line in (Path(self._folder) / "started").read_text().split())

    def seconds(self) -> float:
        """Of all tasks that ended, together."""
        return sum(float(line) for line in (Path(self._folder) / "ended").read_text().split())


def _noted(folder: str, number: int, work: Callable[[], Any]) -> Any:
    _append(f"{folder}/started", str(number))
    begin = time.perf_counter()
    answer = work()
    _append(f"{folder}/ended", repr(time.perf_counter() - begin))
    return answer


def _append(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")  # one short append is atomic


def count(samples: int, executor: Any = None) -> np.ndarray:
    """Certified limits of B_κ at ten steps."""
    bound = bounds.reconstruction(
        1.1, 0.1, 10, kappa=[0.01, 0.1], method="certified", num_samples=samples, seed=3, executor=executor
    )
    return np.concatenate([np.ravel(bound.interval), np.ravel(bound.value)])


def train(trainings: int, executor: Any = None) -> np.ndarray:
    """The final parameters of every training."""
    data = datasets.breast_cancer()
    ensemble = dpsgd.Ensemble(
        NETWORK, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=STEPS, sample_rate=RATE, seed=0
    )
    execution = dpsgd.Execution(num_threads=1, executor=executor)
    return np.asarray(ensemble.run(data.features, data.labels, runs=trainings, execution=execution).parameters)


def claim(models: int, executor: Any = None) -> np.ndarray:
    """All scores of the audited models."""
    config = {
        "data": {"num_rows": 200}, "claim": {"epsilon": 4.0}, "mechanism": {"learning_rate": 0.5, "steps": 20},
        "audit": {"trials": models // 2, "k": [1]},
    }  # fmt: skip
    report = audit.claim(config, executor=executor, num_threads=1)
    return np.concatenate([np.ravel(scores) for pair in report.scores.values() for scores in pair[:2]])


WORKERS = {
    "distributed.worker.profile.enabled": False,
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**28,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25,
}
"""What docs/how-to/clusters.md advises: no sampling of stacks, and an allocator that keeps what a task gives back."""
JOBS: dict[str, Callable[..., np.ndarray]] = {"samples": count, "trainings": train, "models": claim}


class Outcome(NamedTuple):
    """What a call returned, how long it took, how long all its shards took together, and the starts of each shard."""

    answer: np.ndarray
    seconds: float
    shard_seconds: float
    starts: Counter[int]


@contextlib.contextmanager
def cluster_of(workers: int) -> Iterator[Any]:
    """A client of a new cluster of separate processes."""
    import dask
    import distributed  # type: ignore[import-untyped, unused-ignore]

    dask.config.set(WORKERS)
    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


def on_cluster(job: str, size: int, workers: int, *, kill_after: float = 0.0) -> Outcome:
    """Do the job on a cluster. kill_after: seconds after which one worker gets SIGKILL; 0: none does."""
    with tempfile.TemporaryDirectory() as folder, cluster_of(workers) as client:
        JOBS[job](_FEW[job], client.get_executor())  # workers import leakcore
        if kill_after:
            killed = next(iter(client.run(os.getpid).values()))
            threading.Timer(kill_after, os.kill, (killed, signal.SIGKILL)).start()
        executor = Counted(client.get_executor(), folder)
        begin = time.perf_counter()
        answer = JOBS[job](size, executor)
        seconds = time.perf_counter() - begin
        return Outcome(answer, seconds, executor.seconds(), executor.starts())


def per_task() -> float:
    """Seconds that an empty task takes, the scheduler's part included."""
    with cluster_of(1) as client:
        executor = client.get_executor()
        list(executor.map(int, range(50)))
        begin = time.perf_counter()
        list(executor.map(int, range(50, 550)))
        return (time.perf_counter() - begin) / 500


def alone(job: str, size: int) -> Outcome:
    """Done in this process."""
    JOBS[job](_FEW[job])
    with kernels.thread_limit(1):
        begin = time.perf_counter()
        answer = JOBS[job](size)
        return Outcome(answer, time.perf_counter() - begin, 0.0, Counter())


def measure(sizes: dict[str, int], workers: int) -> kept_page.Result:
    """Everything that the page says."""
    machine = environment.facts()
    return {
        "schema": "leakcore.cluster-throughput/2", "machine": machine, "workers": workers, "per_task": per_task(),
        "jobs": {job: _measured(job, size, workers) for job, size in sizes.items()},
    }  # fmt: skip


def _measured(job: str, size: int, workers: int) -> dict[str, Any]:
    here, one_worker, several = alone(job, size), on_cluster(job, size, 1), on_cluster(job, size, workers)
    killed = on_cluster(job, size, workers, kill_after=several.seconds / 2)
    places = {
        "one process, no cluster": (0, here),
        "Dask, 1 worker": (1, one_worker),
        f"Dask, {workers} workers": (workers, several),
        f"Dask, {workers} workers, one killed at half": (0, killed),
    }
    rows = [
        {
            "where": name, "workers": count, "seconds": one.seconds, "shards": len(one.starts),
            "on_shards": one.shard_seconds / count / one.seconds if count else None,
        }
        for name, (count, one) in places.items()
    ]  # fmt: skip
    with cluster_of(workers) as client, kernels.thread_limit(1):
        shard = shard_times.first_shard(functools.partial(JOBS[job], size))
        turns = shard_times.in_turns(shard, client)
    return {
        "size": size, "rows": rows, "turns": turns,
        "equal": all(bool((one.answer == here.answer).all()) for _, one in places.values()),
        "recomputed": sum(killed.starts.values()) - len(killed.starts),
    }  # fmt: skip


def text(result: kept_page.Result) -> str:
    """The tables, what the killed worker cost, and the plan, as the docs show them."""
    lines = ["| job | where | seconds | share of a worker's time on shards | shards |", "|---|---|---|---|---|"]
    for job, one in result["jobs"].items():
        title = f"{TITLES[job]}: {one['size']:,}"
        for row in one["rows"]:
            share = "" if row["on_shards"] is None else f"{row['on_shards']:.1%}"
            cells = [title, row["where"], f"{row['seconds']:.1f}", share, str(row["shards"] or "")]
            lines.append(f"| {' | '.join(cells)} |")
            title = ""
    return "\n".join([*lines, "", _said(result), "", *_turns(result), "", *_plan(result)])


def _said(result: kept_page.Result) -> str:
    machine, jobs = result["machine"], result["jobs"].values()
    shares = [row["on_shards"] for one in jobs for row in one["rows"] if row["on_shards"] is not None]
    within = sum(share >= _AIM for share in shares)
    bits = "The bits are the same everywhere" if all(one["equal"] for one in jobs) else "The bits differ"
    lost = ", ".join(f"{one['recomputed']} of {one['rows'][-1]['shards']}" for one in jobs)
    return " ".join((
        f"{bits}. The killed worker took {lost} shards with it, and these alone were done again. The time that a",
        "worker does not spend on shards goes to making them, handing them out, sending, and waiting for the last of",
        f"another worker. A worker is at work for at least {_AIM:.0%} of the time in {within} of {len(shares)} cases.",
        f"{machine['processors']} processors of {machine['cpu']} did all of it, the scheduler and the client included",
        f"(load {machine['load']:.1f} at the start). An empty task takes {1e3 * result['per_task']:.1f} ms.",
    ))  # fmt: skip


def _turns(result: kept_page.Result) -> list[str]:
    """How long a shard takes here and there."""
    lines = [f"| one shard of | here | on one worker | on {result['workers']} workers at once |", "|---|---|---|---|"]
    slower, spreads = 0, []
    for job, one in result["jobs"].items():
        times = {place: shard_times.ratio(one["turns"], place) for place in ("one", "all")}
        here = sorted(one["turns"]["here"])
        spreads.append(here[len(here) * 9 // 10] / here[len(here) // 10])
        slower += times["one"][1] > 1 / _AIM
        cells = [f"{value:.2f} × ({low:.2f} to {high:.2f})" for value, low, high in times.values()]
        lines.append(f"| {TITLES[job]} | {1e3 * statistics.median(here):.0f} ms | {' | '.join(cells)} |")
    turns = len(next(iter(result["jobs"].values()))["turns"]["here"])
    said = (
        f"Means of {turns} turns and their intervals of 95%. Alone on a worker a shard is slower than here by more "
        f"than {1 - _AIM:.0%}, beyond the interval, in {slower} of {len(result['jobs'])} jobs. The last column shows "
        "what it costs that all processors are at work. The machine's speed drifts: the 90th percentile of a shard's "
        f"time is up to {max(spreads):.1f} times the 10th, so seconds of different rows above compare only roughly."
    )
    return [*lines, "", said]


def _plan(result: kept_page.Result) -> list[str]:
    lines = ["| planned | core hours | 8 workers | 1,000 workers |", "|---|---|---|---|"]
    for job, one in result["jobs"].items():
        # What the clock showed of one worker, its shards' start and way back included.
        hours = one["rows"][1]["seconds"] / one["size"] * PLANNED[job] / 3600
        shard = hours / _MOST_SHARDS if job == "samples" else min(hours, _SHARD_SECONDS / 3600)
        eight, thousand = (max(hours / workers, shard) for workers in (8, 1000))
        cells = [f"{PLANNED[job]:.0e} {job}", f"{hours:,.1f}", f"{eight:,.2f} h", f"{60 * thousand:,.2f} min"]
        lines.append(f"| {' | '.join(cells)} |")
    said = (
        "Extrapolated from the shards of one worker; no job is planned to take less time than one shard. No cluster of "
        f"more than {result['workers']} workers was measured; where the scheduler is the limit, see below."
    )
    return [*lines, "", said]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.clusters.throughput", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes: a smaller number is a try")
    parser.add_argument("--workers", type=int, default=2)

    def run(options: argparse.Namespace) -> kept_page.Result:
        return measure({job: int(size * options.share) for job, size in SIZES.items()}, options.workers)

    kept_page.main(parser, run, text, MARKS)


if __name__ == "__main__":
    main()
