"""Whole reconstructions: train on |D| rows with one of ten candidates among them, score the candidates, guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender
from leakcore import attacks, dpsgd

ROWS, INPUTS, HIDDEN, CLASSES, PRIOR = 999, 784, 10, 10, 10
SIGMA, CLIP, RATE = 5.0, 0.1, 5.0
RUNS = 64


def cases(quick: bool) -> list[Case]:
    return [_mnist(4 if quick else 100)]


def _data() -> Any:
    """Rows as sparse as MNIST's: no time depends on what they show, and the data set need not be there."""
    rng = np.random.default_rng(0)

    def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
        features = rng.random((count, INPUTS), dtype=np.float32) * (rng.random((count, INPUTS)) < 0.2)
        return features, rng.integers(0, CLASSES, count)

    return (*rows(ROWS), *rows(1000))


def _mnist(steps: int) -> Case:
    def ours(threads: int) -> Callable[[Any], Callable[[], Any]]:
        def build(arrays: Any) -> Callable[[], Any]:
            ensemble = dpsgd.Ensemble(
                (INPUTS, HIDDEN, CLASSES), noise_multiplier=SIGMA, max_grad_norm=CLIP, learning_rate=RATE, steps=steps,
                seed=0,
            )  # fmt: skip
            return lambda: (
                attacks.reconstruction_game(
                    ensemble,
                    dpsgd.Rows(*arrays[:2]),
                    dpsgd.Rows(*arrays[2:]),
                    attacks.GameRules(PRIOR),
                    runs=RUNS,
                    method="sum",
                    execution=dpsgd.Execution(num_threads=threads),
                ).value
            )

        return build

    def one_model(arrays: Any) -> Callable[[], Any]:
        return lambda: _one_model_at_a_time(*arrays, steps)

    return Case(
        "reconstructions",
        f"MLP {INPUTS}–{HIDDEN}–{CLASSES}, |D|={ROWS + 1}, T={steps}, prior {PRIOR}, float32",
        _data,
        (
            Contender("leakcore", ours(1)),
            Contender("leakcore, 2 threads", ours(2), 2),
            Contender("one model at a time, vmap(grad)", one_model, 1, against="leakcore", share=1 / RUNS),
            Contender(
                "one model at a time, vmap(grad), 2 threads",
                one_model,
                2,
                against="leakcore, 2 threads",
                share=1 / RUNS,
            ),
        ),
        RUNS,
        "reconstruction",
        seconds=35,
    )


def _one_model_at_a_time(known: Any, known_labels: Any, pool: Any, pool_labels: Any, steps: int) -> bool:
    """The paper's recipe: per-sample gradients of one model by vmap, stored, clipped, summed; then the attack."""
    import torch
    from torch.func import functional_call, grad, vmap

    rng = np.random.default_rng(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ELU(), torch.nn.Linear(HIDDEN, CLASSES)
    )  # fmt: skip
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    prior, target = rng.choice(len(pool), PRIOR, replace=False), int(rng.integers(PRIOR))
    x = torch.from_numpy(np.concatenate([known, pool[prior[target]][None]]))
    y = torch.from_numpy(np.append(known_labels, pool_labels[prior[target]]))
    candidates, labels = torch.from_numpy(pool[prior]), torch.from_numpy(pool_labels[prior])

    def loss(values: Any, row: Any, label: Any) -> Any:
        return torch.nn.functional.cross_entropy(functional_call(model, values, (row[None],)), label[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))

    def clipped(rows: Any, classes: Any) -> Any:
        gradients = torch.cat([g.flatten(1) for g in per_sample(parameters, rows, classes).values()], 1)
        return gradients * (CLIP / gradients.norm(dim=1, keepdim=True)).clamp(max=1)

    score = torch.zeros(PRIOR)
    for _ in range(steps):
        gradients = clipped(x, y)
        released = gradients.sum(0) + SIGMA * CLIP * torch.randn(gradients.shape[1])
        score += clipped(candidates, labels) @ (released - gradients[:-1].sum(0))
        start = 0
        for name, value in parameters.items():
            step = released[start : start + value.numel()].view_as(value)
            parameters[name] = value - RATE / (ROWS + 1) * step
            start += value.numel()
    return int(score.argmax()) == target
