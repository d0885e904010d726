"""A mechanism's privacy profile and its inverse in either direction, by each route that has one.

`Between` is replacement through the data set without the row, from one curve: δ(ε) ≤ inf over ε₁ of
δ_remove(ε₁) + e^{ε₁}·δ_add(ε − ε₁). Every ε₁, and every split of δ, gives a bound. They are chosen where Chernoff's
bounds are best, then nearby on rough curves, and the bound is taken there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Protocol

import numpy as np

from leakcore.numerics import gaussian_pair, lattice_profile, moments, search
from leakcore.numerics import profile as _profile
from leakcore.numerics.arithmetic import AccuracyError
from leakcore.numerics.blow_up import log_blow_up_exact
from leakcore.numerics.lattice import StepLaw
from leakcore.numerics.lattice_profile import DominatingLaws, ProfileQuestion
from leakcore.numerics.loss import PrivacyLoss
from leakcore.numerics.moments import Moments, moments_of_loss
from leakcore.numerics.profile import BEST, Precision

_ROUNDING = 1e-14


_FEW_GROUPS = 64
_SLACK = 1e-9
_NEARLY_ONE = -0.01
"""log δ that is proved from below, and from which on no smaller limit than 1 is looked for."""


def _held(low: float, high: float, least: float, name: str) -> tuple[float, float]:
    """The limits, held against a cheap proof from below: raised at the low end, refused at the high one."""
    if high < least - _SLACK * (1.0 + abs(least)):
        raise AccuracyError(f"{name} came out as at most {high:g}, but moments of the privacy loss prove {least:g}")
    return min(max(low, least), high), high


class Curve(Protocol):
    """A mechanism's privacy profile in each direction, as one method computes it: (low, high)."""

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]: ...

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]: ...


