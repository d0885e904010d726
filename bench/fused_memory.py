"""Peak memory and time of a DP-SGD step of a transformer: `python -m bench.fused_memory --out JSON`.

Twelve layers of width 384 on texts of 64 words, 21.9 million parameters in float32. Each method and batch has a process
of its own for its peak memory, and another for its time, both on one thread. `--show JSON --page PAGE` writes the
table between the marks of a page; `python docs/hooks/fused_memory.py` draws the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import claims, environment, kept_page, worker

MARKS = ("<!-- fused-memory -->", "<!-- /fused-memory -->")
METHODS = {
    "fused": "leakcore FusedDPOptimizer",
    "ghost": "Opacus ghost",
    "fast": "Opacus fast gradient clipping",
    "flat": "Opacus flat",
    "plain": "no privacy",
}
BATCHES = (1, 4, 16)
LAYERS, WIDTH, HEADS, WORDS, STEPS = 12, 384, 6, 1000, 64
CHECKED = (1, 2, 4)
"""Steps at which `FusedDPOptimizer` compares rows with autograd's; they have a peak of their own, and are not timed."""
TIMED = 3
CLIP, SIGMA = 1.0, 1.0


def network() -> Any:
    """A decoder of layers that every method knows, with a table and an output layer of their own."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            rows, steps, _ = x.shape
            parts = self.query_key_value(self.before(x)).view(rows, steps, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(rows, steps, WIDTH))
            return x + self.down(functional.gelu(self.up(self.between(x))))

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(STEPS, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, words: Any) -> Any:
            places = torch.arange(STEPS).repeat(len(words), 1)
            return self.head(self.last(self.blocks(self.table(words) + self.places(places))))

    torch.manual_seed(0)
    return Language()


def loss_of_rows(logits: Any, words: Any) -> Any:
    """(rows,): each row's mean over its next words."""
    from torch.nn import functional

    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), words[:, 1:], reduction="none").mean(1)


def step(method: str, rows: int) -> tuple[Callable[[], None], int]:
    """One call is forward, backward, step and zero_grad; and the number of parameters."""
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    from leakcore.dpsgd import FusedDPOptimizer

    module = network()
    parameters = sum(p.numel() for p in module.parameters())
    words = torch.randint(0, WORDS, (rows, STEPS), generator=torch.Generator().manual_seed(1))
    plain = torch.optim.SGD(module.parameters(), lr=0.01)
    settings: dict[str, Any] = {"noise_multiplier": SIGMA, "max_grad_norm": CLIP, "expected_batch_size": rows}
    optimizer: Any = plain
    if method in ("fused", "flat"):
        module = GradSampleModule(module)
        optimizer = (FusedDPOptimizer if method == "fused" else DPOptimizer)(plain, **settings)
    elif method != "plain":
        module = GradSampleModuleFastGradientClipping(module, max_grad_norm=CLIP, use_ghost_clipping=method == "ghost")
        optimizer = DPOptimizerFastGradientClipping(plain, **settings)

    class Loss:
        reduction = "mean"

        def __call__(self, logits: Any, words: Any) -> Any:
            values = loss_of_rows(logits, words)
            return values if self.reduction == "none" else values.mean()

    loss: Any = Loss()
    if method in ("ghost", "fast"):
        loss = DPLossFastGradientClipping(module, optimizer, loss)

    def run() -> None:
        loss(module(words), words).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run, parameters


def point(method: str, rows: int, measure: str) -> dict[str, Any]:
    """In a fresh process: the peak above what the libraries hold, or processor seconds of each timed step."""
    import torch

    torch.set_num_threads(1)
    import opacus  # noqa: F401
    from opacus.grad_sample import GradSampleModule  # noqa: F401

    import leakcore.dpsgd
    from leakcore import kernels

    kernels.set_num_threads(1)
    _ = leakcore.dpsgd.FusedDPOptimizer
    if measure == "memory":
        worker.give_memory_back()
        before = worker.status("VmRSS")
        run, parameters = step(method, rows)
        peaks = []
        for _ in range(3):
            run()
            peaks.append(worker.status("VmHWM") - before)
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        return {"peak_bytes": peaks[2], "check_bytes": max(peaks[:2]), "parameters": parameters}
    run, _ = step(method, rows)
    seconds: list[float] = []
    number = 0
    while len(seconds) < TIMED:
        number += 1
        begin = time.process_time()
        run()
        if number > 1 and not (method == "fused" and number in CHECKED):
            seconds.append(time.process_time() - begin)
    return {"seconds": seconds}


