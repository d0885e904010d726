"""Success against a discrete prior from B_κ at a few hundred κ, for mechanisms whose loss has no formula.

Σ p_z μ_z(E_z) is at most max{Σ p_z B(a_z) : Σ a_z ≤ 1} = min over λ of λ + Σ p_z max_a [B(a) − λa/p_z]. B is concave
and rises: between nodes it lies below the upper limit at the next node, and below the line from 0 through the last one.
"""

from __future__ import annotations

import numpy as np

from leakcore.bounds.reconstruction.arguments import Kappa
from leakcore.bounds.reconstruction.of_mechanism import limits
from leakcore.mechanisms import Mechanism

_NODES = 384


def success(mechanism: Mechanism, weights: np.ndarray) -> tuple[float, float]:
    """(the bound, B at κ = the largest weight), of weights that sum to 1."""
    distinct, counts = np.unique(weights, return_counts=True)
    largest = float(distinct[-1])
    blow_up = float(np.exp(limits(mechanism, Kappa.parse(largest, None).log)[1][0]))
    if len(distinct) == 1:
        return blow_up, blow_up
    nodes = np.unique(np.concatenate((np.geomspace(1e-4 * distinct[0], 1.0, _NODES), distinct)))
    nodes[-1] = 1.0
    above = np.exp(limits(mechanism, np.log(nodes))[1])
    # Corners of a function that B lies below: at each node the limit there, and before it the next one's.
    ratio = np.minimum.accumulate(above / nodes)
    corners = np.concatenate(([0.0], np.minimum(nodes[1:], above[1:] / ratio[:-1]), nodes))
    heights = np.concatenate((above[:1], above[1:], above))
    corners[1 : len(nodes)] = np.maximum(corners[1 : len(nodes)], nodes[:-1])

    def dual(price: float) -> float:
        gains = np.array([np.max(p * heights - price * corners) for p in distinct])
        return float(price + counts @ np.maximum(gains, 0.0))

    # The slope of B is at most that of its chords; the dual is convex in the price.
    low, high = 0.0, float(largest * ratio[0])
    for _ in range(200):
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (low, right) if dual(left) <= dual(right) else (left, high)
    return float(np.clip(min(dual(low), dual(high), blow_up), largest, 1.0)), blow_up