class Bounded(Curve, Protocol):
    """A profile that also gives limits of B_κ = sup{μ(E): ν(E) ≤ κ}."""

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) of log B_κ for each of a 1-d array of log κ ≤ 0."""
        ...


@dataclasses.dataclass(frozen=True)
class ExactCurve:
    """Sampled Gaussian steps, by every route that serves."""

    loss: PrivacyLoss

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tail = log_blow_up_exact(self.loss, log_kappa)
        return tail.log_low, tail.log_high

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        low, high = _profile.epsilon_for(self.loss, log_delta, direction, precision=precision)
        moments = self._moments(direction)
        least = -math.inf if moments is None else moments.epsilon(math.exp(log_delta))
        return _held(low, high, least, "epsilon")

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        low, high = _profile.log_delta(self.loss, epsilon, direction, precision=precision)
        moments = self._moments(direction)
        least = -math.inf if moments is None else moments.log_delta(epsilon)
        if high < least and least > _NEARLY_ONE:  # the tilt is lost where δ is 1 up to rounding; 1 is a limit anyway
            high = 0.0
        return _held(low, high, least, "log delta")

    def _moments(self, direction: str) -> Moments | None:
        """Of the steps that are sampled, where it costs next to nothing."""
        if not self.loss.groups or len(self.loss.groups) > _FEW_GROUPS:
            return None
        try:
            return moments_of_loss(self.loss, direction)
        except (AccuracyError, OverflowError):
            return None


@dataclasses.dataclass(frozen=True)
class LatticeCurve:
    """Any step laws, by lattice laws from both sides."""

    sides: DominatingLaws

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        # Where the lattice has no answer, −∞ to Chernoff's bound.
        if max(moments.infinite(laws, direction) for laws in (self.sides.upper, self.sides.lower)) >= log_delta:
            return (math.inf if moments.infinite(self.sides.lower, direction) >= log_delta else -math.inf), math.inf
        low, high = self._limits(ProfileQuestion(log_delta=log_delta), direction, precision, (-math.inf, math.inf))
        return low, min(high, moments.epsilon_above(self.sides.upper, log_delta, direction))

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        low, high = self._limits(ProfileQuestion(epsilon=epsilon), direction, precision, (-math.inf, 0.0))
        low, high = min(low, 0.0), min(high, 0.0, moments.log_delta_above(self.sides.upper, epsilon, direction))
        if epsilon < 0.0:
            # One pair's two profiles tell each other: δ(ε) = 1 − e^ε + e^ε·δ′(−ε).
            least = math.log(-math.expm1(epsilon))
            other = moments.log_delta_above(self.sides.upper, -epsilon, "add" if direction == "remove" else "remove")
            low, high = max(low, least - _ROUNDING), min(high, float(np.logaddexp(least, epsilon + other)) + _ROUNDING)
        return low, min(high, 0.0)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, high = lattice_profile.log_blow_up(self.sides, log_kappa)
        return low, np.minimum(high, moments.log_blow_up_above(self.sides.upper, log_kappa))

    def _limits(
        self, question: ProfileQuestion, direction: str, precision: Precision, unknown: tuple[float, float]
    ) -> tuple[float, float]:
        if precision.sharp:
            raise AccuracyError("a lattice gives limits, not a number to its last digits")
        bits = precision.bits or (0 if self.sides.lower else lattice_profile.LAST_BITS)
        try:
            if bits:
                return unknown[0], lattice_profile.upper_limit(self.sides, question, direction, bits)
            return lattice_profile.limits(self.sides, question, direction)
        except AccuracyError:
            return unknown


@dataclasses.dataclass(frozen=True)
class _Derived:
    """A curve that is made from another one."""

    curve: Bounded

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.curve.log_blow_up(log_kappa)


@dataclasses.dataclass(frozen=True)
class Capped(_Derived):
    """A curve whose high limits are at most those of a Gaussian pair that leaks at least as much."""

    separation: float

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        low, high = self.curve.epsilon(log_delta, direction, precision=precision)
        most = gaussian_pair.epsilon_limits(log_delta, self.separation)[1]
        return (min(low, most), most) if high > most else (low, high)

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        low, high = self.curve.log_delta(epsilon, direction, precision=precision)
        most = gaussian_pair.log_profile_limits(epsilon, self.separation)[1]
        return (min(low, most), most) if high > most else (low, high)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.curve.log_blow_up(log_kappa)
        most = gaussian_pair.log_blow_up(log_kappa, self.separation)
        most += gaussian_pair.log_blow_up_error(log_kappa, self.separation) + _ROUNDING
        high = np.minimum(high, most)
        return np.minimum(low, high), high


@dataclasses.dataclass(frozen=True)
class Bracket:
    """Low limits from one curve, high ones from another, for a mechanism that no pair is known to describe exactly."""

    lower: Bounded
    upper: Bounded

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        high = self.upper.epsilon(log_delta, direction, precision=precision)[1]
        return (-math.inf if precision.bits else self.lower.epsilon(log_delta, direction)[0]), high

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        high = self.upper.log_delta(epsilon, direction, precision=precision)[1]
        return (-math.inf if precision.bits else self.lower.log_delta(epsilon, direction)[0]), high

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.lower.log_blow_up(log_kappa)[0], self.upper.log_blow_up(log_kappa)[1]


@dataclasses.dataclass(frozen=True)
class EitherWay(_Derived):
    """What neighbours leak that may be taken in either order: the larger of both directions, from below.

    B_κ is that of the order of the curve's own pair.
    """

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        pairs = [self.curve.epsilon(log_delta, side, precision=precision) for side in ("remove", "add")]
        return max(low for low, _ in pairs), max(high for _, high in pairs)

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        pairs = [self.curve.log_delta(epsilon, side, precision=precision) for side in ("remove", "add")]
        return max(low for low, _ in pairs), max(high for _, high in pairs)


_LOGITS = np.linspace(-12.0, 12.0, 97)
_ROUGH = Precision(bits=14)
_TRIVIAL = -1e-3
"""log δ above which a bound says next to nothing."""
_OUTSIDE = 5.0
"""How far beyond 0 and ε the search for a replacement's first step goes, in nats."""


