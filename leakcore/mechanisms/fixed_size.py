"""Batches of a fixed size, drawn again in each step without replacement."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Adjacency, Number
from leakcore.mechanisms.mechanism import Mechanism, gaussian_laws
from leakcore.mechanisms.poisson import FullBatch
from leakcore.numerics import (
    Bounded,
    Bracket,
    DominatingLaws,
    EitherWay,
    ExactCurve,
    FixedBatchStep,
    LatticeCurve,
    PrivacyLoss,
    dominating_laws,
    parse_schedule,
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FixedSize(Mechanism):
    """Each step's batch is a fresh uniform subset of B of the n rows; one row is replaced.

    With γ = B/n, Q = N(0, σ²) and P = N(2, σ²) a step's profile is at most that of ((1−γ)Q + γP, Q) for ε ≥ 0, and at
    most that of (P, (1−γ)P + γQ) for ε < 0. This pair has exactly that profile. docs/explanation/bounds.md derives it.
    One step reaches it. No pair of neighbours reaches both halves at once, so that for several steps it is an upper
    limit; the lower one is of neighbours whose other rows all have one of the two gradients: Poisson steps of σ/2, γ.

    Attributes:
        noise_multiplier: σ_t in (0, ∞); a number, or an array of length `steps`.
        batch_size: B, 1 to n.
        dataset_size: n.
        steps: T ≥ 0.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> training = mechanisms.FixedSize(1.0, 10, 1000, 100)
        >>> spent = accounting.epsilon(training, delta=1e-5)
        >>> f"{spent.value:.3f}", spent.adjacency
        ('6.641', 'replace')
    """

    _relations: ClassVar[tuple[Adjacency, ...]] = ("replace",)

    noise_multiplier: Number
    batch_size: int
    dataset_size: int
    steps: int

    def __post_init__(self) -> None:
        total = validate.integer(1, dataset_size=self.dataset_size)
        size = validate.integer(1, batch_size=self.batch_size)
        if size > total:
            raise ValueError(f"`batch_size` must be at most dataset_size={total}, got {size}")
        sigma, _, count = parse_schedule(self.noise_multiplier, 1.0, self.steps)
        if (sigma <= 0.0).any() or np.isinf(sigma).any():
            raise ValueError(f"`noise_multiplier` must be above 0 and finite, got {self.noise_multiplier!r}")
        noise = float(sigma) if sigma.ndim == 0 else sigma
        self._set(noise_multiplier=noise, batch_size=size, dataset_size=total, steps=count)

    def proof(self, adjacency: str | None = None) -> str:
        self.relation(adjacency)
        return (
            "batches of a fixed size without replacement: Balle, Barthe and Gaboardi (2018), Theorem 9; Zhu, Dong and "
            "Wang (2022), Theorem 10 and Proposition 30"
        )

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        if self.batch_size < self.dataset_size:
            return None
        return FullBatch(self.noise_multiplier, self.steps).steps_loss("replace")

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        loss = self.steps_loss(adjacency)
        if loss is not None:
            return gaussian_laws(loss)
        return DominatingLaws(self._laws(), dominating_laws(self._reached()).lower)

    def curve(self, adjacency: Adjacency) -> Bounded:
        if self.steps_loss(adjacency) is not None:
            return super().curve(adjacency)
        upper = LatticeCurve(DominatingLaws(self._laws(), self._laws()))
        if self.steps <= 1:
            return upper
        loss = self._reached()
        if len(loss.groups) == 1:
            return Bracket(EitherWay(ExactCurve(loss)), upper)
        return Bracket(LatticeCurve(dominating_laws(loss)), upper)

    def is_exact(self, adjacency: Adjacency) -> bool:
        return self.steps <= 1 or self.batch_size == self.dataset_size

    def is_exact_composed(self, adjacency: Adjacency) -> bool:
        return self.steps == 0 or self.batch_size == self.dataset_size

    def _laws(self) -> tuple[FixedBatchStep, ...]:
        sigma, counts = np.unique(np.asarray(self.noise_multiplier), return_counts=True)
        counts = counts if np.ndim(self.noise_multiplier) else np.array([self.steps])
        rate = self.batch_size / self.dataset_size
        return tuple(FixedBatchStep(float(s), rate, count=int(c)) for s, c in zip(sigma, counts, strict=True) if c > 0)

    def _reached(self) -> PrivacyLoss:
        """((1−γ)Q + γP, Q) in every step: the other rows' gradients are all that of the row that goes."""
        sigma, rate = 0.5 * np.asarray(self.noise_multiplier), np.asarray(self.batch_size / self.dataset_size)
        return PrivacyLoss.of_steps(sigma, rate, self.steps)

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        return True

    def separation(self, adjacency: Adjacency) -> float:
        return FullBatch(self.noise_multiplier, self.steps).separation("replace")

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        notes = ("batches of a fixed size, drawn again in each step without replacement; independent steps",)
        if self.is_exact(adjacency):
            return notes
        return (*notes, "interval: from an attacker whose neighbours are fixed to an upper bound for several steps")

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:

        sigma = np.broadcast_to(np.asarray(self.noise_multiplier, dtype=np.float64), (self.steps,))
        rate = np.full(self.steps, self.batch_size / self.dataset_size)
        return sample_losses(sigma, rate, num_samples, under, seed, first_sample)


