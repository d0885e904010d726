"""Jobs shared out over a Dask cluster, one worker killed in the middle: `python -m bench.clusters.throughput`.

Certified counting, trainings and the audit of a claim: in this process, on one worker of a `LocalCluster` of separate
processes, on two, and on two again, where one gets SIGKILL at half of the time. All have the same bits. Dask is set as
docs/how-to/clusters.md advises. `--out JSON` keeps the result;
`--show JSON --page PAGE` writes what it says between the marks of a page.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

from bench import environment, kept_page

# One thread per worker: what is compared is workers.
os.environ.update(environment.VARIABLES, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", LEAKCORE_NUM_THREADS="1")
environment.python_path_first()

import numpy as np  # noqa: E402

from leakcore import audit, bounds, datasets, dpsgd, kernels  # noqa: E402

MARKS = ("<!-- cluster-throughput -->", "<!-- /cluster-throughput -->")
NETWORK, STEPS, RATE = (30, 16, 1), 100, 0.1
SIZES = {"samples": 500_000_000, "trainings": 16_000, "models": 20_000}
ROUNDS = 3
_FEW = {"samples": 4_000_000, "trainings": 1024, "models": 1024}
PLANNED = {"samples": 10**12, "trainings": 10**6, "models": 10**6}
TITLES = {
    "samples": "certified counting, samples of 10 steps",
    "trainings": "DP-SGD trainings of a 30-16-1 network, 100 steps",
    "models": "audit of a claim, models of 20 steps",
}


class Counted(Executor):
    """An executor that notes each start of a task, also on a worker that dies, and the processor time of each end.

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

    def processor_seconds(self) -> float:
        """Of all tasks that ended."""
        return sum(float(line) for line in (Path(self._folder) / "ended").read_text().split())


def _noted(folder: str, number: int, work: Callable[[], Any]) -> Any:
    _append(f"{folder}/started", str(number))
    begin = time.process_time()
    answer = work()
    _append(f"{folder}/ended", repr(time.process_time() - begin))
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
    """The answer, wall seconds, processor seconds of the workers, and how often each shard was started."""

    answer: np.ndarray
    seconds: float
    processor_seconds: float
    starts: Counter[int]


def on_cluster(job: str, size: int, workers: int, *, kill_after: float = 0.0) -> Outcome:
    """Do the job on a cluster. kill_after: seconds after which one worker gets SIGKILL; 0: none does."""
    import dask
    import distributed  # type: ignore[import-untyped, unused-ignore]

    dask.config.set(WORKERS)
    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        JOBS[job](_FEW[job], client.get_executor())  # workers import leakcore
        if kill_after:
            killed = next(iter(client.run(os.getpid).values()))
            threading.Timer(kill_after, os.kill, (killed, signal.SIGKILL)).start()
        executor = Counted(client.get_executor(), folder)
        begin = time.perf_counter()
        answer = JOBS[job](size, executor)
        seconds = time.perf_counter() - begin
        return Outcome(answer, seconds, executor.processor_seconds(), executor.starts())


def per_task() -> float:
    """Seconds that an empty task takes, the scheduler's part included."""
    import distributed

    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        executor = client.get_executor()
        list(executor.map(int, range(50)))
        begin = time.perf_counter()
        list(executor.map(int, range(50, 550)))
        return (time.perf_counter() - begin) / 500


def alone(job: str, size: int) -> Outcome:
    """Done in this process."""
    JOBS[job](_FEW[job])
    with kernels.thread_limit(1):
        begin, processor = time.perf_counter(), time.process_time()
        answer = JOBS[job](size)
        return Outcome(answer, time.perf_counter() - begin, time.process_time() - processor, Counter())


def measure(sizes: dict[str, int], workers: int) -> kept_page.Result:
    """Everything that the page says."""
    machine = environment.facts()
    return {
        "schema": "leakcore.cluster-throughput/1", "machine": machine, "workers": workers, "per_task": per_task(),
        "jobs": {job: _measured(job, size, workers) for job, size in sizes.items()},
    }  # fmt: skip


