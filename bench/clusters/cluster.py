"""`python -m bench.clusters.cluster`: one job on 1, 2 and 4 workers of a Dask cluster, and what one does per second.

Prints for each number of workers the time, the speed-up and the efficiency (speed-up over workers; none where workers
share processors, and it would say nothing), whether the answer has the same bits, and what the scheduler takes for a
task; then the model of docs/how-to/clusters.md at these rates. The job takes one worker half a minute: of a job of a
second the start is a large part.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import environment

# One thread per worker: what is compared is workers.
os.environ.update(environment.VARIABLES, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", LEAKCORE_NUM_THREADS="1")
environment.python_path_first()

import numpy as np  # noqa: E402

from leakcore import attacks, bounds, dpsgd, kernels  # noqa: E402

WORKERS = (1, 2, 4)
SAMPLES, STEPS = 10**12, 100
RUNS = 10**6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.clusters.cluster", description=__doc__)
    parser.add_argument("--samples", type=int, default=850_000_000, help="of the job that is shared out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    measured = {"machine": environment.facts(), **rates(), **scaling(options.samples, options.rounds)}
    show(measured)
    if options.out:
        options.out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def job(samples: int, executor: Any = None) -> tuple[float, ...]:
    """Certified limits of B_κ at ten steps: shards of samples to count."""
    result = bounds.reconstruction(
        1.1, 0.1, 10, kappa=[0.01, 0.1], method="certified", num_samples=samples, seed=3, executor=executor
    )
    return (*np.ravel(result.interval), *np.ravel(result.value))


def rates() -> dict[str, float]:
    """Seconds that one worker with one thread takes: per sample·step, and per run with its attack."""
    rng = np.random.default_rng(0)
    x, y = rng.random((1010, 784), dtype=np.float32), rng.integers(0, 10, 1010)
    ensemble = dpsgd.Ensemble(
        (784, 10, 10), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=STEPS, seed=0
    )
    few, runs = 10**6, 16

    def games() -> Any:
        known, pool = dpsgd.Rows(x[:1000], y[:1000]), dpsgd.Rows(x[1000:], y[1000:])
        return attacks.reconstruction_game(ensemble, known, pool, attacks.GameRules(8), method="sum", runs=runs)

    with kernels.thread_limit(1):
        sample = _seconds(lambda: _tail(few)) / (few * STEPS)
        return {"per_sample_step": sample, "per_run": _seconds(games) / runs}


def _tail(samples: int) -> Any:
    return kernels.mixture_tail(samples, [0.0], noise_multiplier=1.1, sample_rate=0.1, steps=STEPS, seed=1)


def scaling(samples: int, rounds: int) -> dict[str, Any]:
    """Medians over rounds that take 1, 2 and 4 workers in turn."""
    import distributed  # type: ignore[import-untyped, unused-ignore]

    alone = job(samples)
    taken: dict[int, list[float]] = {n: [] for n in WORKERS}
    equal, per_task = True, 0.0
    for _ in range(rounds):
        for n in WORKERS:
            cluster = distributed.LocalCluster(
                n_workers=n, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
            )
            with cluster, distributed.Client(cluster, set_as_default=False) as client:
                executor = client.get_executor()
                job(200_000, executor)  # workers import leakcore
                begin = time.perf_counter()
                limits = job(samples, executor)
                taken[n].append(time.perf_counter() - begin)
                equal &= limits == alone
                if n == 1:
                    begin = time.perf_counter()
                    list(executor.map(int, range(500)))
                    per_task = (time.perf_counter() - begin) / 500
    if not equal:
        raise AssertionError("the answer depends on the number of workers")
    return {
        "job_samples": samples, "seconds": {str(n): float(np.median(taken[n])) for n in WORKERS},
        "every_round": {str(n): taken[n] for n in WORKERS}, "equal": equal, "per_task": per_task,
    }  # fmt: skip


def _seconds(call: Callable[[], Any], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def show(measured: dict[str, Any]) -> None:
    """Print what `main` measured; docs/how-to/clusters.md quotes it."""
    first = measured["seconds"]["1"]
    cores = measured["machine"]["processors"]
    print(f"{measured['job_samples']:,} samples of 10 steps, certified; {cores} processors")
    print("workers  seconds  speed-up  efficiency  same bits")
    for n in WORKERS:
        seconds = measured["seconds"][str(n)]
        speed = first / seconds
        efficiency = f"{speed / n:.0%}" if n <= cores else "shared"
        print(f"{n:7}  {seconds:7.2f}  {speed:8.2f}  {efficiency:>10}  {measured['equal']}")
    print(f"a task costs the scheduler {1e3 * measured['per_task']:.2f} ms")
    print(
        f"one worker: {1e9 * measured['per_sample_step']:.2f} ns per sample·step, {measured['per_run']:.4f} s per run"
    )
    print(f"{SAMPLES:.0e} samples of {STEPS} steps; {RUNS:.0e} runs with their attack: hours on 1, 8, 1,000 workers")
    for whole in (SAMPLES * STEPS * measured["per_sample_step"], RUNS * measured["per_run"]):
        print("  " + "  ".join(f"{whole / n / 3600:10.3g}" for n in (1, 8, 1000)))


if __name__ == "__main__":
    main()
