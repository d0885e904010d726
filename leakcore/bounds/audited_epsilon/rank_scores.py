"""A test of the whole order of scores against one trade-off curve: a sum of rank scores, its law by simulation."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from leakcore import kernels
from leakcore.bounds.audited_epsilon.scaled_mechanism import Roc
from leakcore.numerics import clopper_pearson

_RATES = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Shares of the other side above the ranks that divide all scores into cells."""
_SIMULATIONS = 50_000
_PART = 5_000
_DOUBT = 1e-7
"""How often the limit of a simulated probability may be too small."""
_MOST_TESTS = 40
SIMULATION_ERROR = _DOUBT * _MOST_TESTS
"""Of all limits of one audit together; it counts as a part of the audit's error."""


class RankScores:
    """The event that the scores of the likelier side have at least this sum of rank scores.

    m scores of the other side divide all scores into cells, by ranks that depend on m alone. A cell's rank score is the
    logarithm of how much likelier the claimed curve makes it for the likelier side: a number fixed before the trials.
    The ranks cut the other side's distribution at shares T of a Dirichlet law. Given them, scores under any mechanism
    with at most this curve R are above the k-th cut with probability at most R(T_k), so their sum is stochastically at
    most that of independent ones that attain R(T_k): its law is simulated, with Clopper–Pearson limits.

    Args:
        likelier: (n + m,) True for scores of the likelier side, from the highest score to the lowest.
        claimed: the curve by which cells are weighed. Any would be valid.
        seed: of the simulation.
    """

    def __init__(self, likelier: np.ndarray, claimed: Roc, seed: int) -> None:
        others = np.flatnonzero(~likelier)
        self._n, self._m, self._seed = len(likelier) - len(others), len(others), seed
        ranks = _ranks(self._m)
        above = others[ranks - 1] - (ranks - 1)  # likelier scores above each rank
        counts = np.diff(above, prepend=0, append=self._n)
        rates = np.append(ranks / (self._m + 1.0), 1.0)
        shares = np.diff(claimed(rates), prepend=0.0)
        # One score more on each side, so that no cell weighs infinitely.
        weights = np.log((self._n * shares + 1) / (self._m * np.diff(rates, prepend=0.0) + 1) * self._m / self._n)
        weights = np.minimum.accumulate(weights)  # a higher score never counts less
        self._weights = tuple(weights.tolist())
        self._sum = float(counts @ weights)

    def chance(self, curve: Roc) -> float:
        """No mechanism with at most this curve makes the event likelier; too small a limit once in ten million."""
        sums = _sums(self._n, self._m, self._weights, curve, self._seed)
        hits = len(sums) - int(np.searchsorted(sums, self._sum - 1e-9 * self._n, side="left"))
        return float(clopper_pearson(hits, len(sums), confidence=1 - _DOUBT, side="upper")[1])


@lru_cache(maxsize=256)
def _sums(n: int, m: int, weights: tuple[float, ...], curve: Roc, seed: int) -> np.ndarray:
    """Sorted sums of the rank scores of n scores that attain the curve."""
    rng = kernels.generator(seed, kernels.Stream.RANK_SCORES)
    out = []
    for shares in _cuts(m, seed):
        cells = np.diff(np.maximum.accumulate(curve(shares), axis=1), axis=1, prepend=0.0, append=1.0)
        out.append(rng.multinomial(n, cells / cells.sum(axis=1, keepdims=True)) @ np.array(weights))
    return np.sort(np.concatenate(out))


@lru_cache(maxsize=4)
def _cuts(m: int, seed: int) -> tuple[np.ndarray, ...]:
    """Where the ranks cut the distribution of m scores, (simulations, ranks), in parts."""
    rng = kernels.generator(seed, kernels.Stream.RANK_CUTS)
    steps = np.diff(_ranks(m), prepend=0, append=m + 1).astype(np.float64)
    out = []
    for _ in range(_SIMULATIONS // _PART):
        parts = rng.standard_gamma(steps, size=(_PART, len(steps))).cumsum(axis=1)
        out.append(parts[:, :-1] / parts[:, -1:])
    return tuple(out)


def _ranks(m: int) -> np.ndarray:
    """The ranks among m scores that divide all scores into cells."""
    return np.unique(np.ceil(np.array(_RATES) * m).astype(np.int64))
