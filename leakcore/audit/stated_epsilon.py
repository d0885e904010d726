"""The ε that a report states, which every schedule has: audits must not end for want of an accountant's accuracy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import accounting
from leakcore.mechanisms import FullBatch, Mechanism, Poisson


def proved_epsilon(
    noise_multiplier: Any,
    sample_rate: Any = None,
    steps: int | None = None,
    *,
    delta: float,
    adjacency: str | None = None,
    methods: tuple[str, ...] = ("exact", "pld"),
) -> accounting.Epsilon:
    """`accounting.epsilon` by the first of `methods` that reaches the schedule and is installed; where none does, the ε
    of every row in every batch, which can only leak more. `method` says which.

    noise_multiplier: or a mechanism.
    """
    if isinstance(noise_multiplier, FullBatch):
        noise_multiplier, sample_rate, steps = noise_multiplier.noise_multiplier, 1.0, noise_multiplier.steps
    elif isinstance(noise_multiplier, Poisson):
        poisson = noise_multiplier
        noise_multiplier, sample_rate, steps = poisson.noise_multiplier, poisson.sample_rate, poisson.steps
    elif isinstance(noise_multiplier, Mechanism):
        return accounting.epsilon(noise_multiplier, delta=delta, adjacency=adjacency)
    for method in methods:
        try:
            result = accounting.epsilon(
                noise_multiplier, sample_rate, steps, delta=delta, adjacency=adjacency, method=method
            )
        except (ArithmeticError, ImportError):  # AccuracyError is one, and squares that overflow
            continue
        if method == "exact" or math.isfinite(float(result.value)):  # else its grid, not the mechanism, has no end
            return result
    full = np.ceil(sample_rate) if np.ndim(sample_rate) else float(np.ceil(sample_rate))
    whole = accounting.epsilon(noise_multiplier, full, steps, delta=delta, adjacency=adjacency, method="exact")
    note = "with every row in every batch: no accountant reaches this schedule as it is sampled"
    return dataclasses.replace(
        whole,
        method="full batches",
        interval=None,
        assumptions=dataclasses.replace(whole.assumptions, notes=(*whole.assumptions.notes, note)),
    )
