"""One step whose batch has a fixed size, drawn without replacement, under replacement.

γ = b/n, Q = N(0, σ²), P = N(2, σ²), ℓ(x) = 2(x − 1)/σ². No pair of one variable is known that has the step's profile;
this one, made from its loss, has (Balle, Barthe and Gaboardi 2018; Zhu, Dong and Wang 2022). Under μ the loss is
    log(1 − γ + γe^{ℓ(x)}), x ~ (1−γ)Q + γP, where x > 1;  −log(1 − γ + γe^{−ℓ(x)}), x ~ P, where x < 1;  0 otherwise,
and under ν it is distributed as its negative under μ.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics.lattice.cells import KnownMasses
from leakcore.numerics.lattice.tail import gaussian_log_moments
from leakcore.numerics.pairs.masses import log_normal_masses


@dataclasses.dataclass(frozen=True)
class FixedBatchStep(KnownMasses):
    """`count` steps of noise multiplier sigma > 0 and rate γ in (0, 1]."""

    sigma: float
    rate: float

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """See `StepLaw`. A convex function of μ/ν has a mean that is linear in the profile, which is one pair's at ε ≥
        0 and another's at ε < 0, each a mixture with two Gaussians: M ≤ 1 + (M₁ − 1) + (M₂ − 1)."""
        one = gaussian_log_moments(s, 2.0 / self.sigma, self.rate)
        if self.rate == 1.0:
            return one
        # Norms of 1 − γ + γe^ℓ under Q, and the least value of 1 − γ + γe^{−ℓ}.
        norm = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + 2.0 * s / self.sigma**2)
        first, second = np.minimum(one, (1.0 + s) * norm), np.minimum(one, -s * math.log1p(-self.rate))
        return np.asarray(first + np.log1p(np.exp(-first) * np.expm1(np.minimum(second, first))))

    def loss_range(self, reach: float) -> tuple[float, float]:
        """See `StepLaw`."""
        log_ratio = 2.0 * (self.sigma * reach + 1.0) / self.sigma**2
        high = (
            float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + log_ratio))
            if self.rate < 1.0
            else log_ratio
        )
        return -high, high

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `KnownMasses`."""
        positive, negative = np.maximum(edges, 0.0), np.minimum(edges, 0.0)
        # ν's mass of (a, b] is μ's of [−b, −a).
        up, down = self._standard(positive), self._standard(-negative[::-1])
        with np.errstate(divide="ignore"):
            unsampled, sampled = np.log1p(-self.rate), math.log(self.rate)
            more, less = (
                np.logaddexp(
                    unsampled + log_normal_masses(z + 1.0 / self.sigma),
                    sampled + log_normal_masses(z - 1.0 / self.sigma),
                )
                for z in (up, down)
            )
            fewer, fewest = (log_normal_masses(z + 1.0 / self.sigma) for z in (up, down))
            mu, nu = np.logaddexp(more, fewest[::-1]), np.logaddexp(fewer, less[::-1])
            atom = unsampled + np.log(math.erf(1.0 / (self.sigma * math.sqrt(2.0))))
        at_zero = (edges[:-1] < 0.0) & (edges[1:] >= 0.0)
        mu[at_zero], nu[at_zero] = (np.logaddexp(part[at_zero], atom) for part in (mu, nu))
        return nu, mu

    def _standard(self, losses: np.ndarray) -> np.ndarray:
        """(x − 1)/σ ≥ 0 at which the loss is each of these, which are not negative."""
        with np.errstate(over="ignore"):
            small = np.log1p(np.expm1(np.minimum(losses, 30.0)) / self.rate)
        return np.asarray(0.5 * self.sigma * np.where(losses > 30.0, losses - math.log(self.rate), small))
