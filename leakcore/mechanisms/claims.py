"""Bare claims, a privacy parameter and nothing else: GDP, (ε, δ), zCDP; and what events of dp-accounting describe."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms.fixed_size import FixedSize
from leakcore.mechanisms.mechanism import Composition, Mechanism, gaussian_laws
from leakcore.mechanisms.poisson import FullBatch, Poisson
from leakcore.numerics import AtomLaw, Bounded, Bracket, DominatingLaws, ExactCurve, Precision, PrivacyLoss


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Claim(Mechanism):
    """A claim under whichever relation it was made. One under add-remove is one under replacement as well, of twice the
    distance: a row goes, and another comes."""

    _relations: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out", "replace")

    claimed_under: Adjacency | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.claimed_under is not None:
            relation = validate.one_of(*self._relations, claimed_under=self.claimed_under)
            self._set(claimed_under=relation)

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
        if self.claimed_under is None:
            return (f"the claim is read as one under {adjacency}: it names no relation",)
        if self.steps(adjacency) == 2:
            return ("a claim under add-remove, taken twice: replacing a row is removing one and adding another",)
        return ()

    def is_exact(self, adjacency: Adjacency) -> bool:
        return self.steps(adjacency) == 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GDP(Claim):
    """μ-Gaussian differential privacy: no easier to attack than telling N(0, 1) from N(μ, 1).

    Attributes:
        mu: μ in [0, ∞).
        claimed_under: the neighbouring relation; None: any that is asked for.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> f"{accounting.epsilon(mechanisms.GDP(1.0), delta=1e-5).value:.3f}"
        '4.377'
    """

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(mu=validate.non_negative(mu=self.mu))

    def proof(self, adjacency: str | None = None) -> str:
        self.relation(adjacency)
        return f"the claim of {self.mu:g}-GDP (Dong, Roth and Su 2022)"

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        return PrivacyLoss((), (self.steps(adjacency) * self.mu) ** 2)

    def is_exact(self, adjacency: Adjacency) -> bool:
        # Gaussian noise on a sum is twice as far from the third data set.
        return True

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        return gaussian_laws(PrivacyLoss((), (self.steps(adjacency) * self.mu) ** 2))

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
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
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
        self._set(reached=validate.boolean(reached=self.reached))
        self._set(epsilon=validate.non_negative(epsilon=self.epsilon))
        self._set(delta=validate.below_one(delta=self.delta))
        if self.epsilon > 1e5:
            raise ValueError(f"`epsilon` must be at most 1e5, got {self.epsilon:g}")

    def proof(self, adjacency: str | None = None) -> str:
        self.relation(adjacency)
        return "the pair that dominates every (epsilon, delta)-private mechanism: Kairouz, Oh and Viswanath (2015)"

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        notes = super().notes(adjacency)
        return notes if self.is_exact(adjacency) else (*notes, "interval: nothing is known from below")

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        return True

    def separation(self, adjacency: Adjacency) -> float:
        return 0.0 if self.epsilon == self.delta == 0.0 else math.inf

    def curve(self, adjacency: Adjacency) -> Bounded:
        curve = ClaimCurve(*self.under(adjacency))
        # Nothing is known from below: the curve of what leaks nothing.
        return curve if self.is_exact(adjacency) else Bracket(ExactCurve(PrivacyLoss(())), curve)

    def is_exact(self, adjacency: Adjacency) -> bool:
        # Taken twice, a claim allows less than randomised response of twice its ε.
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

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        epsilon, delta = self.under(adjacency)
        rest = math.log1p(-delta)
        more = rest - math.log1p(math.exp(-epsilon))
        less = more - epsilon
        lost = math.log(delta) if delta > 0.0 else -math.inf
        law = AtomLaw.of(np.array([more, less]), np.array([less, more]), (lost, lost), anchor=epsilon)
        return DominatingLaws((law,), (law,) if self.is_exact(adjacency) else ())

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        # ±∞ where all is revealed.
        from leakcore.kernels import Stream, uniform

        side = 1.0 if validate.one_of("null", "alternative", under=under) == "alternative" else -1.0
        shape, step = (num_samples, 1), int(side > 0)
        draws = uniform(shape, seed=seed, purpose=Stream.CLAIMED_PAIR, step=step, first_row=first_sample)[:, 0]
        revealed = draws < self.delta
        likely = draws < self.delta + (1.0 - self.delta) / (1.0 + math.exp(-self.epsilon))
        out: Any = np.where(revealed, math.inf, np.where(likely, self.epsilon, -self.epsilon))
        return np.asarray(side * out)


_SLACK = 1e-14


@dataclasses.dataclass(frozen=True)
class ClaimCurve:
    """δ + (1 − δ)·(e^ε − e^x)_+/(1 + e^ε) at x ≥ −ε, the same in both directions; see `numerics.Bounded`."""

    bound: float
    slack: float

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision | None = None) -> tuple[float, float]:
        """(low, high) of the smallest x with δ(x) at most e^log_delta."""
        asked = math.exp(log_delta)
        if asked < self.slack:
            return math.inf, math.inf
        # e^x = e^ε − (asked − δ)(1 + e^ε)/(1 − δ), relative to e^ε.
        share = 1.0 - (asked - self.slack) * (1.0 + math.exp(-self.bound)) / (1.0 - self.slack)
        if share <= math.exp(-2.0 * self.bound):
            rest = (1.0 - asked) / (1.0 - self.slack)  # below −ε the profile is 1 − (1 − δ)e^x
            value = math.log(rest) if rest > 0.0 else -math.inf
        else:
            value = self.bound + math.log(share)
        return value - _SLACK * (1.0 + abs(value)), value + _SLACK * (1.0 + abs(value))

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision | None = None) -> tuple[float, float]:
        """(low, high) of log δ(x) at x = `epsilon`."""
        if epsilon < -self.bound:
            value = -math.expm1(epsilon) + self.slack * math.exp(epsilon)
        else:
            excess = max(-math.expm1(min(epsilon - self.bound, 0.0)), 0.0)
            value = self.slack + (1.0 - self.slack) * excess / (1.0 + math.exp(-self.bound))
        log_value = math.log(value) if value > 0.0 else -math.inf
        return log_value - _SLACK, min(log_value + _SLACK, 0.0)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """B_κ = min(e^ε·κ + δ, 1 − e^{−ε}(1 − δ − κ), 1)."""
        with np.errstate(divide="ignore", over="ignore"):
            steep = np.logaddexp(self.bound + log_kappa, np.log(self.slack))
            rest = np.maximum(-np.expm1(log_kappa) - self.slack, 0.0)
            flat = np.log1p(-np.minimum(math.exp(-self.bound) * rest, 1.0))
        value = np.minimum(np.minimum(steep, flat), 0.0)
        return value - _SLACK * (1.0 - value), np.minimum(value + _SLACK * (1.0 - value), 0.0)


_ORDERS = np.exp(np.linspace(-12.0, 18.0, 6001))
"""α − 1 of the orders that are tried; every order gives a bound."""
_POINTS = 4001
_ZCDP_SLACK = 1e-13


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ZCDP(Claim):
    """ρ-zero-concentrated differential privacy: Rényi divergence of order α at most αρ, for every α > 1.

    δ(ε) ≤ min over α of e^{(α−1)(αρ−ε)}/(α − 1)·(1 − 1/α)^α (Canonne, Kamath and Steinke 2020, Proposition 12). Nothing
    is known from below, so the limits are upper ones alone.

    Attributes:
        rho: ρ in [0, 1e4].
        claimed_under: the neighbouring relation; None: any that is asked for.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> f"{accounting.epsilon(mechanisms.ZCDP(0.5), delta=1e-5).value:.3f}"  # a Gaussian of the same rho: 4.377
        '4.728'
    """

    rho: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(rho=validate.non_negative(rho=self.rho))
        if self.rho > 1e4:
            raise ValueError(f"`rho` must be at most 1e4, got {self.rho:g}")

    def proof(self, adjacency: str | None = None) -> str:
        self.relation(adjacency)
        return "the claim of zero-concentrated privacy, converted by Canonne, Kamath and Steinke (2020), Proposition 12"

    def is_exact(self, adjacency: Adjacency) -> bool:
        return self.rho == 0.0

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        return True

    def separation(self, adjacency: Adjacency) -> float:
        # No Gaussian is known to leak as much.
        return 0.0 if self.rho == 0.0 else math.inf

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        return (*super().notes(adjacency), "interval: nothing is known from below")

    def curve(self, adjacency: Adjacency) -> Bounded:
        return ConvertedCurve(self.under(adjacency))

    def under(self, adjacency: Adjacency) -> float:
        """ρ of the relation: 4ρ where the claim is taken twice (Bun and Steinke 2016, Proposition 27)."""
        return self.steps(adjacency) ** 2 * self.rho

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        # The pair whose profile joins points of the converted one by chords.
        return DominatingLaws((_law(self.under(adjacency)),), ())


@dataclasses.dataclass(frozen=True)
class ConvertedCurve:
    """The converted profile, the same in both directions; see `numerics.Bounded`."""

    rho: float

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision | None = None) -> tuple[float, float]:
        """(−∞, the smallest ε that is proved)."""
        s = _ORDERS
        values = (1.0 + s) * self.rho + (_log_factor(s) - log_delta) / s
        high = float(np.min(values))
        return -math.inf, high + _ZCDP_SLACK * (1.0 + abs(high))

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision | None = None) -> tuple[float, float]:
        """(−∞, log δ(ε))."""
        return -math.inf, float(_log_profile(self.rho, np.array([epsilon]))[0])

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(log κ, the least of κe^ε + δ(ε) over a grid of ε)."""
        reach = 4.0 * self.rho + 40.0 * math.sqrt(self.rho) + 1.0
        x = np.linspace(-reach, reach, _POINTS)
        log_delta = _log_profile(self.rho, x)
        high = np.array([np.min(np.logaddexp(one + x, log_delta)) for one in log_kappa])
        return log_kappa, np.minimum(high, 0.0)


