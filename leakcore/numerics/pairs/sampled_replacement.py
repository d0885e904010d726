"""One Poisson-sampled Gaussian step under replacement.

μ = (1−q)N(0, σ²) + qN(1, σ²) and ν = (1−q)N(0, σ²) + qN(−1, σ²). Exchanging x and −x exchanges them, so that both
directions of the profile agree. With z = x/σ and a = q·e^{−1/(2σ²)} the loss ℓ rises with z, and
z = σ·(ℓ/2 + arsinh((1−q)·sinh(ℓ/2)/a)).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics.lattice.cells import KnownMasses
from leakcore.numerics.lattice.tail import gaussian_log_moments
from leakcore.numerics.pairs.masses import log_normal_masses


@dataclasses.dataclass(frozen=True)
class ReplacementStep(KnownMasses):
    """`count` steps of noise multiplier sigma > 0 and sampling rate in (0, 1]."""

    sigma: float
    rate: float

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """See `StepLaw`. Also μ/ν ≤ 1 + cX with c = q/(1 − q) and X = dN(1, σ²)/dN(0, σ²), whose norms of order s ≥ 1
        are at most 1 + c‖X‖ under N(1, σ²), where ‖X‖ = e^{(s + 1)/(2σ²)}."""
        out = gaussian_log_moments(s, 2.0 / self.sigma, self.rate)
        if self.rate == 1.0:
            return out
        odds = math.log(self.rate) - math.log1p(-self.rate)
        norm = np.logaddexp(0.0, odds + 0.5 * (np.maximum(s, 1.0) + 1.0) / self.sigma**2)
        return np.asarray(np.minimum(out, s * norm))

    def loss_range(self, reach: float) -> tuple[float, float]:
        """See `StepLaw`."""
        z = reach + 1.0 / self.sigma
        high = float(np.logaddexp(*self._parts(z)) - np.logaddexp(*self._parts(-z)))
        return -high, high

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `KnownMasses`."""
        z, shift = self._positions(edges), 1.0 / self.sigma
        with np.errstate(divide="ignore"):
            unsampled = np.log1p(-self.rate) + log_normal_masses(z)
        hit = math.log(self.rate)
        below, above = (hit + log_normal_masses(z + side * shift) for side in (1.0, -1.0))
        return np.logaddexp(unsampled, below), np.logaddexp(unsampled, above)

    def _parts(self, z: float) -> tuple[float, float]:
        """log of the two parts of μ's density over that of N(0, 1)."""
        unsampled = math.log1p(-self.rate) if self.rate < 1.0 else -math.inf
        return unsampled, math.log(self.rate) + z / self.sigma - 0.5 / self.sigma**2

    def _positions(self, losses: np.ndarray) -> np.ndarray:
        half = 0.5 * losses
        if self.rate == 1.0:
            return self.sigma * half
        size = np.abs(half)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_sinh = np.where(size > 20.0, size - math.log(2.0), np.log(np.sinh(np.minimum(size, 20.0))))
            log_ratio = log_sinh + math.log1p(-self.rate) - math.log(self.rate) + 0.5 / self.sigma**2
            angle = np.where(
                log_ratio > 20.0, log_ratio + math.log(2.0), np.arcsinh(np.exp(np.minimum(log_ratio, 20.0)))
            )
        return np.asarray(self.sigma * (half + np.copysign(angle, half)))
