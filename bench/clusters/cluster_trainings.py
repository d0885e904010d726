"""Trainings shared out over a Dask cluster, one worker killed: `python -m bench.clusters.cluster_trainings`.

10,000 DP-SGD trainings of a small network: in this process, on one worker of a `LocalCluster` of separate processes, on
two, and on two again, where one gets SIGKILL when half of the trainings have arrived. All have the same bits.
`--out JSON` keeps the result; `--show JSON --page PAGE` writes what it says between the marks of a page.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

from bench import environment, kept_page

# One thread per worker: what is compared is workers.
os.environ.update(environment.VARIABLES, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", LEAKCORE_NUM_THREADS="1")
environment.python_path_first()

import numpy as np  # noqa: E402

from leakcore import datasets, dpsgd, kernels  # noqa: E402

MARKS = ("<!-- cluster-trainings -->", "<!-- /cluster-trainings -->")
NETWORK, STEPS, RATE = (30, 16, 1), 100, 0.1


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


def train(trainings: int, executor: Any = None, progress: Callable[[int, int], object] | None = None) -> np.ndarray:
    """The final parameters of every training."""
    data = datasets.breast_cancer()
    ensemble = dpsgd.Ensemble(
        NETWORK, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=STEPS, sample_rate=RATE, seed=0
    )
    execution = dpsgd.Execution(num_threads=1, executor=executor, progress=progress)
    with kernels.thread_limit(1):
        return np.asarray(ensemble.run(data.features, data.labels, runs=trainings, execution=execution).parameters)


class Outcome(NamedTuple):
    """The final parameters, wall seconds, processor seconds of the workers, and how often each shard was started."""

    parameters: np.ndarray
    seconds: float
    processor_seconds: float
    starts: Counter[int]


def on_cluster(trainings: int, workers: int, *, kill: bool = False) -> Outcome:
    """Train on a cluster. kill: stop one worker by SIGKILL when half of the trainings are done."""
    import distributed  # type: ignore[import-untyped, unused-ignore]

    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        train(64 * workers, client.get_executor())  # workers import leakcore
        alive = list(client.run(os.getpid).values()) if kill else []

        def half(done: int, total: int) -> None:
            if alive and 2 * done >= total:
                os.kill(alive.pop(), signal.SIGKILL)

        executor = Counted(client.get_executor(), folder)
        begin = time.perf_counter()
        parameters = train(trainings, executor, half)
        seconds = time.perf_counter() - begin
        return Outcome(parameters, seconds, executor.processor_seconds(), executor.starts())


def alone(trainings: int) -> Outcome:
    """Trained in this process."""
    train(64)
    begin, processor = time.perf_counter(), time.process_time()
    parameters = train(trainings)
    return Outcome(parameters, time.perf_counter() - begin, time.process_time() - processor, Counter())


def measure(trainings: int, workers: int) -> dict[str, Any]:
    """Everything that the page says."""
    outcomes = {
        "one process, no cluster": (1, alone(trainings)),
        "Dask, 1 worker": (1, on_cluster(trainings, 1)),
        f"Dask, {workers} workers": (workers, on_cluster(trainings, workers)),
        f"Dask, {workers} workers, one killed at half": (workers, on_cluster(trainings, workers, kill=True)),
    }
    first, *_, killed = (outcome for _, outcome in outcomes.values())
    rows = [
        {"where": name, "workers": count, "seconds": one.seconds, "processor_seconds": one.processor_seconds}
        for name, (count, one) in outcomes.items()
    ]
    return {
        "schema": "leakcore.cluster-trainings/1", "machine": environment.facts(), "trainings": trainings,
        "network": list(NETWORK), "steps": STEPS, "rows": rows,
        "equal": all(bool((one.parameters == first.parameters).all()) for _, one in outcomes.values()),
        "shards": len(killed.starts), "recomputed": sum(killed.starts.values()) - len(killed.starts),
    }  # fmt: skip


def text(result: dict[str, Any]) -> str:
    """The table, and what the killed worker cost, as the docs show them."""
    count, rows = result["trainings"], result["rows"]
    lines = [
        "| where | seconds | per second and worker | per second of processor time | of one process |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        rate, wall = count / row["processor_seconds"], count / row["seconds"] / row["workers"]
        share = rows[0]["processor_seconds"] / row["processor_seconds"]
        lines.append(f"| {row['where']} | {row['seconds']:.1f} | {wall:.0f} | {rate:.0f} | {share:.0%} |")
    layers = "-".join(str(width) for width in result["network"])
    same = "All four have the same bits" if result["equal"] else "The bits differ"
    machine = result["machine"]
    lines += ["", " ".join((
        f"{count:,} trainings of a {layers} network, {result['steps']} steps each, in {result['shards']} shards;",
        f"one thread per worker. {same}. The killed worker took {result['recomputed']} shards with it, which were",
        f"trained again. The {machine['processors']} processors also ran the scheduler and other work (load",
        f"{machine['load']:.0f}), so that seconds say little; processor time is what the workers themselves took.",
    ))]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.clusters.cluster_trainings", description=__doc__)
    parser.add_argument("--trainings", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    kept_page.main(parser, lambda options: measure(options.trainings, options.workers), text, MARKS)


if __name__ == "__main__":
    main()
