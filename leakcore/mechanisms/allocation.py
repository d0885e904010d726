"""Random allocation, also called balls and bins: every row draws the batches that it joins."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms.mechanism import Mechanism, gaussian_laws
from leakcore.numerics import (
    AllocationStep,
    Between,
    Bounded,
    Capped,
    DominatingLaws,
    PrivacyLoss,
    SampledStep,
    StepGroup,
    StepLaw,
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RandomAllocation(Mechanism):
    """In each epoch each row joins k of the b batches, all choices alike, independently of other rows.

    One epoch, k = 1: P = (1/b)Σ_t N(e_t, σ²I), Q = N(0, σ²I), L = log (1/b)Σ_t exp((x_t − ½)/σ²), which dominates in
    both directions (Chua et al. 2025; Feldman and Shenfeld 2025).

    k > 1: cut the b batches at random into k groups, r = b mod k of them with ⌊b/k⌋ + 1 batches, the others with ⌊b/k⌋,
    and draw one batch from each group. The k batches are then a uniform choice of k of b, so that P is a mean over the
    cuts of pairs with the same Q, each of them k independent allocations. Profiles are jointly convex in (P, Q): an
    epoch leaks no more than r epochs with one of ⌊b/k⌋ + 1 batches and k − r with one of ⌊b/k⌋ (Feldman and Shenfeld
    2025; arXiv 2602.17284). The sampler draws the pair itself. Likewise one of b batches leaks no more than one of any
    smaller number, which stands for b above 131,072.

    Attributes:
        noise_multiplier: σ in (0, ∞).
        batches: b ≥ 1, batches of an epoch.
        epochs: E ≥ 1.
        k: how many batches a row joins in an epoch, 1 to b.
        fixed: whether the choice of the first epoch holds for all.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> training = mechanisms.RandomAllocation(1.0, batches=100, epochs=1)
        >>> shuffled = mechanisms.Shuffled(1.0, batches=100, epochs=1)
        >>> accounting.epsilon(training, delta=1e-5).value < accounting.epsilon(shuffled, delta=1e-5).interval[0]
        True
    """

    _relations: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out", "replace")

    noise_multiplier: float
    batches: int
    epochs: int
    k: int = 1
    fixed: bool = False

    def __post_init__(self) -> None:
        batches = validate.integer(1, batches=self.batches)
        self._set(
            noise_multiplier=validate.positive(noise_multiplier=self.noise_multiplier),
            batches=batches,
            epochs=validate.integer(1, epochs=self.epochs),
            k=validate.integer(1, batches, k=self.k),
            fixed=validate.boolean(fixed=self.fixed),
        )

    def proof(self, adjacency: str | None = None) -> str:
        one = "random allocation: Chua et al. (2025), Feldman and Shenfeld (2025)"
        one += "; k batches as one of each of k groups of them" if 1 < self.k < self.batches else ""
        if self.relation(adjacency) != "replace":
            return one
        return f"{one}; replacement through the data set between, not tight"

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        often = "in the first epoch, for all epochs" if self.fixed else "in each epoch"
        notes = (f"each row draws {self.k} of {self.batches} batches {often}",)
        return notes if self.is_exact(adjacency) else (*notes, "interval: not tight from below")

    def is_exact(self, adjacency: Adjacency) -> bool:
        return self.k == self.batches or (
            self.k == 1 and adjacency != "replace" and self.batches <= AllocationStep.MOST_BATCHES
        )

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        # A row that is in all batches is in one Gaussian release.
        return PrivacyLoss((), self.separation(adjacency) ** 2) if self.k == self.batches else None

    def separation(self, adjacency: Adjacency) -> float:
        # As if the batches of each row were known.
        apart = 2.0 if adjacency == "replace" else 1.0
        return apart * math.sqrt(self.k * self.epochs) / self.noise_multiplier

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        if adjacency == "replace":
            raise ValueError("`adjacency` must be 'add-remove' or 'zero-out' where random allocation is composed")
        loss = self.steps_loss(adjacency)
        if loss is not None:
            return gaussian_laws(loss)
        sigma, epochs = self._epoch
        size, larger = divmod(self.batches, self.k)
        groups = ((size, self.k - larger), (size + 1, larger))
        laws = tuple(_one_of(size, sigma, count * epochs) for size, count in groups if count)
        return DominatingLaws(laws, laws if self.is_exact(adjacency) else ())

    def curve(self, adjacency: Adjacency) -> Bounded:
        if adjacency == "replace" and self.k < self.batches:
            laws = self.dominating_laws("add-remove").upper
            return Capped(Between(self.lattice_curve("add-remove"), laws), self.separation(adjacency))
        return super().curve(adjacency)

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        # The add-remove pair for every k, by the native kernel.
        from leakcore import kernels

        sigma, epochs = self._epoch
        pair = kernels.Allocation(sigma, self.batches, epochs=epochs, k=self.k)
        out: np.ndarray = kernels.allocation_log_ratio(
            pair, num_samples, under=under, seed=seed, first_sample=first_sample
        )
        return out

    @property
    def _epoch(self) -> tuple[float, int]:
        """(noise multiplier of one epoch's sum, how many epochs draw their own batches)."""
        if self.fixed:
            return self.noise_multiplier / math.sqrt(self.epochs), 1
        return self.noise_multiplier, self.epochs


def _one_of(batches: int, sigma: float, count: int) -> StepLaw:
    """`count` epochs in which a row joins one of so many batches, or one of the most that there is a law for."""
    if batches == 1:
        return SampledStep(StepGroup(sigma, 1.0, count))
    return AllocationStep(sigma, min(batches, AllocationStep.MOST_BATCHES), count)
