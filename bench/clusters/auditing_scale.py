"""What the paper's scale of auditing Figure 2 and Table 2 takes: `python -m bench.clusters.auditing_scale --out JSON`.

The first epochs of one block of trainings of each kind run here on one thread, at the paper's numbers of rows, inputs
and classes. Their processor time is extrapolated to all trainings of the figure and of the table, and to workers of a
cluster with the efficiency that `bench.clusters.throughput` measured. Rows are random: no time depends on them.
`--show JSON --page PAGE` writes the tables between the marks of a page.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import environment, kept_page
from bench.clusters.paper_scale import duration
from leakcore import dpsgd, kernels
from leakcore.experiments import auditing

MARKS = ("<!-- auditing-scale -->", "<!-- /auditing-scale -->")
CLUSTER = Path(__file__).resolve().parent.parent / "results" / "cluster-throughput.json"
BLOCK, EPSILON, WORKERS = 32, 4.0, (2, 16, 100, 1000)
"""One block of the batched trainer; ε_th of the trainings with noise, whose time does not depend on it."""
MEASURED = 2
"""Epochs that are trained here, of the paper's 24."""
QUICK, KS, TRIALS = 1000, 4, 500
FIGURE, TABLE = (6, 2), (6, 4, 3)
"""Values of ε_th and starts; values of ε_th, starts and clipping norms."""
SETS = {
    "FMNIST": {"rows": 6000, "inputs": 784, "classes": 2, "attacks": 2},
    "CIFAR-10": {"rows": 10_000, "inputs": 640, "classes": 2, "attacks": 2},
    "Purchase-100": {"rows": 10_000, "inputs": 600, "classes": 100, "attacks": 1},
}
NETS: dict[str, tuple[int, ...]] = {"LR": (), "FNN-32": (32,)}


def seconds(rows: int, inputs: int, classes: int, hidden: tuple[int, ...], epsilon: float) -> float:
    """Processor seconds of one training, from the first epochs of a block of them."""
    rng = np.random.default_rng(0)
    features = rng.random((rows, inputs), dtype=np.float32)
    data = auditing.AuditingRows("", features, rng.integers(0, classes, rows), features[:1], np.zeros(1), classes, "")
    batches = auditing.batches(data)
    mechanism = auditing.AuditedTraining(hidden, auditing.noise_for(epsilon, batches), batches)
    whole, how = mechanism.ensemble(data, 0), dpsgd.Execution(num_threads=1)
    model = whole.replace(steps=whole.steps * MEASURED // auditing.EPOCHS)
    start = time.process_time()
    model.run(features, data.labels, runs=BLOCK, keep_parameters=False, execution=how)
    return (time.process_time() - start) / BLOCK * whole.steps / model.steps


def trainings(name: str) -> int:
    """Of one network of figure 2: clean ones for each attack, and each number of poisoned rows; twice the trials."""
    epsilons, starts = FIGURE
    attacks: int = SETS[name]["attacks"]
    return epsilons * starts * attacks * (1 + KS) * 2 * TRIALS


def measure(options: argparse.Namespace) -> kept_page.Result:
    """Every kind of training; the threads of libraries are limited to one."""
    del options
    rows = []
    with kernels.thread_limit(1):
        for (name, sizes), (net, hidden) in ((one, two) for one in SETS.items() for two in NETS.items()):
            shape = (sizes["inputs"], sizes["classes"], hidden)
            count = sizes["rows"]
            rows.append({
                "data": name, "net": net, "trainings": trainings(name), "rows": count,
                "noisy": seconds(count, *shape, EPSILON), "quiet": seconds(count, *shape, math.inf),
                "quick": seconds(QUICK, *shape, EPSILON),
            })  # fmt: skip
    return {"schema": "leakcore.auditing-scale/1", "machine": environment.facts(), "rows": rows}


def efficiency() -> tuple[int, float]:
    """Workers of the largest cluster that was measured, and the share of their time that was training."""
    runs: list[dict[str, Any]] = json.loads(CLUSTER.read_text(encoding="utf-8"))["jobs"]["trainings"]["rows"]
    largest = max(runs, key=lambda row: row["workers"])
    return largest["workers"], largest["on_shards"]


def core_seconds(row: dict[str, Any]) -> float:
    """All trainings of a row of figure 2: one ε_th in six is ∞, without noise."""
    loud = (FIGURE[0] - 1) / FIGURE[0]
    return float(row["trainings"] * (loud * row["noisy"] + (1 - loud) * row["quiet"]))


def text(result: kept_page.Result) -> str:
    """The cost of one training, and of all of them on several numbers of workers."""
    head = ["data, network", "rows", "with noise", "without", f"with noise, {QUICK:,} rows"]
    lines = ["1,000 trainings on one core:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in result["rows"]:
        each = [duration(1000 * row[kind]) for kind in ("noisy", "quiet", "quick")]
        lines.append(f"| {row['data']}, {row['net']} | {row['rows']:,} | {' | '.join(each)} |")
    table = float(np.prod(TABLE)) * (1 + KS) * 2 * TRIALS
    network = next(row for row in result["rows"] if (row["data"], row["net"]) == ("FMNIST", "FNN-32"))
    measured, share = efficiency()
    head = ["", "trainings", "one core", *(f"{n:,} workers" for n in WORKERS)]
    lines += ["", "All of them:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    figure = sum(core_seconds(row) for row in result["rows"])
    count = sum(row["trainings"] for row in result["rows"])
    of_table = core_seconds(network) / network["trainings"] * table
    for name, runs, one in (("Figure 2", count, figure), ("Table 2", table, of_table)):
        shared = [duration(one / n / share) for n in WORKERS]
        lines.append(f"| {name} | {runs:,.0f} | {duration(one)} | {' | '.join(shared)} |")
    machine = result["machine"]
    said = (
        f"Measured: processor time of {MEASURED} of {auditing.EPOCHS} epochs of {BLOCK} trainings of each kind on one "
        f"core of {machine['cpu']} (load {machine['load']:.0f}); the rest is extrapolated. {TRIALS} models choose the "
        f"threshold and {TRIALS} are counted, on the clean rows and for each of {KS} numbers of poisoned rows. Figure "
        f"2 has {FIGURE[0]} ε_th and {FIGURE[1]} starts; Table 2 is of the two-layer network on FMNIST. A step takes "
        f"250 rows on average, and 1/24 of {QUICK:,}. Workers have one core each and lose {1 - share:.0%}, as "
        f"{measured} did in [another measurement](../how-to/clusters.md#how-well-it-scales); no larger cluster was "
        "measured."
    )
    return "\n".join([*lines, "", said])


if __name__ == "__main__":
    kept_page.main(argparse.ArgumentParser(description=__doc__), measure, text, MARKS)
