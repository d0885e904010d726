"""Noise that is correlated from step to step: DP-FTRL, banded and buffered matrix mechanisms."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms.allocation import RandomAllocation
from leakcore.mechanisms.mechanism import Mechanism, gaussian_sides
from leakcore.mechanisms.participation import BallsInBins, CyclicPoisson, MinSeparation, Participation, sensitivity
from leakcore.mechanisms.poisson import Poisson, parse_noise
from leakcore.numerics import Bounded, Bracket, ExactCurve, LatticeCurve, PrivacyLoss, Sides, sides_of


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CorrelatedNoise(Mechanism):
    """What is released is Cx + σz: x_t the sum of step t's clipped gradients, z standard normal.

    `MinSeparation`: μ-GDP with μ = max_π ‖Σ_{t∈π} c_t‖/σ, c_t the columns of C. `CyclicPoisson`, C with β bands: ⌈T/β⌉
    Poisson steps at rate βq with noise σ/max‖c_t‖ (Choquette-Choo et al. 2023). `BallsInBins`, C ≥ 0: P = (1/b)ΣN(m_j,
    σ²I), Q = N(0, σ²I) with m_j = Σ_i c_{j+ib}, by its sampler; its exact limits come from the worst bin alone. C may
    have any shape: Gaussian noise may be rotated, so that only CᵀC counts (Denisov et al. 2022). Where limits cannot
    agree, as for most matrices with `MinSeparation`, the result is a bracket.

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
        if self.is_exact(adjacency):
            return notes
        how = self.participation
        if isinstance(how, MinSeparation):
            low, high = self._sensitivity
            return (*notes, f"sensitivity between {low:.6g} (a pattern that reaches it) and {high:.6g} (a bound)")
        if isinstance(how, CyclicPoisson):
            return (*notes, "interval: from the worst group of rows alone to every column as long as the longest")
        return (*notes, "interval: nothing is known from below")

    def is_exact(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`."""
        how = self.participation
        if isinstance(how, MinSeparation):
            low, high = self._sensitivity
            return high - low <= _SAME * high
        if isinstance(how, CyclicPoisson):
            return self._group == self._cyclic(how)
        return self.without_correlation() is not None

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        """See `Mechanism`: None where only limits are known."""
        how = self.participation
        if (independent := self.without_correlation()) is not None:
            return independent.steps_loss(adjacency)
        if not self.is_exact(adjacency):
            return None
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).steps_loss(adjacency)
        if isinstance(how, MinSeparation):
            return PrivacyLoss((), self.separation(adjacency) ** 2)
        return None

    def curve(self, adjacency: Adjacency) -> Bounded:
        """See `Mechanism`."""
        if (independent := self.without_correlation()) is not None:
            return independent.curve(adjacency)
        if isinstance(self.participation, BallsInBins) or self.is_exact(adjacency):
            return super().curve(adjacency)
        lower, upper = self._both_losses(adjacency)
        below = ExactCurve(lower) if len(lower.groups) < 2 else LatticeCurve(sides_of(lower))
        return Bracket(below, ExactCurve(upper))

    def sides(self, adjacency: Adjacency) -> Sides:
        """See `Mechanism`."""
        if (independent := self.without_correlation()) is not None:
            return independent.sides(adjacency)
        if isinstance(self.participation, BallsInBins):
            return Sides(gaussian_sides(PrivacyLoss((), self.separation(adjacency) ** 2)).upper, ())
        lower, upper = self._both_losses(adjacency)
        return Sides(gaussian_sides(upper).upper, gaussian_sides(lower).lower)

    def separation(self, adjacency: Adjacency) -> float:
        """See `Mechanism`: of rows whose steps are known."""
        how = self.participation
        if isinstance(how, MinSeparation):
            return self._sensitivity[1] / self.noise_multiplier
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).separation(adjacency)
        return float(_norms(self._means(how)).max()) * (1.0 + 1e-12) / self.noise_multiplier

    def with_noise(self, noise_multiplier: float) -> Mechanism:
        """See `Mechanism`. The sensitivity is the same, and takes seconds for a large matrix."""
        changed = super().with_noise(noise_multiplier)
        if isinstance(self.participation, MinSeparation):
            changed.__dict__["_sensitivity"] = self._sensitivity
        return changed

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """See `Mechanism`: of balls in bins by the native kernel, of sampled steps by theirs."""
        from leakcore import kernels

        how = self.participation
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).sample_log_ratio(num_samples, under, seed, first_sample)
        if isinstance(how, MinSeparation):
            mu = self.separation(self.adjacency)
            if mu == 0.0:
                return np.zeros(num_samples)
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

    @functools.cached_property
    def _sensitivity(self) -> tuple[float, float]:
        """(low, high), of `MinSeparation`."""
        assert isinstance(self.participation, MinSeparation)
        return sensitivity(self.matrix, self.participation)

    @functools.cached_property
    def _group(self) -> Poisson:
        """`CyclicPoisson`: what rows of the group with the longest columns run, which is nothing but Poisson steps,
        since columns of one group share no row of the matrix. It equals `_cyclic` where the bound is reached."""
        how = self.participation
        assert isinstance(how, CyclicPoisson)
        whole, bands = self._cyclic(how), self.bands
        if whole.steps == 0:
            return whole
        norms = _norms(self.matrix)
        groups = [norms[first::bands] for first in range(bands)]
        longest = max(groups, key=lambda lengths: float((lengths * lengths).sum()))
        if len(longest) == whole.steps and (longest >= norms.max() * (1.0 - _SAME)).all():
            return whole
        with np.errstate(divide="ignore"):
            return Poisson(self.noise_multiplier / longest, whole.sample_rate, len(longest))

    def _both_losses(self, adjacency: Adjacency) -> tuple[PrivacyLoss, PrivacyLoss]:
        """(one that the mechanism dominates, one that dominates it), not of balls in bins."""
        how = self.participation
        if isinstance(how, MinSeparation):
            low, high = (one / self.noise_multiplier for one in self._sensitivity)
            return PrivacyLoss((), low * low), PrivacyLoss((), high * high)
        assert isinstance(how, CyclicPoisson)
        lower, upper = self._group.steps_loss(adjacency), self._cyclic(how).steps_loss(adjacency)
        assert lower is not None
        assert upper is not None
        return lower, upper

    def _cyclic(self, how: CyclicPoisson) -> Poisson:
        bands, steps = self.bands, self.matrix.shape[1]
        longest = float(_norms(self.matrix).max())
        if longest == 0.0:
            return Poisson(math.inf, 0.0, 0)
        rate = min(bands * how.sample_rate, 1.0)
        return Poisson(self.noise_multiplier / longest, rate, -(-steps // bands))

    def _means(self, how: BallsInBins) -> np.ndarray:
        """m_j as columns."""
        rows, steps = self.matrix.shape
        return np.asarray(self.matrix.reshape(rows, steps // how.batches, how.batches).sum(axis=1))


_SAME = 1e-9
"""Relative difference of two limits of a sensitivity that rounding alone makes."""


def _norms(matrix: np.ndarray) -> np.ndarray:
    """Norms of the columns; their squares neither overflow nor vanish."""
    scale = float(np.abs(matrix).max())
    return scale * np.linalg.norm(matrix / scale, axis=0) if scale > 0.0 else np.zeros(matrix.shape[1])
