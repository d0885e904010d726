"""What a shuffled epoch leaks at least: a pair that every dominating pair of it dominates.

The row is in one of b batches, each order of the batches alike; with the row the batch's sum is 2, without it 1, all
other batches' sums are 0 (Chua et al. 2024, ICML): P = (1/b)Σ_t N(2e_t, σ²I), Q = (1/b)Σ_t N(e_t, σ²I). Who sees only
M = max_t w_t sees less, and
    P(M ≤ c) = Φ((c − 2)/σ)·Φ(c/σ)^{b−1},  Q(M ≤ c) = Φ((c − 1)/σ)·Φ(c/σ)^{b−1}.
Who sees only the cell that M is in sees less again, whatever the cells. They are made to hold losses between two points
of the lattice.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from leakcore.numerics.gaussian.gaussian_pair import log1mexp
from leakcore.numerics.lattice.cells import KnownMasses
from leakcore.numerics.pairs.masses import log_differences

_POINTS = 1 << 15


@dataclasses.dataclass(frozen=True)
class ShuffledLowerStep(KnownMasses):
    """The cell of M, for `count` epochs of `batches` batches with noise multiplier sigma > 0."""

    sigma: float
    batches: int

    def loss_range(self, reach: float) -> tuple[float, float]:
        """See `StepLaw`."""
        _, losses = self._table(reach)
        return float(losses[0]), float(losses[-1])

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `KnownMasses`: of M between the places where its loss is at the edges."""
        places, losses = self._table(60.0)
        ends = np.interp(edges, losses, places)
        ends[0], ends[-1] = -np.inf, np.inf
        nu, mu = (log_differences(self._log_below(ends, mean), self._log_above(ends, mean)) for mean in self._means)
        return nu, mu

    @property
    def _means(self) -> tuple[float, float]:
        return 1.0 / self.sigma, 2.0 / self.sigma

    def _table(self, reach: float) -> tuple[np.ndarray, np.ndarray]:
        """(M/σ, the loss there), rising."""
        return _table(self.sigma, self.batches, reach)

    def _log_below(self, c: np.ndarray, mean: float) -> np.ndarray:
        return np.asarray(special.log_ndtr(c - mean) + _times(self.batches - 1, special.log_ndtr(c)))

    def _log_above(self, c: np.ndarray, mean: float) -> np.ndarray:
        """log P(M > c): 1 − (1 − u)(1 − v)^{b−1} with u = Φ(mean − c), v = Φ(−c)."""
        hit = special.log_ndtr(mean - c)
        if self.batches == 1:
            return np.asarray(hit)
        other = special.log_ndtr(-c)
        log_no = log1mexp(hit) + (self.batches - 1) * log1mexp(other)
        # Where 1 − e^{log_no} underflows, the sum of the two is as good.
        small = np.logaddexp(hit, math.log(self.batches - 1) + other)
        return np.where(log_no < -1e-280, log1mexp(np.minimum(log_no, 0.0)), small)


@functools.lru_cache(maxsize=8)
def _table(sigma: float, batches: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    c = np.linspace(-reach, 2.0 / sigma + reach, _POINTS)
    losses = _log_density(c, 2.0 / sigma, batches) - _log_density(c, 1.0 / sigma, batches)
    return c, np.maximum.accumulate(losses)


def _log_density(c: np.ndarray, mean: float, batches: int) -> np.ndarray:
    """log of M's density, less (b − 2)·log Φ(c)."""
    hit = -0.5 * (c - mean) ** 2 + special.log_ndtr(c)
    if batches == 1:
        return np.asarray(hit)
    return np.asarray(np.logaddexp(hit, math.log(batches - 1) + special.log_ndtr(c - mean) - 0.5 * c * c))


def _times(count: int, logs: np.ndarray) -> np.ndarray:
    """count·logs, with 0·(−∞) = 0."""
    return np.asarray(count * logs) if count else np.zeros_like(logs)
