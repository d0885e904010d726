"""What `leakcore.record` adds to a training step: `python -m bench.recorded_step --out JSON`.

A convolutional network of 26,010 parameters, batches of 128, 500 candidates; processor seconds on one thread, the
median over steps. The measure is one forward and one backward pass over the candidates without privacy.
`--show JSON --page PAGE` writes the table between the marks of a page.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leakcore
from bench import environment, kept_page

MARKS = ("<!-- recorded-step -->", "<!-- /recorded-step -->")
BATCH, CANDIDATES, STEPS = 128, 500, 40
WAYS = {"layers": "from the layers' inputs", "vmap": "by vmap in every step"}


def network() -> nn.Module:
    """Opacus's example for MNIST."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of noise; neither time depends on what they show."""
    return torch.randn(count, 1, 28, 28), torch.arange(count) % 10


def steps(way: str | None) -> list[float]:
    """Seconds of every step; way: None without a recording."""
    from opacus import PrivacyEngine

    torch.manual_seed(0)
    x, y = rows(20 * BATCH)
    module = network()
    module, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
    )  # fmt: skip
    others, labels = rows(CANDIDATES // 2)
    candidates = torch.cat([x[: CANDIDATES // 2], others]), torch.cat([y[: CANDIDATES // 2], labels])
    members = torch.arange(CANDIDATES) < CANDIDATES // 2
    recorder: Any = contextlib.nullcontext()
    if way is not None:
        recorder = leakcore.record(optimizer, candidates=candidates, members=members)
        recorder._route.by_layer = False if way == "vmap" else None
    seconds: list[float] = []
    with recorder:
        while len(seconds) < STEPS:
            for images, targets in loader:
                start = time.process_time()
                optimizer.zero_grad()
                nn.CrossEntropyLoss()(module(images), targets).backward()
                optimizer.step()
                seconds.append(time.process_time() - start)
    return seconds[:STEPS]


def plain() -> float:
    """A forward and a backward pass over the candidates."""
    module, (x, y), seconds = network(), rows(CANDIDATES), []
    for _ in range(15):
        start = time.process_time()
        nn.CrossEntropyLoss()(module(x), y).backward()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def measured() -> kept_page.Result:
    """All times of one process."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    bare, passed = statistics.median(steps(None)), plain()
    ways = {}
    for way in WAYS:
        seconds = steps(way)
        due = [k > 0 and (k + 1) & k == 0 for k in range(STEPS)]
        ways[way] = {
            "often": statistics.median(s for s, is_due in zip(seconds[1:], due[1:], strict=True) if not is_due),
            "due": statistics.median(s for s, is_due in zip(seconds, due, strict=True) if is_due),
        }
    return {
        "schema": "leakcore.recorded-step/1", "machine": environment.facts(),
        "step": bare, "pass": passed, "ways": ways,
    }  # fmt: skip


def text(result: kept_page.Result) -> str:
    """The table and what it says of the aim."""
    bare, passed = result["step"], result["pass"]
    lines = [
        "| candidates' gradients | a recorded step | adds, in passes | steps 2, 4, 8, … | add, in passes |",
        "|---|---|---|---|---|",
    ]
    added = {}
    for way, name in WAYS.items():
        often, due = result["ways"][way]["often"], result["ways"][way]["due"]
        added[way] = (often - bare) / passed
        cells = [f"{1e3 * often:.0f} ms", f"{added[way]:.1f}", f"{1e3 * due:.0f} ms", f"{(due - bare) / passed:.1f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    aim = "within" if added["layers"] <= 1.2 else "above"
    said = (
        f"A step without a recording takes {1e3 * bare:.0f} ms. A forward and a backward pass over the {CANDIDATES} "
        f"candidates takes {1e3 * passed:.0f} ms. The network is Opacus's for MNIST, with batches of {BATCH}, on one "
        f"thread of {result['machine']['cpu']}. Our aim is 1.2 passes: {added['layers']:.2f} is {aim} it."
    )
    return "\n".join([*lines, "", said])


def main() -> None:
    kept_page.main(argparse.ArgumentParser(description=__doc__), lambda _: measured(), text, MARKS)


if __name__ == "__main__":
    main()
