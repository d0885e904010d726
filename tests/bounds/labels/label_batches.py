"""Random batches of a logistic model and their label-ε, as the tests of it share them."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from leakcore import bounds

DELTA = 1e-5
TESTS = ("paper", "optimal", "likelihood-ratio")


def batch(n: int = 50, d: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of the last layer, probabilities, labels drawn with them."""
    rng = np.random.default_rng(seed)
    jacobian = rng.normal(size=(n, d))
    probs = special.expit(jacobian @ rng.normal(size=d) / math.sqrt(d))
    return jacobian, probs, (rng.random(n) < probs).astype(np.int64)


def bound(jacobian: object, probs: object, labels: object, **changes: object) -> bounds.LabelEpsilon:
    arguments: dict[str, object] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": DELTA} | changes
    return bounds.label_epsilon(jacobian, probs, labels, **arguments)
