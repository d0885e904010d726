"""One sampled Gaussian step as a law on a lattice of losses."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics.lattice.cells import EVERYWHERE, ROUNDING, Grid, LossCells
from leakcore.numerics.lattice.tail import gaussian_log_moments
from leakcore.numerics.pairs.masses import log_normal_masses
from leakcore.numerics.privacy_loss.loss import AccuracyError, StepGroup


class StepCells(LossCells):
    """The cells of a sampled Gaussian step; `group.rate` may be 1.

    Its other law is N(1, σ²) in place of μ, so that small losses keep their digits.
    """

    def __init__(self, group: StepGroup, grid: Grid) -> None:
        edges = _positions(grid.edges()[:-1], group)
        edges[0] = -math.inf
        edges = np.append(edges, math.inf)
        super().__init__(grid, log_normal_masses(edges), log_normal_masses(edges - 1.0 / group.sigma))
        self._rate = group.rate

    def _log_mu(self, part: int) -> float:
        with np.errstate(divide="ignore"):
            return float(np.logaddexp(np.log1p(-self._rate) + self._nu[part], math.log(self._rate) + self._other[part]))

    def _log_ratio(self, nu: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.asarray(np.logaddexp(np.log1p(-self._rate) + nu, math.log(self._rate) + other) - nu)

    def _excess(self, nu: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q, at = self._rate, self._points(len(nu))
        empty = ~np.isfinite(nu)
        with np.errstate(invalid="ignore"):
            gain = np.where(empty, 0.0, np.maximum(other - nu, -800.0))
        sampled = np.exp(np.minimum(gain + (math.log(q) - at), 700.0))
        near = np.minimum(at, 1.0)
        small = (q * np.expm1(np.minimum(gain, 50.0)) - np.expm1(near)) * np.exp(-near)
        with np.errstate(over="ignore"):
            direct = (1.0 - q) * np.exp(-at) + sampled - 1.0
        excess = np.where((at < 1.0) & (gain < 50.0), small, direct)
        size = 8.0 + np.abs(at) + np.where(empty, 0.0, np.abs(nu) + np.abs(gain))
        return excess, ROUNDING * (size * sampled + np.abs(at))


@dataclasses.dataclass(frozen=True)
class SampledStep:
    """A group of equal sampled Gaussian steps as a step law; its rate may be 1."""

    group: StepGroup

    @property
    def count(self) -> int:
        """How many steps there are in the group."""
        return self.group.count

    @property
    def log_infinite(self) -> tuple[float, float]:
        """See `StepLaw`."""
        return -math.inf, -math.inf

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """See `StepLaw`. "remove": norms of order 1 + s have ‖1 − q + qX‖ ≤ 1 − q + q‖X‖ as well; "add": no loss is
        below log(1 − q)."""
        sigma, rate = self.group.sigma, self.group.rate
        out = gaussian_log_moments(s, 1.0 / sigma, rate)
        if rate == 1.0:
            return out
        if not remove:
            return np.asarray(np.minimum(out, -s * math.log1p(-rate)))
        norm = np.logaddexp(math.log1p(-rate), math.log(rate) + 0.5 * s / sigma**2)
        return np.asarray(np.minimum(out, (1.0 + s) * norm))

    def loss_range(self, reach: float) -> tuple[float, float]:
        """See `StepLaw`: from the minimum, where there is one."""
        return loss_range(self.group, reach)

    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> StepCells:
        """See `StepLaw`."""
        origin = _origin(self.group, spacing)
        return StepCells(self.group, Grid.within(self.loss_range(reach), fine, origin, spacing))

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `KnownMasses`."""
        z = _positions(edges, self.group)
        nu, hit = log_normal_masses(z), log_normal_masses(z - 1.0 / self.group.sigma)
        with np.errstate(divide="ignore"):
            return nu, np.logaddexp(np.log1p(-self.group.rate) + nu, math.log(self.group.rate) + hit)

    def out_of_reach(self, theta: float) -> AccuracyError:
        """See `StepLaw`."""
        return self.group.out_of_reach(theta)


def loss_range(group: StepGroup, reach: float) -> tuple[float, float]:
    """The losses within `reach` standard deviations of the means under ν and μ, from the minimum where there is one."""
    low, high = -reach, reach + 1.0 / group.sigma
    if group.rate == 1.0:
        return tuple(float(z / group.sigma - 0.5 / group.sigma**2) for z in (low, high))  # type: ignore[return-value]
    return group.minimum, float(group.term(np.array([high]))[0])


def _origin(group: StepGroup, spacing: float) -> float:
    """A point of the lattice: the mean loss of ν's mass around its median, where it may be piled up."""
    if group.rate == 1.0:
        return 0.0
    at = float(group.term(np.zeros(1))[0])
    for _ in range(4):
        edges = _positions(at + spacing * np.array([-0.5, 0.5]), group)
        nu, hit = (float(log_normal_masses(part)[0]) for part in (edges, edges - 1.0 / group.sigma))
        if not nu > -2.0:
            break  # spread over many cells
        at = math.log1p(group.rate * math.expm1(hit - nu))
    return at


def _positions(losses: np.ndarray, group: StepGroup) -> np.ndarray:
    """z at which the step's loss is each of these; −∞ below its minimum."""
    q = group.rate
    if q == 1.0:
        return np.asarray(group.sigma * losses + 0.5 / group.sigma)
    above = losses - group.minimum
    near = np.clip(above, 0.0, 30.0)
    with np.errstate(divide="ignore"):
        log_sampled = np.where(above > 30.0, above, np.log(np.expm1(near))) + (math.log1p(-q) - math.log(q))
    return np.asarray(group.sigma * log_sampled + 0.5 / group.sigma)
