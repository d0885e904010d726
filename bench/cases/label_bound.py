"""The label bound of many batches: the closed form against the algorithm as the paper prints it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender
from leakcore import bounds
from leakcore.reference.kernels import label_lower_bounds

BATCHES, SAMPLES, WEIGHTS = 80, 50, 200
"""All batches of Bank Marketing, and the last hidden layer of the paper's network."""
_SETTING = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5}


def cases(quick: bool) -> list[Case]:
    return [_bound(4 if quick else BATCHES)]


def _bound(batches: int) -> Case:
    def data() -> Any:
        rng = np.random.default_rng(0)
        jacobian = rng.standard_normal((batches, SAMPLES, WEIGHTS))
        probs = rng.uniform(0.01, 0.99, (batches, SAMPLES))
        return jacobian, probs, (rng.random((batches, SAMPLES)) < probs).astype(np.int64)

    def ours(test: str) -> Callable[[Any], Callable[[], Any]]:
        return lambda arrays: lambda: bounds.label_epsilon(*arrays, test=test, **_SETTING).value

    def literal(inverse_per_row: bool) -> Callable[[Any], Callable[[], Any]]:
        def build(arrays: Any) -> Callable[[], Any]:
            return lambda: [
                label_lower_bounds(*one, inverse_per_row=inverse_per_row, **_SETTING)
                for one in zip(*arrays, strict=True)
            ]

        return build

    contenders = []
    for threads in (1, 2):
        more = "" if threads == 1 else ", 2 threads"
        contenders += [
            Contender(f"leakcore{more}", ours("paper"), threads),
            Contender(f"leakcore, likelihood ratio{more}", ours("likelihood-ratio"), threads),
            Contender(f"Algorithm 2, inverse hoisted{more}", literal(False), threads, against=f"leakcore{more}"),
        ]
    contenders.append(Contender("Algorithm 2 as printed", literal(True), against="leakcore"))
    return Case(
        "label bound",
        f"{batches} batches of {WEIGHTS}×{SAMPLES} float64",
        data,
        tuple(contenders),
        batches * SAMPLES,
        "row",
        seconds=20,
    )
