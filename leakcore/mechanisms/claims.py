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
from leakcore.numerics import AtomLaw, Bounded, Bracket, ExactCurve, PrivacyLoss, Sides


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Claim(Mechanism):
    """A claim under whichever relation it was made.

    One under add-remove is one under replacement as well, of twice the distance: a row goes, and another comes.
    """

    _relations: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out", "replace")

    claimed_under: Adjacency | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.claimed_under is not None:
            relation = validate.one_of(*self._relations, claimed_under=self.claimed_under)
            object.__setattr__(self, "claimed_under", relation)

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """The relation that the claim was made under, and replacement where that is add-remove; where none is named,
        any one."""
        if self.claimed_under is None:
            return self._relations
        return ("add-remove", "replace") if self.claimed_under == "add-remove" else (self.claimed_under,)

    def steps(self, adjacency: Adjacency) -> int:
        """How many times the claim's own relation one of these is: 2 for replacement of an add-remove claim."""
        return 2 if self.claimed_under == "add-remove" and adjacency == "replace" else 1

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        """See `Mechanism`."""
        if self.claimed_under is None:
            return (f"the claim is read as one under {adjacency}: it names no relation",)
        if self.steps(adjacency) == 2:
            return ("a claim under add-remove, taken twice: replacing a row is removing one and adding another",)
        return ()

    def is_exact(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`."""
        return self.steps(adjacency) == 1


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
        return PrivacyLoss((), (self.steps(adjacency) * self.mu) ** 2)

    def is_exact(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`: Gaussian noise on a sum is twice as far from the third data set."""
        return True

    def sides(self, adjacency: Adjacency) -> Sides:
        """See `Mechanism`."""
        return gaussian_sides(PrivacyLoss((), (self.steps(adjacency) * self.mu) ** 2))

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
        reached: whether the mechanism may be that pair; False: it is known to leak less, so that nothing is known from
            below, as of Laplace noise by its ε alone.
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
    reached: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "reached", validate.boolean(reached=self.reached))
        object.__setattr__(self, "epsilon", validate.non_negative(epsilon=self.epsilon))
        object.__setattr__(self, "delta", validate.below_one(delta=self.delta))
        if self.epsilon > 1e5:
            raise ValueError(f"`epsilon` must be at most 1e5, got {self.epsilon:g}")

    def proof(self, adjacency: str | None = None) -> str:
        """See `Mechanism`."""
        self.relation(adjacency)
        return "the pair that dominates every (epsilon, delta)-private mechanism: Kairouz, Oh and Viswanath (2015)"

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        """See `Mechanism`."""
        notes = super().notes(adjacency)
        return notes if self.is_exact(adjacency) else (*notes, "interval: nothing is known from below")

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`."""
        return True

    def separation(self, adjacency: Adjacency) -> float:
        """See `Mechanism`."""
        return 0.0 if self.epsilon == self.delta == 0.0 else math.inf

    def curve(self, adjacency: Adjacency) -> Bounded:
        """See `Mechanism`."""
        curve = ClaimCurve(*self.under(adjacency))
        return curve if self.is_exact(adjacency) else Bracket(_nothing_known(), curve)

    def is_exact(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`. Taken twice, a claim allows less than randomised response of twice its ε."""
        return self.reached and self.steps(adjacency) == 1

    def under(self, adjacency: Adjacency) -> tuple[float, float]:
        """(ε, δ) of the relation: (2ε, (1 + e^ε)δ) where it is taken twice (Dwork and Roth 2014, Section 2.3)."""
        if self.steps(adjacency) == 1:
            return self.epsilon, self.delta
        delta = 0.0
        if self.delta > 0.0:
            delta = math.exp(min(math.log(self.delta) + float(np.logaddexp(0.0, self.epsilon)), 0.0)) * (1.0 + 1e-12)
        if delta >= 1.0:
            raise ValueError(
                f"`adjacency` must be 'add-remove' for {self!r}: taken twice, its delta is (1 + e^epsilon)*delta > 1"
            )
        return 2.0 * self.epsilon, delta

    def sides(self, adjacency: Adjacency) -> Sides:
        """See `Mechanism`."""
        epsilon, delta = self.under(adjacency)
        rest = math.log1p(-delta)
        more = rest - math.log1p(math.exp(-epsilon))
        less = more - epsilon
        lost = math.log(delta) if delta > 0.0 else -math.inf
        law = AtomLaw.of(np.array([more, less]), np.array([less, more]), (lost, lost), anchor=epsilon)
        return Sides((law,), (law,) if self.is_exact(adjacency) else ())

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


def _nothing_known() -> Bounded:
    """The curve of what leaks nothing, as a limit from below."""
    return ExactCurve(PrivacyLoss(()))
