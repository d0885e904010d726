"""Noise that is correlated from step to step: DP-FTRL, banded and buffered matrix mechanisms."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms.allocation import RandomAllocation
from leakcore.mechanisms.mechanism import Mechanism, gaussian_sides
from leakcore.mechanisms.participation import BallsInBins, CyclicPoisson, MinSeparation, Participation, sensitivity
from leakcore.mechanisms.poisson import Poisson, parse_noise
from leakcore.numerics import PrivacyLoss, Sides


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CorrelatedNoise(Mechanism):
    """What is released is Cx + σz: x_t the sum of step t's clipped gradients, z standard normal.

    `MinSeparation`: μ-GDP with μ = max_π ‖Σ_{t∈π} c_t‖/σ, c_t the columns of C. `CyclicPoisson`, C with β bands: ⌈T/β⌉
    Poisson steps at rate βq with noise σ/max‖c_t‖ (Choquette-Choo et al. 2023). `BallsInBins`, C ≥ 0: P = (1/b)ΣN(m_j,
    σ²I), Q = N(0, σ²I) with m_j = Σ_i c_{j+ib}, by its sampler; its exact limits come from the worst bin alone.

    Attributes:
        matrix: C, (rows, T), as `square_root`, `toeplitz`, `blt` and `tree` make it, or any other.
        noise_multiplier: σ in (0, ∞).
        participation: a `MinSeparation`, a `CyclicPoisson` or a `BallsInBins`.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> matrix = mechanisms.square_root(100, bands=10)
        >>> often = mechanisms.MinSeparation(separation=20, participations=5)
        >>> training = mechanisms.CorrelatedNoise(matrix, 4.0, often)
        >>> f"{accounting.epsilon(training, delta=1e-5).value:.3f}"
        '3.138'
    """

    _relations: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out")

    matrix: np.ndarray
    noise_multiplier: float
    participation: Participation

    def __post_init__(self) -> None:
        matrix = validate.real_array("finite", np.isfinite, matrix=self.matrix)
        if matrix.ndim != 2 or matrix.size == 0:
            raise ValueError(f"`matrix` must have two dimensions and an entry, got shape {matrix.shape}")
        validate.instance(MinSeparation, CyclicPoisson, BallsInBins, participation=self.participation)
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "noise_multiplier", parse_noise(self.noise_multiplier))
        how = self.participation
        if isinstance(how, CyclicPoisson) and (bands := self.bands) * how.sample_rate > 1.0 + 1e-12:
            raise ValueError(f"`participation` must have sample_rate at most 1/{bands} with {bands} bands, got {how!r}")
        if isinstance(how, BallsInBins):
            if matrix.shape[1] % how.batches:
                raise ValueError(f"`participation` must have batches that divide {matrix.shape[1]} steps, got {how!r}")
            if (matrix < 0.0).any():
                raise ValueError("`matrix` must not have negative entries with BallsInBins")

    @property
    def bands(self) -> int:
        """β: columns at least so far apart share no row."""
        rows = [np.flatnonzero(row) for row in self.matrix]
        return max((int(at[-1] - at[0]) + 1 for at in rows if len(at)), default=1)

    def proof(self, adjacency: str | None = None) -> str:
        """See `Mechanism`."""
        self.relation(adjacency)
        return {
            MinSeparation: "a Gaussian mechanism of the matrix's sensitivity: Choquette-Choo et al. (2023)",
            CyclicPoisson: "banded matrix, cyclic Poisson sampling: Choquette-Choo et al. (2023)",
            BallsInBins: "balls in bins with correlated noise: Chua et al. (2025), Choquette-Choo et al. (2024)",
        }[type(self.participation)]

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        """See `Mechanism`."""
        notes = (f"noise correlated by a matrix; {self.participation!r}",)
        return notes if self.is_exact(adjacency) else (*notes, "interval: nothing is known from below")

    def is_exact(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`."""
        return not isinstance(self.participation, BallsInBins) or self.without_correlation() is not None

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        """See `Mechanism`."""
        how = self.participation
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).steps_loss(adjacency)
        if isinstance(how, MinSeparation):
            return PrivacyLoss((), self.separation(adjacency) ** 2)
        return None

    def sides(self, adjacency: Adjacency) -> Sides:
        """See `Mechanism`."""
        if (independent := self.without_correlation()) is not None:
            return independent.sides(adjacency)
        loss = self.steps_loss(adjacency)
        upper = gaussian_sides(loss if loss is not None else PrivacyLoss((), self.separation(adjacency) ** 2)).upper
        return Sides(upper, upper if loss is not None else ())

    def separation(self, adjacency: Adjacency) -> float:
        """See `Mechanism`: of rows whose steps are known."""
        how = self.participation
        if isinstance(how, MinSeparation):
            return sensitivity(self.matrix, how)[1] / self.noise_multiplier
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).separation(adjacency)
        return float(np.linalg.norm(self._means(how), axis=0).max()) * (1.0 + 1e-12) / self.noise_multiplier

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """See `Mechanism`: of balls in bins by the native kernel, of sampled steps by theirs."""
        from leakcore import kernels

        how = self.participation
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).sample_log_ratio(num_samples, under, seed, first_sample)
        if isinstance(how, MinSeparation):
            mu = self.separation(self.adjacency)
            return Poisson(1.0 / mu, 1.0, 1).sample_log_ratio(num_samples, under, seed, first_sample)
        # G = MᵀM = RᵀR, without the rounding of a square.
        factor = np.asarray(np.linalg.qr(self._means(how), mode="r")).T
        pair = kernels.Allocation(self.noise_multiplier, how.batches, factor=factor)
        out: np.ndarray = kernels.allocation_log_ratio(
            pair, num_samples, under=under, seed=seed, first_sample=first_sample
        )
        return out

    def without_correlation(self) -> RandomAllocation | None:
        """Balls in bins with independent noise, where the matrix is the identity; else None."""
        how, steps = self.participation, self.matrix.shape[1]
        if not isinstance(how, BallsInBins) or not np.array_equal(self.matrix, np.eye(steps)):
            return None
        return RandomAllocation(self.noise_multiplier, how.batches, steps // how.batches, fixed=True)

    def _cyclic(self, how: CyclicPoisson) -> Poisson:
        bands, steps = self.bands, self.matrix.shape[1]
        longest = float(np.linalg.norm(self.matrix, axis=0).max())
        if longest == 0.0:
            return Poisson(math.inf, 0.0, 0)
        rate = min(bands * how.sample_rate, 1.0)
        return Poisson(self.noise_multiplier / longest, rate, -(-steps // bands))

    def _means(self, how: BallsInBins) -> np.ndarray:
        """m_j as columns."""
        rows, steps = self.matrix.shape
        return np.asarray(self.matrix.reshape(rows, steps // how.batches, how.batches).sum(axis=1))
