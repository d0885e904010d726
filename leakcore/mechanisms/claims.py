"""Bare claims: what is known of a mechanism is a privacy parameter."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms.claim_curve import ClaimCurve
from leakcore.mechanisms.mechanism import Mechanism, gaussian_sides
from leakcore.numerics import AtomLaw, Bounded, PrivacyLoss, Sides


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Claim(Mechanism):
    """A claim under whichever relation it was made."""

    _relations: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out", "replace")

    claimed_under: Adjacency | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.claimed_under is not None:
            relation = validate.one_of(*self._relations, claimed_under=self.claimed_under)
            object.__setattr__(self, "claimed_under", relation)

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """The relation that the claim was made under; where none is named, any one."""
        return self._relations if self.claimed_under is None else (self.claimed_under,)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GDP(Claim):
    """μ-Gaussian differential privacy: no easier to attack than telling N(0, 1) from N(μ, 1).

    Attributes:
        mu: μ in [0, ∞).
        claimed_under: the neighbouring relation; None: any that is asked for.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> f"{accounting.epsilon(mechanisms.GDP(1.0), delta=1e-5).value:.3f}"
        '4.377'
    """

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "mu", validate.non_negative(mu=self.mu))

    def proof(self, adjacency: str | None = None) -> str:
        """See `Mechanism`."""
        self.relation(adjacency)
        return f"the claim of {self.mu:g}-GDP (Dong, Roth and Su 2022)"

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        """See `Mechanism`."""
        return PrivacyLoss((), self.mu * self.mu)

    def sides(self, adjacency: Adjacency) -> Sides:
        """See `Mechanism`."""
        return gaussian_sides(PrivacyLoss((), self.mu * self.mu))

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """See `Mechanism`."""
        from leakcore import kernels

        if self.mu == 0.0:
            return np.zeros(num_samples)
        out: np.ndarray = kernels.mixture_log_ratio(
            num_samples,
            noise_multiplier=1.0 / self.mu,
            sample_rate=1.0,
            steps=1,
            under=under,
            seed=seed,
            first_sample=first_sample,
        )
        return out


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ApproximateDP(Claim):
    """(ε, δ)-differential privacy: the pair of Kairouz, Oh and Viswanath (2015), which dominates every such mechanism.

    With probability δ all is revealed; else randomised response with odds e^ε.

    Attributes:
        epsilon: ε in [0, ∞).
        delta: δ in [0, 1).
        claimed_under: the neighbouring relation; None: any that is asked for.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import bounds, mechanisms
        >>> bound = bounds.reconstruction(mechanisms.ApproximateDP(1.0, 1e-5), kappa=0.1)
        >>> f"{bound.value:.4f}"  # e·0.1 + 1e-5
        '0.2718'
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "epsilon", validate.non_negative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", validate.below_one(delta=self.delta))
        if self.epsilon > 1e5:
            raise ValueError(f"`epsilon` must be at most 1e5, got {self.epsilon:g}")

    def proof(self, adjacency: str | None = None) -> str:
        """See `Mechanism`."""
        self.relation(adjacency)
        return "the pair that dominates every (epsilon, delta)-private mechanism: Kairouz, Oh and Viswanath (2015)"

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`."""
        return True

    def separation(self, adjacency: Adjacency) -> float:
        """See `Mechanism`."""
        return 0.0 if self.epsilon == self.delta == 0.0 else math.inf

    def curve(self, adjacency: Adjacency) -> Bounded:
        """See `Mechanism`."""
        return ClaimCurve(self.epsilon, self.delta)

    def sides(self, adjacency: Adjacency) -> Sides:
        """See `Mechanism`."""
        rest = math.log1p(-self.delta)
        more = rest - math.log1p(math.exp(-self.epsilon))
        less = more - self.epsilon
        lost = math.log(self.delta) if self.delta > 0.0 else -math.inf
        law = AtomLaw.of(np.array([more, less]), np.array([less, more]), (lost, lost), anchor=self.epsilon)
        return Sides((law,), (law,))

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """See `Mechanism`; ±∞ where all is revealed."""
        from leakcore.kernels import Stream, uniform

        side = 1.0 if validate.one_of("null", "alternative", under=under) == "alternative" else -1.0
        shape, step = (num_samples, 1), int(side > 0)
        draws = uniform(shape, seed=seed, purpose=Stream.CLAIMED_PAIR, step=step, first_row=first_sample)[:, 0]
        revealed = draws < self.delta
        likely = draws < self.delta + (1.0 - self.delta) / (1.0 + math.exp(-self.epsilon))
        out: Any = np.where(revealed, math.inf, np.where(likely, self.epsilon, -self.epsilon))
        return np.asarray(side * out)
