"""The area under a ROC curve and its limits."""

from __future__ import annotations

import math

import numpy as np
from scipy import special


def area(inside: np.ndarray, outside: np.ndarray) -> float:
    """P(a score with the rows is larger than one without) + half the ties."""
    pooled, counts = np.unique(np.concatenate([inside, outside]), return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    ranks = middle[np.searchsorted(pooled, inside)].sum()
    return float((ranks - len(inside) * (len(inside) + 1) / 2) / (len(inside) * len(outside)))


def area_limits(value: float, pairs: int, level: float) -> tuple[float, float]:
    """All μ with pairs·KL(value ‖ μ) ≤ log(2/(1 − level)), each side at half of the error."""
    budget = math.log(2 / (1 - level)) / pairs

    def apart(mu: float) -> float:
        return float(special.rel_entr(value, mu) + special.rel_entr(1 - value, 1 - mu))

    ends = []
    for far in (0.0, 1.0):
        near, beyond = value, far
        for _ in range(60):
            middle = 0.5 * (near + beyond)
            near, beyond = (middle, beyond) if apart(middle) <= budget else (near, middle)
        ends.append(beyond)
    return ends[0], ends[1]
