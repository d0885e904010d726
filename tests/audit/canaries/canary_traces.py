"""Traces of canaries as a mechanism makes them, without a training."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore import dpsgd, mechanisms


def simulated(mechanism: mechanisms.Poisson, count: int, seed: int = 0, **facts: Any) -> dpsgd.CanaryTrace:
    """Half of the canaries are in the data, so that audits share simulations; four controls for each canary."""
    coins = np.arange(count) < count // 2
    scores = mechanism.sample_log_ratio(5 * count, "null", seed, 0)
    scores[:count][coins] = mechanism.sample_log_ratio(int(coins.sum()), "alternative", seed, 0)
    steps = mechanism.steps
    return dpsgd.CanaryTrace(**{
        "noise_multiplier": np.full(steps, mechanism.noise_multiplier), "max_grad_norm": np.ones(steps),
        "sample_rate": mechanism.sample_rate, "rows": 1000, "parameters": 10**5, "coins": coins,
        "times_seen": coins * 2, "scores": scores, "release_scores": scores, "noise_ratio": 1.0, "common_noise": 0.5,
        "repeated_noise": 0.5, "interference": 0.1, **facts,
    })  # fmt: skip
