"""A test of the whole order of scores against one trade-off curve: a sum of rank scores, its law by simulation."""

from __future__ import annotations

from functools import cached_property

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
        self._ranks = np.unique(np.ceil(np.array(_RATES) * self._m).astype(np.int64))
        above = others[self._ranks - 1] - (self._ranks - 1)  # likelier scores above each rank
        counts = np.diff(above, prepend=0, append=self._n)
        rates = np.append(self._ranks / (self._m + 1.0), 1.0)
        shares = np.diff(claimed(rates), prepend=0.0)
        # One score more on each side, so that no cell weighs infinitely.
        weights = np.log((self._n * shares + 1) / (self._m * np.diff(rates, prepend=0.0) + 1) * self._m / self._n)
        self._weights = np.minimum.accumulate(weights)  # a higher score never counts less
        self._sum = float(counts @ self._weights)

    def chance(self, curve: Roc) -> float:
        """No mechanism with at most this curve makes the event likelier; too small a limit once in ten million."""
        rng = kernels.generator(self._seed, kernels.Stream.RANK_SCORES)
        hits = 0
        for shares in self._shares:
            cells = np.diff(np.maximum.accumulate(curve(shares), axis=1), axis=1, prepend=0.0, append=1.0)
            sums = rng.multinomial(self._n, cells / cells.sum(axis=1, keepdims=True)) @ self._weights
            hits += int((sums >= self._sum - 1e-9 * self._n).sum())
        return float(clopper_pearson(hits, _SIMULATIONS, confidence=1 - _DOUBT, side="upper")[1])

    @cached_property
    def _shares(self) -> list[np.ndarray]:
        """Where the ranks cut the other side's distribution, (simulations, ranks), in parts."""
        rng = kernels.generator(self._seed, kernels.Stream.RANK_CUTS)
        steps = np.diff(self._ranks, prepend=0, append=self._m + 1).astype(np.float64)
        out = []
        for _ in range(_SIMULATIONS // _PART):
            parts = rng.standard_gamma(steps, size=(_PART, len(steps))).cumsum(axis=1)
            out.append(parts[:, :-1] / parts[:, -1:])
        return out