def _measured(job: str, size: int, workers: int) -> dict[str, Any]:
    # A machine's speed drifts: all take turns, and the median of the rounds counts.
    turns = [(alone(job, size), on_cluster(job, size, 1), on_cluster(job, size, workers)) for _ in range(ROUNDS)]
    here, one_worker, several = zip(*turns, strict=True)
    places: dict[str, tuple[int, Sequence[Outcome]]] = {
        "one process, no cluster": (1, here),
        "Dask, 1 worker": (1, one_worker),
        f"Dask, {workers} workers": (workers, several),
    }
    half = statistics.median(one.seconds for one in several) / 2
    killed = on_cluster(job, size, workers, kill_after=half)
    places[f"Dask, {workers} workers, one killed at half"] = workers, [killed]
    rows = [
        {
            "where": name, "workers": count, "seconds": statistics.median(one.seconds for one in outcomes),
            "processor_seconds": statistics.median(one.processor_seconds for one in outcomes),
        }
        for name, (count, outcomes) in places.items()
    ]  # fmt: skip
    everything = [one for _, outcomes in places.values() for one in outcomes]
    return {
        "size": size, "rows": rows, "shards": len(several[0].starts),
        "equal": all(bool((one.answer == everything[0].answer).all()) for one in everything),
        "killed_shards": len(killed.starts), "recomputed": sum(killed.starts.values()) - len(killed.starts),
    }  # fmt: skip


def text(result: kept_page.Result) -> str:
    """The table, what the killed worker cost, and the plan, as the docs show them."""
    lines = [
        "| job | where | seconds | per worker, of one process | by processor time | shards |",
        "|---|---|---|---|---|---|",
    ]
    for job, one in result["jobs"].items():
        title = f"{TITLES[job]}: {one['size']:,}"
        rows, first = one["rows"], one["rows"][0]
        for row in rows:
            wall = first["seconds"] / row["seconds"] / row["workers"]
            processor = first["processor_seconds"] / row["processor_seconds"]
            shards = "" if row is first else str(one["killed_shards" if row is rows[-1] else "shards"])
            cells = [title, row["where"], f"{row['seconds']:.1f}", f"{wall:.1%}", f"{processor:.1%}", shards]
            lines.append(f"| {' | '.join(cells)} |")
            title = ""
    return "\n".join([*lines, "", _said(result), "", *_plan(result)])


def _said(result: kept_page.Result) -> str:
    machine, jobs = result["machine"], result["jobs"].values()
    within = [job for job, one in result["jobs"].items() if _share(one, 1) >= 0.97]
    bits = "The bits are the same everywhere" if all(one["equal"] for one in jobs) else "The bits differ"
    lost = ", ".join(f"{one['recomputed']} of {one['killed_shards']}" for one in jobs)
    return " ".join((
        f"{bits}. The killed worker took {lost} shards with it, and these alone were done again.",
        f"One worker comes within 3% of one process in {len(within)} of {len(result['jobs'])} jobs, by the clock:",
        f"medians of {ROUNDS} rounds in which all took turns.",
        f"{machine['processors']} processors of {machine['cpu']} did all of it, the scheduler and the client included",
        f"(load {machine['load']:.1f} at the start): two workers leave them no processor. An empty task takes",
        f"{1e3 * result['per_task']:.1f} ms.",
    ))  # fmt: skip


def _share(one: dict[str, Any], row: int) -> float:
    """Work per worker and second, of what one process does."""
    at = one["rows"][row]
    return float(one["rows"][0]["seconds"] / at["seconds"] / at["workers"])


def _plan(result: kept_page.Result) -> list[str]:
    lines = ["| planned | core hours | 8 workers | 1,000 workers |", "|---|---|---|---|"]
    for job, one in result["jobs"].items():
        # What the clock showed of one worker, its shards' start and way back included.
        hours = one["rows"][1]["seconds"] / one["size"] * PLANNED[job] / 3600
        cells = [f"{PLANNED[job]:.0e} {job}", f"{hours:,.1f}", f"{hours / 8:,.2f} h", f"{60 * hours / 1000:,.2f} min"]
        lines.append(f"| {' | '.join(cells)} |")
    said = (
        "Extrapolated from the shards of one worker. No cluster of more than "
        f"{result['workers']} workers was measured; where the scheduler is the limit, see below."
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