_CELLS = 1 << 21
"""Uniforms in memory at a time. A sample is a function of its number alone, so this changes no result."""
_MAX_STEPS = 1 << 22
"""Most steps: the uniforms of one sample are in memory together, half a gigabyte of arrays."""
_SIDES = ("null", "alternative")


def sample_losses(
    sigma: np.ndarray, rate: np.ndarray, num_samples: int, under: str, seed: int, first_sample: int
) -> np.ndarray:
    """(num_samples,) float64: log μ/ν of samples first_sample, … of steps with these σ_t and γ_t. A step takes 64
    random bits. ValueError for more than 2²² steps: the uniforms of one sample are in memory together."""
    from leakcore import kernels

    side = validate.one_of(*_SIDES, under=under)
    steps = validate.integer(0, _MAX_STEPS, steps=len(rate))
    out = np.zeros(num_samples)
    if steps == 0:
        return out
    rows = max(1, _CELLS // (2 * steps))
    for start in range(0, num_samples, rows):
        count = min(rows, num_samples - start)
        words = kernels.uniform(
            (count, 2 * steps),
            seed=seed,
            purpose=kernels.Stream.FIXED_BATCH,
            step=_SIDES.index(side),
            first_row=first_sample + start,
        )
        uniform = words[:, :steps] - 2.0**-33 + 2.0**-32 * words[:, steps:]
        out[start : start + count] = _losses(uniform, sigma, rate).sum(axis=1)
    return out if side == "alternative" else -out


def _losses(uniform: np.ndarray, sigma: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """L under μ by inversion, piece by piece: where x > 1 of Q and of P, where x < 1 of P, and the rest."""
    far, near = special.ndtr(-1.0 / sigma), special.ndtr(1.0 / sigma)
    ends = np.cumsum([(1.0 - rate) * far, rate * near, far], axis=0)
    out = np.zeros_like(uniform)
    for piece, (centre, mass, sign) in enumerate(((0.0, far, 1.0), (2.0, near, 1.0), (2.0, far, -1.0))):
        start = ends[piece - 1] if piece else np.zeros_like(rate)
        width = ends[piece] - start
        inside = (uniform >= start) & (uniform < ends[piece])
        row, column = np.nonzero(inside)
        share = np.clip((uniform[row, column] - start[column]) / width[column], 2.0**-70, 1.0)
        x = centre - sign * sigma[column] * special.ndtri(share * mass[column])
        loss = sign * 2.0 * (x - 1.0) / sigma[column] ** 2
        q = rate[column]
        with np.errstate(divide="ignore"):
            log_rest = np.log1p(-q)
        out[row, column] = sign * np.maximum(np.logaddexp(log_rest, np.log(q) + loss), 0.0)
    return out
