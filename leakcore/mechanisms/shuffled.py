"""Fixed or shuffled batches: every row is in exactly one batch of each epoch."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms.claims import GDP
from leakcore.mechanisms.mechanism import Mechanism
from leakcore.mechanisms.poisson import Poisson
from leakcore.numerics import Bounded, Bracket, DominatingLaws, LatticeCurve, ShuffledLowerStep


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Shuffled(Mechanism):
    """Each epoch cuts the rows, shuffled or not, into b batches (a DataLoader with `shuffle=True` or `False`).

    No pair is known that describes it exactly. Upper, whatever the order: √E/σ-GDP over E epochs (2√E/σ under
    replacement), since a row is in one batch of each epoch. Lower, for a fresh permutation in each epoch: the pair of
    Chua et al. (2024), reduced to the largest of b numbers, composed E times. In the zero-out relation the row becomes
    one whose gradient is 0, so that the sizes of the batches tell nothing.

    Attributes:
        noise_multiplier: σ in (0, ∞).
        batches: b ≥ 1, batches of an epoch.
        epochs: E ≥ 1.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> spent = accounting.epsilon(mechanisms.Shuffled(1.0, 100, 1), delta=1e-5)
        >>> low, high = spent.interval
        >>> f"{low:.2f} to {high:.2f}; as if sampled by Poisson: {spent.poisson_claim:.2f}"
        '4.06 to 4.38; as if sampled by Poisson: 0.72'
    """

    _relations: ClassVar[tuple[Adjacency, ...]] = ("zero-out", "replace")

    noise_multiplier: float
    batches: int
    epochs: int

    def __post_init__(self) -> None:
        self._set(
            noise_multiplier=validate.positive(noise_multiplier=self.noise_multiplier),
            batches=validate.integer(1, batches=self.batches),
            epochs=validate.integer(1, epochs=self.epochs),
        )

    @property
    def poisson_claim(self) -> Poisson:
        return Poisson(self.noise_multiplier, 1.0 / self.batches, self.batches * self.epochs)

    def upper(self, adjacency: str | None = None) -> GDP:
        """What the mechanism is at most, whatever the order of the rows."""
        apart = 2.0 if self.relation(adjacency) == "replace" else 1.0
        return GDP(apart * math.sqrt(self.epochs) / self.noise_multiplier)

    def proof(self, adjacency: str | None = None) -> str:
        self.relation(adjacency)
        return (
            "upper: a row is in one batch of each epoch, a Gaussian mechanism (Dong, Roth and Su 2022); lower, for a "
            "fresh permutation in each epoch: Chua et al. (2024, ICML; 2024, NeurIPS)"
        )

    def is_exact(self, adjacency: Adjacency) -> bool:
        return self.batches == 1

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        lower = ShuffledLowerStep(self.noise_multiplier, self.batches, count=self.epochs)
        return DominatingLaws(self.upper(adjacency).dominating_laws("add-remove").upper, (lower,))

    def curve(self, adjacency: Adjacency) -> Bounded:
        upper = self.upper(adjacency).curve("add-remove")
        if self.batches == 1:
            return upper
        lower = self.dominating_laws(adjacency).lower
        return Bracket(LatticeCurve(DominatingLaws(lower, lower)), upper)

    def separation(self, adjacency: Adjacency) -> float:
        return self.upper(adjacency).mu

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        return (
            "each row is in one batch of each epoch",
            "interval: from a lower bound for fresh permutations to the upper bound, which holds for any order",
        )

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        # The upper pair.
        return self.upper().sample_log_ratio(num_samples, under, seed, first_sample)