def _log_factor(s: np.ndarray) -> np.ndarray:
    """log[(1 − 1/α)^α/(α − 1)] at α = 1 + s."""
    return np.asarray((1.0 + s) * (np.log(s) - np.log1p(s)) - np.log(s))


def _log_profile(rho: float, epsilon: np.ndarray) -> np.ndarray:
    """log δ(ε), rounded up; below 0 from above it, δ(−a) = 1 − e^{−a} + e^{−a}δ(a)."""
    size = np.abs(epsilon)
    s = _ORDERS
    positive = np.array([np.min(s * ((1.0 + s) * rho - at) + _log_factor(s)) for at in size])
    positive = np.minimum(positive + _ZCDP_SLACK * (1.0 + np.abs(positive)), 0.0)
    with np.errstate(divide="ignore"):
        negative = np.log(np.minimum(-np.expm1(-size) + np.exp(-size + positive), 1.0))
    return np.asarray(np.where(epsilon >= 0.0, positive, negative))


def _law(rho: float) -> AtomLaw:
    """Atoms at the points whose chords are the convex profile below which the converted one lies at each point."""
    reach = min(2.0 * rho + 12.0 * math.sqrt(rho) + 1e-3, 600.0)
    x = np.linspace(-reach, reach, _POINTS)
    y, height = np.exp(x), np.exp(_log_profile(rho, x))
    # The lower hull of the points, from (0, 1): any convex function through or below them that is a profile's bound
    # at the points alone may replace it, since the profile itself is convex.
    hull = [(0.0, 1.0, -math.inf)]
    for point in zip(y.tolist(), height.tolist(), x.tolist(), strict=True):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    slopes = [max(min(_slope(a, b), 0.0), -1.0) for a, b in itertools.pairwise(hull)] + [0.0]
    nu = np.diff(np.array(slopes))
    losses = np.array([point[2] for point in hull[1:]])
    with np.errstate(divide="ignore"):
        log_nu = np.log(np.maximum(nu, 0.0))
        lost = math.log(max(hull[-1][1], 1e-300)), math.log(max(1.0 + slopes[0], 1e-300))
    return AtomLaw.of(log_nu, log_nu + losses, lost)


