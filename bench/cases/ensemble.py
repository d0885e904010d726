"""DP-SGD training of an audit's models: the ensemble, all runs at once, against Opacus, one model after the other.

Jagielski, Ullman and Oprea 2020: 6,000 rows of 784 pixels, two classes, logistic regression or 32 ReLU units,
minibatches of 250 or all rows. One training step of one model is the unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender
from leakcore import dpsgd

ROWS, INPUTS, BATCH, RUNS = 6000, 784, 250, 64
SIGMA, CLIP, RATE = 1.0, 1.0, 0.15


def cases(quick: bool) -> list[Case]:
    few = 1 if quick else 4
    return [
        _case("FNN-32, minibatch", (INPUTS, 32, 2), BATCH, 12 * few, 20),
        _case("logistic regression, minibatch", (INPUTS, 2), BATCH, 24 * few, 24),
        _case("FNN-32, full batch", (INPUTS, 32, 2), None, few, 2),
        _case("logistic regression, full batch", (INPUTS, 2), None, 6 * few, 6),
    ]


def _data() -> tuple[np.ndarray, np.ndarray]:
    """Rows as sparse as Fashion-MNIST's; no time depends on what they show."""
    rng = np.random.default_rng(0)
    features = rng.random((ROWS, INPUTS), dtype=np.float32) * (rng.random((ROWS, INPUTS)) < 0.5)
    return features, rng.integers(0, 2, ROWS)


def _case(what: str, layers: tuple[int, ...], batch: int | None, steps: int, peer_steps: int) -> Case:
    def ours(threads: int) -> Callable[[Any], Callable[[], Any]]:
        def build(data: Any) -> Callable[[], Any]:
            ensemble = dpsgd.Ensemble(
                dpsgd.Network(layers, "relu", initialisation="glorot"),
                noise_multiplier=SIGMA,
                max_grad_norm=CLIP,
                learning_rate=RATE,
                steps=steps,
                sample_rate=1.0 if batch is None else dpsgd.ShuffledBatches(batch),
                seed=0,
            )
            return lambda: ensemble.run(*data, runs=RUNS, execution=dpsgd.Execution(num_threads=threads)).parameters

        return build

    return Case(
        "ensemble",
        f"{what}, {ROWS} rows, float32",
        _data,
        (
            Contender("leakcore", ours(1)),
            Contender("leakcore, 2 threads", ours(2), 2),
            Contender(
                "Opacus", lambda data: _opacus(data, layers, batch, peer_steps), 1, against="leakcore",
                share=peer_steps / (RUNS * steps), needs=("opacus",),
            ),
        ),
        RUNS * steps,
        "training step",
        seconds=10,
    )  # fmt: skip


def _opacus(data: Any, layers: tuple[int, ...], batch: int | None, steps: int) -> Callable[[], Any]:
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    from leakcore import models

    features, labels = torch.from_numpy(data[0]), torch.from_numpy(data[1])
    module = GradSampleModule(models.mlp(layers, "relu"))
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=RATE), noise_multiplier=SIGMA, max_grad_norm=CLIP,
        expected_batch_size=batch or ROWS,
    )  # fmt: skip
    loss = torch.nn.CrossEntropyLoss()

    def run() -> None:
        order = torch.randperm(ROWS)
        for step in range(steps):
            if batch is None:
                x, y = features, labels
            else:
                taken = order[step * batch : (step + 1) * batch]
                x, y = features[taken], labels[taken]
            optimizer.zero_grad()
            loss(module(x), y).backward()
            optimizer.step()

    return run