@dataclasses.dataclass(frozen=True)
class Between(_Derived):
    """Replacing a row by way of the data set without it: high limits from both steps, low ones from either of them.

    A row whose gradient is 0 is a row, too, so that replacing leaks at least what removing does. Removing alone bounds
    B_κ from below, nothing from above.

    Attributes:
        laws: step laws that dominate the mechanism, for Chernoff's bounds.
    """

    laws: tuple[StepLaw, ...]

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        low = -math.inf if precision.bits else max(self.curve.epsilon(log_delta, side)[0] for side in ("remove", "add"))
        return low, self._epsilon(log_delta, precision)

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        low = max(self.curve.log_delta(epsilon, side)[0] for side in ("remove", "add"))
        return low, self._log_delta(epsilon)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.curve.log_blow_up(log_kappa)[0], np.zeros_like(log_kappa)

    def _epsilon(self, log_target: float, precision: Precision) -> float:
        """The high limit of ε₁ + ε₂ ≥ 0 with δ_remove(ε₁) = αδ and e^{ε₁}·δ_add(ε₂) = (1 − α)δ, for a good α."""

        def at_split(logit: float, precision: Precision = _ROUGH) -> float:
            first = self.curve.epsilon(log_target - math.log1p(math.exp(-logit)), "remove", precision=precision)[1]
            rest = log_target - math.log1p(math.exp(logit)) - first
            return first + self.curve.epsilon(min(rest, -1e-12), "add", precision=precision)[1]

        few = sorted({self._chernoff_split(log_target), -8.0, -4.0, -1.5, 0.0, 1.5, 4.0, 8.0})
        return max(0.0, at_split(search.valley(at_split, few, 8), precision))

    def _chernoff_split(self, log_target: float) -> float:
        """The logit of an α that is good by Chernoff's bounds."""
        try:
            (s, k), (t, j) = lattice_profile.chernoff_tables(self.laws, log_target - 12.0)
        except AccuracyError:
            return 0.0
        share, rest = -np.log1p(np.exp(-_LOGITS)), -np.log1p(np.exp(_LOGITS))
        first = np.min((k - (log_target + share)[:, None]) / s, axis=1)
        second = np.min((j - (log_target + rest - first)[:, None]) / t, axis=1)
        return float(_LOGITS[int(np.argmin(first + second))])

    def _log_delta(self, epsilon: float) -> float:
        """The high limit of log δ(ε) at a good ε₁, which may lie outside [0, ε]; the sum is convex in e^{ε₁}."""

        def total(first: float, precision: Precision = _ROUGH) -> float:
            removed = self.curve.log_delta(first, "remove", precision=precision)[1]
            added = self.curve.log_delta(epsilon - first, "add", precision=precision)[1]
            return float(np.logaddexp(removed, first + added))

        places = np.linspace(-_OUTSIDE, epsilon + _OUTSIDE, 201)
        start = 0.5 * epsilon
        with contextlib.suppress(AccuracyError):
            (s, k), (t, j) = lattice_profile.chernoff_tables(self.laws, -60.0)
            removed = np.minimum(np.min(k - s * places[:, None], axis=1), 0.0)
            added = np.minimum(np.min(j - t * (epsilon - places)[:, None], axis=1), 0.0)
            start = float(places[int(np.argmin(np.logaddexp(removed, places + added)))])
        # The sum has one valley: the best of a few and its neighbours hold it.
        few = sorted({start, -1.0, 0.0, 0.25 * epsilon, 0.5 * epsilon, 0.75 * epsilon, epsilon, epsilon + 1.0})
        out = min(total(search.valley(total, few, 10), BEST), 0.0)
        return out if out < _TRIVIAL else min(out, self._inverted(epsilon))

    def _inverted(self, at: float) -> float:
        """A log δ for which ε is proved to be at most `at`: where the valley is too narrow for so large an ε."""
        low, high = -700.0, 0.0
        for _ in range(10):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._epsilon(middle, _ROUGH) <= at else (middle, high)
        return high