def measured(method: str, rows: int, measure: str) -> dict[str, Any]:
    """`point`, in a process of its own."""
    env = {**os.environ, **environment.VARIABLES, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "bench.fused_memory", "--point", method, str(rows), measure]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def run(batches: tuple[int, ...] = BATCHES) -> dict[str, Any]:
    """Every method at every batch, the methods of one batch after each other."""
    cases, parameters = [], 0
    for rows in batches:
        contenders = {}
        for method, name in METHODS.items():
            stored = measured(method, rows, "memory")
            parameters = stored["parameters"]
            timed = measured(method, rows, "time")
            contenders[name] = {
                "peak_bytes": stored["peak_bytes"], "check_bytes": stored["check_bytes"], "seconds": timed["seconds"],
                "median": statistics.median(timed["seconds"]),
            }  # fmt: skip
            print(rows, name, contenders[name], file=sys.stderr, flush=True)
        cases.append({"kernel": "transformer step", "size": f"B={rows}", "rows": rows, "contenders": contenders})
    return {
        "schema": "leakcore.fused-memory/1", "machine": environment.facts(), "parameters": parameters, "cases": cases,
        "claims": claims.judge(cases, "transformer"),
    }  # fmt: skip


def text(result: dict[str, Any]) -> str:
    """The tables, the claims, and which method to use, as the docs show them."""
    names = list(METHODS.values())
    heads = ("ours", "ghost", "fast gradient clipping", "flat", "no privacy")
    lines = [f"| batch | peak memory: {' | '.join(heads)} | ours, comparing rows |", "|---|---|---|---|---|---|---|"]
    for case in result["cases"]:
        rows = case["contenders"]
        peaks = [rows[n]["peak_bytes"] for n in names] + [rows[names[0]]["check_bytes"]]
        lines.append(f"| {case['rows']} | {' | '.join(f'{peak / 2**20:,.0f} MiB' for peak in peaks)} |")
    lines += ["", f"| batch | time: {' | '.join(heads)} |", "|---|---|---|---|---|---|"]
    for case in result["cases"]:
        times = [f"{case['contenders'][n]['median']:.2f} s" for n in names]
        lines.append(f"| {case['rows']} | {' | '.join(times)} |")
    lines += ["", "| claim | target | worst | best |", "|---|---|---|---|"]
    for claim in result["claims"]:
        worst = claim["measured"] if claim["met"] else f"**{claim['measured']}**"
        lines.append(f"| {claim['claim']} | {claim['wanted']} | {worst} | {claim['best']} |")
    lines += ["", *_advice(result)]
    machine = result["machine"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("torch", "opacus"))
    load = f"load {machine['load']:.0f} on {machine['processors']} processors"
    return "\n".join([*lines, "", f"{machine['cpu']}, {versions}, {load}; {result['parameters']:,} parameters."])


def _advice(result: dict[str, Any]) -> list[str]:
    """Which method wins in memory and in time, by the measured numbers."""
    ours, ghost = ([case["contenders"][METHODS[m]] for case in result["cases"]] for m in ("fused", "ghost"))

    def shares(what: str, than: str) -> list[float]:
        return [a[what] / b[than] for a, b in zip(ours, ghost, strict=True)]

    def spread(values: list[float]) -> str:
        return f"{min(values):.2f} to {max(values):.2f} times"

    memory, seconds = shares("peak_bytes", "peak_bytes"), shares("median", "median")
    compared = shares("check_bytes", "peak_bytes")
    word = "less" if max(memory) < 1 else "more" if min(memory) > 1 else "less at some batches and more at others"
    lines = [
        f"- **Memory of a step, against ghost clipping**: {spread(memory)} as much, {word}.",
        f"- **At steps 1, 2, 4, 8, …**, where rows are compared with autograd's: {spread(compared)} as much. "
        + (
            "Still less." if max(compared) < 1 else "Not better than ghost clipping there: plan memory for these steps."
        ),
        f"- **Processor time, against ghost clipping**: {spread(seconds)} as much.",
    ]
    if max(seconds) < 1 and max(compared) > 1:
        lines.append(
            "- **Which one**: `FusedDPOptimizer`, with `BatchMemoryManager` for smaller parts if the comparison does "
            "not fit. Ghost clipping if a batch that must stay whole fits only with it."
        )
    elif max(seconds) < 1:
        lines.append("- **Which one**: `FusedDPOptimizer`.")
    else:
        lines.append("- **Which one**: the one that is faster on your model.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--point", nargs=3, metavar=("METHOD", "ROWS", "MEASURE"), help="measure one, print JSON")
    known, _ = parser.parse_known_args()
    if known.point:
        warnings.simplefilter("ignore")
        method, rows, measure = known.point
        print(json.dumps(point(method, int(rows), measure)))
        return
    kept_page.main(parser, lambda options: run(), text, MARKS)


if __name__ == "__main__":
    main()