def _slope(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


_MOST_COPIES = 10_000


def from_event(event: Any) -> Mechanism:
    """The mechanism that an event of dp-accounting (a `DpEvent`) describes.

    Gaussian, Poisson-sampled and fixed-size sampled Gaussian and zCDP events, Laplace, discrete Laplace and randomised
    response by the pure ε that they have, and compositions of all of them. An event's parameter is one under
    add-remove, as dp-accounting has it: under replacement, where a row goes and another comes, each is taken twice (2ε,
    4ρ, Gaussians 2/σ apart). Randomised response of a row's own value is one under replacement.

    Args:
        event: a `DpEvent`; only its type's name and its fields are read.

    Returns:
        A mechanism of this package.

    Raises:
        ValueError: for an event that no mechanism here describes; the text names it.

    Guarantees:
        None of its own: see the mechanism's `proof`.

    Example:
        >>> import dp_accounting
        >>> from leakcore import mechanisms
        >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        >>> mechanisms.from_event(dp_accounting.SelfComposedDpEvent(step, 1000))
        Poisson(noise_multiplier=1, sample_rate=0.01, steps=1000)
    """
    kind = type(event).__name__
    if kind == "NoOpDpEvent":
        return GDP(0.0)
    if kind == "GaussianDpEvent":
        return FullBatch(event.noise_multiplier, 1)
    if kind == "LaplaceDpEvent":
        return ApproximateDP(1.0 / event.noise_multiplier, 0.0, reached=False, claimed_under="add-remove")
    if kind == "DiscreteLaplaceDpEvent":
        return ApproximateDP(event.noise_parameter * event.sensitivity, 0.0, reached=False, claimed_under="add-remove")
    if kind == "RandomizedResponseDpEvent":
        other = event.noise_parameter / event.num_buckets
        return ApproximateDP(
            math.log((1.0 - event.noise_parameter + other) / other), 0.0, reached=False, claimed_under="replace"
        )
    if kind == "ZCDpEvent" and getattr(event, "xi", 0.0) == 0.0:
        return ZCDP(event.rho, claimed_under="add-remove")
    if kind == "ComposedDpEvent" and event.events:
        return _composed([from_event(one) for one in event.events])
    if kind == "SelfComposedDpEvent":
        return _repeated(from_event(event.event), event.count)
    inner: Any = getattr(event, "event", None)
    if type(inner).__name__ == "GaussianDpEvent":
        if kind == "PoissonSampledDpEvent":
            return Poisson(inner.noise_multiplier, event.sampling_probability, 1)
        if kind == "SampledWithoutReplacementDpEvent":
            return FixedSize(inner.noise_multiplier, event.sample_size, event.source_dataset_size, 1)
    raise ValueError(f"`event` must be an event that a mechanism here describes, got {event!r}")


def _composed(parts: list[Mechanism]) -> Mechanism:
    return parts[0] if len(parts) == 1 else Composition(tuple(parts))


def _repeated(one: Mechanism, count: int) -> Mechanism:
    """`count` releases of the same kind."""
    if count == 0:
        return GDP(0.0)
    if isinstance(one, Poisson | FullBatch | FixedSize) and isinstance(one.noise_multiplier, float):
        return dataclasses.replace(one, steps=one.steps * count)
    if isinstance(one, GDP):
        return dataclasses.replace(one, mu=one.mu * math.sqrt(count))
    if isinstance(one, ZCDP):
        return dataclasses.replace(one, rho=one.rho * count)
    if isinstance(one, Composition):  # the order of the parts changes no profile
        return _composed([_repeated(part, count) for part in one.parts])
    if count > _MOST_COPIES:
        raise ValueError(f"`event` must repeat {type(one).__name__} at most {_MOST_COPIES} times, got {count}")
    return _composed([one] * count)
