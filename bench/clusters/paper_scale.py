"""What `leakcore reproduce reconstruction-fig2 --scale paper` takes: `python -m bench.clusters.paper_scale --out JSON`.

A few steps of each part run here, on one thread. Their processor time and their counted operations are extrapolated to
the whole figure: to this processor, and to a GPU that is given by its stated speed. `--show JSON --page PAGE` writes
the table between the marks of a page. Images are random, since neither time nor operations depend on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from bench import environment, kept_page
from leakcore import attacks, dpsgd, models
from leakcore.experiments.reconstruction import best_rate

MARKS = ("<!-- paper-scale -->", "<!-- /paper-scale -->")
CLASSES, FEATURES, PUBLIC, IMAGES, EPOCHS = 10, 640, 50_000, 60_000, 40
EPSILONS, TARGETS, RESTARTS, ITERATIONS, RUNS, ROWS, STEPS = 3, 1000, 5, 1000, 10_000, 500, 100
SWEPT = len(best_rate.RATES) * best_rate.AT_PAPER_SCALE[0] + best_rate.FINALISTS * best_rate.AT_PAPER_SCALE[1]
GAMES = EPSILONS * (2 * RUNS + SWEPT)
"""At the fixed learning rate, at the chosen one, and those that choose."""
GPU = {"name": "H100 SXM", "float32": 67e12, "tensorfloat32": 494e12, "shares": (0.1, 0.5)}
"""Operations a second, as the maker states them for dense matrices; and the least and largest share of them that we
suppose a network of convolutions to reach."""


def measured(part: Callable[[], object]) -> tuple[float, float]:
    """Processor seconds of the second of two calls, and operations of the first as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        part()
    start = time.process_time()
    part()
    return time.process_time() - start, float(counter.get_total_flops())


def parts() -> list[dict[str, Any]]:
    """Each part of the figure: how often its measured piece is repeated, seconds and operations of one piece."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = models.wrn_28_10(None)
    head = torch.nn.Linear(FEATURES, 100)
    images, labels = torch.rand(4, 3, 32, 32), torch.arange(4)

    def train() -> None:
        functional.cross_entropy(head(network(images)), labels).backward()

    def read() -> None:
        with torch.no_grad():
            network(images)

    point = torch.rand(1, 3, 32, 32, requires_grad=True)

    def invert() -> None:
        network(point).square().sum().backward()

    steps = [
        ("train the feature extractor", PUBLIC * EPOCHS / len(images), measured(train)),
        ("compute the features", (IMAGES + PUBLIC) / len(images), measured(read)),
    ]
    network.requires_grad_(False)
    steps.append(
        ("gradient attack: steps through the network", EPSILONS * TARGETS * RESTARTS * ITERATIONS, measured(invert))
    )
    rows = [{"part": n, "times": float(t), "seconds": s, "operations": f} for n, t, (s, f) in steps]
    return [*rows, {"part": "games of the prior-aware attack", "times": float(GAMES), **games()}]


def games(runs: int = 8) -> dict[str, Any]:
    """One game of the prior-aware attack: seconds here; its kernel has no counter."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS + 2000, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, len(x))
    model = dpsgd.Ensemble(
        dpsgd.Network((FEATURES, CLASSES)), noise_multiplier=5.0, max_grad_norm=1.0, learning_rate=1.0, steps=STEPS,
        sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=float(ROWS)), seed=0,
    )  # fmt: skip
    known, pool = dpsgd.Rows(x[: ROWS - 1], y[: ROWS - 1]), dpsgd.Rows(x[ROWS:], y[ROWS:])

    def play() -> None:
        attacks.reconstruction_games(
            model, known, pool, attacks.GameRules(10), methods=("sum",), runs=range(runs),
            execution=dpsgd.Execution(num_threads=1),
        )  # fmt: skip

    play()
    start = time.process_time()
    play()
    return {"seconds": (time.process_time() - start) / runs, "operations": 0.0}


def text(result: kept_page.Result) -> str:
    """The table, and what the sums say."""
    gpu = result["gpu"]
    low, high = gpu["shares"]
    lines = [f"| part of the figure | this processor, one core | an {gpu['name']}, extrapolated |", "|---|---|---|"]
    slowest = fastest = core = 0.0
    for row in result["parts"]:
        here, operations = row["seconds"] * row["times"], row["operations"] * row["times"]
        core += here
        there = "on the processor"
        if operations:
            ends = operations / (gpu["tensorfloat32"] * high), operations / (gpu["float32"] * low)
            fastest, slowest = fastest + ends[0], slowest + ends[1]
            there = f"{duration(ends[0])} to {duration(ends[1])}"
        lines.append(f"| {row['part']} | {duration(here)} | {there} |")
    games = duration(result["parts"][-1]["seconds"] * result["parts"][-1]["times"])
    whole = (
        f"Whole: {duration(core)} of one core of {result['machine']['cpu']}; or {duration(fastest)} to "
        f"{duration(slowest)} of an {gpu['name']} and {games} of one core for the games. No GPU was at hand. We count "
        f"the operations of a step, and suppose {low:.0%} of {gpu['float32'] / 1e12:.0f} (float32) to {high:.0%} of "
        f"{gpu['tensorfloat32'] / 1e12:.0f} (TensorFloat-32) TFLOP/s."
    )
    return "\n".join([*lines, "", whole])


def duration(seconds: float) -> str:
    """Two digits, in the unit that a reader would take."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):,g} {unit}"
    return f"{seconds:.2g} s"


def main() -> None:
    def run(_: argparse.Namespace) -> kept_page.Result:
        return {"schema": "leakcore.paper-scale/1", "machine": environment.facts(), "gpu": GPU, "parts": parts()}

    kept_page.main(argparse.ArgumentParser(description=__doc__), run, text, MARKS)


if __name__ == "__main__":
    main()
