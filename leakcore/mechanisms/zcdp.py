"""Zero-concentrated differential privacy, by the best conversion that is proved."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms.claims import Claim
from leakcore.numerics import AccuracyError, AtomLaw, Bounded, Effort, Sides

_ORDERS = np.exp(np.linspace(-12.0, 18.0, 6001))
"""α − 1 of the orders that are tried; every order gives a bound."""
_POINTS = 4001
_SLACK = 1e-13


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ZCDP(Claim):
    """ρ-zero-concentrated differential privacy: Rényi divergence of order α at most αρ, for every α > 1.

    δ(ε) ≤ min over α of e^{(α−1)(αρ−ε)}/(α − 1)·(1 − 1/α)^α (Canonne, Kamath and Steinke 2020, Proposition 12). Nothing
    is known from below, so the limits are upper ones alone.

    Attributes:
        rho: ρ in [0, 1e4].
        claimed_under: the neighbouring relation; None: any that is asked for.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> f"{accounting.epsilon(mechanisms.ZCDP(0.5), delta=1e-5).value:.3f}"  # a Gaussian of the same rho: 4.377
        '4.728'
    """

    rho: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rho", validate.non_negative(rho=self.rho))
        if self.rho > 1e4:
            raise ValueError(f"`rho` must be at most 1e4, got {self.rho:g}")

    def proof(self, adjacency: str | None = None) -> str:
        """See `Mechanism`."""
        self.relation(adjacency)
        return "the claim of zero-concentrated privacy, converted by Canonne, Kamath and Steinke (2020), Proposition 12"

    def is_exact(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`."""
        return self.rho == 0.0

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        """See `Mechanism`."""
        return True

    def separation(self, adjacency: Adjacency) -> float:
        """See `Mechanism`: no Gaussian is known to leak as much."""
        return 0.0 if self.rho == 0.0 else math.inf

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        """See `Mechanism`."""
        return (*super().notes(adjacency), "interval: nothing is known from below")

    def curve(self, adjacency: Adjacency) -> Bounded:
        """See `Mechanism`."""
        return ConvertedCurve(self.under(adjacency))

    def under(self, adjacency: Adjacency) -> float:
        """ρ of the relation: 4ρ where the claim is taken twice (Bun and Steinke 2016, Proposition 27)."""
        return self.steps(adjacency) ** 2 * self.rho

    def sides(self, adjacency: Adjacency) -> Sides:
        """See `Mechanism`: the pair whose profile joins points of the converted one by chords."""
        return Sides((_law(self.under(adjacency)),), ())


@dataclasses.dataclass(frozen=True)
class ConvertedCurve:
    """The converted profile, the same in both directions; see `numerics.Bounded`."""

    rho: float

    def chernoff_tables(self, log_floor: float) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """log δ(ε) ≤ K − sε with s = α − 1."""
        raise AccuracyError("a converted profile has no tilt")

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort | None = None) -> tuple[float, float]:
        """(−∞, the smallest ε that is proved)."""
        s = _ORDERS
        values = (1.0 + s) * self.rho + (_log_factor(s) - log_delta) / s
        high = float(np.min(values))
        return -math.inf, high + _SLACK * (1.0 + abs(high))

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort | None = None) -> tuple[float, float]:
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
    positive = np.minimum(positive + _SLACK * (1.0 + np.abs(positive)), 0.0)
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
