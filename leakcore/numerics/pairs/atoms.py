"""A step law of finitely many atoms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics.lattice.cells import EVERYWHERE, Grid, KnownMasses, LossCells


@dataclasses.dataclass(frozen=True, eq=False)
class AtomLaw(KnownMasses):
    """Atoms with masses under ν and μ, in the order of their losses log μ/ν.

    Attributes:
        log_nu: of each atom's mass under ν, finite.
        log_mu: of its mass under μ, finite.
        log_lost: log of μ's mass where ν has none, and of ν's where μ has none.
        anchor: a loss that the lattice has as a point: that of the heaviest atom, where one is heavy.
    """

    log_nu: np.ndarray
    log_mu: np.ndarray
    log_lost: tuple[float, float] = (-math.inf, -math.inf)
    anchor: float = 0.0

    @classmethod
    def of(
        cls,
        log_nu: np.ndarray,
        log_mu: np.ndarray,
        log_lost: tuple[float, float] = (-math.inf, -math.inf),
        *,
        count: int = 1,
        anchor: float = 0.0,
    ) -> AtomLaw:
        """The law of atoms in any order; those that lack mass under one law alone are counted as lost."""
        finite_nu, finite_mu = log_nu > -np.inf, log_mu > -np.inf
        lost = [
            float(np.logaddexp.reduce(np.append(part[mine & ~other], at)))
            for part, mine, other, at in (
                (log_mu, finite_mu, finite_nu, log_lost[0]),
                (log_nu, finite_nu, finite_mu, log_lost[1]),
            )
        ]
        both = finite_nu & finite_mu
        log_nu, log_mu = log_nu[both], log_mu[both]
        order = np.argsort(log_mu - log_nu, kind="stable")
        return cls(log_nu[order], log_mu[order], (lost[0], lost[1]), anchor, count=count)

    @property
    def log_infinite(self) -> tuple[float, float]:
        """See `KnownMasses`."""
        return self.log_lost

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """See `StepLaw`."""
        losses = self.log_mu - self.log_nu
        logs, outward = (self.log_mu, losses) if remove else (self.log_nu, -losses)
        out = np.empty(len(s))
        for i, power in enumerate(s):
            parts = logs + power * outward
            most = float(parts.max())
            out[i] = most + math.log(float(np.exp(parts - most).sum())) if math.isfinite(most) else math.inf
        return out

    def loss_range(self, reach: float) -> tuple[float, float]:
        """See `StepLaw`."""
        losses = self.log_mu - self.log_nu
        heavy = losses[np.maximum(self.log_nu, self.log_mu) > -0.5 * reach * reach - 30.0]
        low, high = float(heavy[0]), float(heavy[-1])
        pad = 1e-9 * (1.0 + abs(low) + abs(high))
        return low - pad, high + pad

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `KnownMasses`."""
        ends = np.searchsorted(self.log_mu - self.log_nu, edges, side="right")
        used = ends[1:] > ends[:-1]
        out = []
        for part in (self.log_nu, self.log_mu):
            masses = np.full(len(edges) - 1, -np.inf)
            if used.any():
                masses[used] = np.logaddexp.reduceat(part, ends[:-1][used])
            out.append(masses)
        return out[0], out[1]

    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> LossCells:
        """See `StepLaw`."""
        grid = Grid.within(self.loss_range(reach), fine, self.anchor, spacing)
        return LossCells(grid, *self.log_masses(grid.edges()), self.log_infinite)

    def __repr__(self) -> str:
        return f"AtomLaw of {len(self.log_nu)} atoms"
