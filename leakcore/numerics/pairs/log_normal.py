"""One coordinate's likelihood ratio: X = exp((x − ½)/σ²) with x ~ N(0, σ²), its cells on a grid and its moments.

X has mean 1, and x ~ N(1, σ²) is X's law weighted by X.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from leakcore.numerics.gaussian.step_tables import log_masses

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)
_NARROW = 32.0
"""A cell [kh, (k+1)h] with k above this many times the density's power of x is integrated by three nodes: to 1e-15."""
_PANELS = 48
_PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """The law of X for one σ; `reach`: how many standard deviations of x matter."""

    sigma: float
    reach: float

    def z(self, x: np.ndarray | float) -> np.ndarray:
        """The standard normal variate at which X = x."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.sigma * np.log(x) + 0.5 / self.sigma)

    def x(self, z: np.ndarray | float) -> np.ndarray:
        """X at a standard normal variate."""
        return np.asarray(np.exp((z - 0.5 / self.sigma) / self.sigma))

    def log_above(self, x: float) -> tuple[float, float]:
        """log P(X > x) under N(0, σ²) and under N(1, σ²)."""
        z = float(self.z(x))
        return float(special.log_ndtr(-z)), float(special.log_ndtr(1.0 / self.sigma - z))

    def usual(self, count: int) -> float:
        """What the largest of so many exceeds once in a thousand times."""
        return float(self.x(-special.ndtri(1e-3 / count)))

    def cells(self, spacing: float, count: int) -> tuple[np.ndarray, np.ndarray]:
        """How much of the mass of each cell [kh, (k+1)h], k < count, belongs to its lower and to its upper end, so that
        the ends have the cell's mean."""
        wide = min(count, int(_NARROW * (1.0 + self.sigma * self.reach)))
        down, up = np.empty(count), np.empty(count)
        ends = self.z(spacing * np.arange(wide + 1))
        mass = np.exp(log_masses(ends[:-1], ends[1:]))
        moment = np.exp(log_masses(ends[:-1] - 1.0 / self.sigma, ends[1:] - 1.0 / self.sigma))
        up[:wide] = np.clip(moment / spacing - np.arange(wide) * mass, 0.0, mass)
        down[:wide] = mass - up[:wide]
        low = np.arange(wide, count, dtype=np.float64)
        down[wide:], up[wide:] = 0.0, 0.0
        for node, weight in zip(0.5 + 0.5 * _NODES, 0.5 * _WEIGHTS, strict=True):
            x = low + node
            density = self._density(x, spacing)
            down[wide:] += (weight * (1.0 - node)) * density
            up[wide:] += (weight * node) * density
        return down, up

    def _density(self, index: np.ndarray, spacing: float) -> np.ndarray:
        """Density of X/h."""
        z = self.z(index)
        z += self.sigma * np.log(spacing)
        z *= z
        z *= -0.5
        out = np.exp(z, out=z)
        out /= index
        out *= self.sigma / np.sqrt(2.0 * np.pi)
        return np.asarray(out)

    def nodes(self, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        """(x, mass) of a quadrature over low < X ≤ high."""
        first, last = max(float(self.z(low)), -self.reach), float(self.z(high))
        first = min(first, last - 1e-6)
        edges = np.linspace(first, last, _PANELS + 1)
        half = 0.5 * (edges[1] - edges[0])
        z = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * _PANEL_NODES).ravel()
        mass = np.exp(-0.5 * z * z) * np.tile(half * _PANEL_WEIGHTS, _PANELS) / np.sqrt(2.0 * np.pi)
        return self.x(z), mass
