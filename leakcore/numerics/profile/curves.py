"""A mechanism's privacy profile and its inverse in either direction, by the routes that have one."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np

from leakcore.numerics.gaussian import gaussian_pair
from leakcore.numerics.lattice import lattice_blow_up, lattice_profile, tail
from leakcore.numerics.lattice.lattice_profile import ProfileQuestion, Sides
from leakcore.numerics.lattice.many_steps import Moments, moments_of_loss
from leakcore.numerics.lattice.schedule import sides_of
from leakcore.numerics.privacy_loss.blow_up import log_blow_up_exact
from leakcore.numerics.privacy_loss.loss import AccuracyError, PrivacyLoss
from leakcore.numerics.profile import profile as _profile
from leakcore.numerics.profile.profile import BEST, Effort

Tables = tuple[tuple[np.ndarray, np.ndarray], ...]
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

    def chernoff_tables(self, log_floor: float) -> Tables:
        """(s, K) of "remove" and of "add": log δ(ε) ≤ K − sε for each s."""
        ...

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]: ...

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]: ...


class Bounded(Curve, Protocol):
    """A profile that also gives limits of B_κ = sup{μ(E): ν(E) ≤ κ}."""

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) of log B_κ for each of a 1-d array of log κ ≤ 0."""
        ...


@dataclasses.dataclass(frozen=True)
class ExactCurve:
    """Sampled Gaussian steps, by every route that serves."""

    loss: PrivacyLoss

    def chernoff_tables(self, log_floor: float) -> Tables:
        """See `Curve`."""
        return lattice_profile.chernoff_tables(sides_of(self.loss).upper, log_floor)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Bounded`."""
        tail = log_blow_up_exact(self.loss, log_kappa)
        return tail.log_low, tail.log_high

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`; AccuracyError where moments disprove the number."""
        low, high = _profile.epsilon_for(self.loss, log_delta, direction, effort=effort)
        moments = self._moments(direction)
        least = -math.inf if moments is None else moments.epsilon(math.exp(log_delta))
        return _held(low, high, least, "epsilon")

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`; AccuracyError where moments disprove the number."""
        low, high = _profile.log_delta(self.loss, epsilon, direction, effort=effort)
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

    sides: Sides

    def chernoff_tables(self, log_floor: float) -> Tables:
        """See `Curve`."""
        return lattice_profile.chernoff_tables(self.sides.upper, log_floor)

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`; −∞ to Chernoff's bound where the lattice has no answer."""
        if max(tail.infinite(laws, direction) for laws in (self.sides.upper, self.sides.lower)) >= log_delta:
            return (math.inf if tail.infinite(self.sides.lower, direction) >= log_delta else -math.inf), math.inf
        low, high = self._limits(ProfileQuestion(log_delta=log_delta), direction, effort, (-math.inf, math.inf))
        return low, min(high, tail.epsilon_above(self.sides.upper, log_delta, direction))

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        low, high = self._limits(ProfileQuestion(epsilon=epsilon), direction, effort, (-math.inf, 0.0))
        low, high = min(low, 0.0), min(high, 0.0, tail.log_delta_above(self.sides.upper, epsilon, direction))
        if epsilon < 0.0:
            # One pair's two profiles tell each other: δ(ε) = 1 − e^ε + e^ε·δ′(−ε).
            least = math.log(-math.expm1(epsilon))
            other = tail.log_delta_above(self.sides.upper, -epsilon, "add" if direction == "remove" else "remove")
            low, high = max(low, least - _ROUNDING), min(high, float(np.logaddexp(least, epsilon + other)) + _ROUNDING)
        return low, min(high, 0.0)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Bounded`."""
        low, high = lattice_blow_up.log_blow_up(self.sides, log_kappa)
        return low, np.minimum(high, tail.log_blow_up_above(self.sides.upper, log_kappa))

    def _limits(
        self, question: ProfileQuestion, direction: str, effort: Effort, unknown: tuple[float, float]
    ) -> tuple[float, float]:
        if effort.sharp:
            raise AccuracyError("a lattice gives limits, not a number to its last digits")
        bits = effort.bits or (0 if self.sides.lower else lattice_profile.LAST_BITS)
        try:
            if bits:
                return unknown[0], lattice_profile.upper_limit(self.sides, question, direction, bits)
            return lattice_profile.limits(self.sides, question, direction)
        except AccuracyError:
            return unknown


@dataclasses.dataclass(frozen=True)
class Capped:
    """A curve whose high limits are at most those of a Gaussian pair that leaks at least as much."""

    curve: Bounded
    separation: float

    def chernoff_tables(self, log_floor: float) -> Tables:
        """See `Curve`."""
        return self.curve.chernoff_tables(log_floor)

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        low, high = self.curve.epsilon(log_delta, direction, effort=effort)
        most = gaussian_pair.epsilon_limits(log_delta, self.separation)[1]
        return (min(low, most), most) if high > most else (low, high)

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        low, high = self.curve.log_delta(epsilon, direction, effort=effort)
        most = gaussian_pair.log_profile_limits(epsilon, self.separation)[1]
        return (min(low, most), most) if high > most else (low, high)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Bounded`."""
        low, high = self.curve.log_blow_up(log_kappa)
        most = gaussian_pair.log_blow_up(log_kappa, self.separation)
        most += gaussian_pair.log_blow_up_error(log_kappa, self.separation) + _ROUNDING
        high = np.minimum(high, most)
        return np.minimum(low, high), high


@dataclasses.dataclass(frozen=True)
class Bracket:
    """Low limits from one curve, high ones from another: of a mechanism that no pair is known to describe exactly."""

    lower: Bounded
    upper: Bounded

    def chernoff_tables(self, log_floor: float) -> Tables:
        """See `Curve`."""
        return self.upper.chernoff_tables(log_floor)

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        high = self.upper.epsilon(log_delta, direction, effort=effort)[1]
        return (-math.inf if effort.bits else self.lower.epsilon(log_delta, direction)[0]), high

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        high = self.upper.log_delta(epsilon, direction, effort=effort)[1]
        return (-math.inf if effort.bits else self.lower.log_delta(epsilon, direction)[0]), high

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Bounded`."""
        return self.lower.log_blow_up(log_kappa)[0], self.upper.log_blow_up(log_kappa)[1]


@dataclasses.dataclass(frozen=True)
class EitherWay:
    """What neighbours leak that may be taken in either order: the larger of both directions, from below."""

    curve: Bounded

    def chernoff_tables(self, log_floor: float) -> Tables:
        """See `Curve`."""
        return self.curve.chernoff_tables(log_floor)

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        pairs = [self.curve.epsilon(log_delta, side, effort=effort) for side in ("remove", "add")]
        return max(low for low, _ in pairs), max(high for _, high in pairs)

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        """See `Curve`."""
        pairs = [self.curve.log_delta(epsilon, side, effort=effort) for side in ("remove", "add")]
        return max(low for low, _ in pairs), max(high for _, high in pairs)

    def log_blow_up(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Bounded`: of the order of the curve's own pair."""
        return self.curve.log_blow_up(log_kappa)


class DiscreteCurve:
    """Sampled Gaussian steps, by dp-accounting; upper limits alone."""

    def __init__(self, loss: PrivacyLoss, *, replaced: bool = False) -> None:
        from leakcore.numerics.profile.dp_accounting_pld import DiscreteLoss

        self.loss = loss
        self._discrete = DiscreteLoss(loss, pessimistic=True, replaced=replaced)

    def chernoff_tables(self, log_floor: float) -> Tables:
        """See `Curve`."""
        return ExactCurve(self.loss).chernoff_tables(log_floor)

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        low, high = -1.0, 1.0
        while self.log_delta(low, direction)[1] < log_delta and low > -1e6:
            low *= 2.0
        while self.log_delta(high, direction)[1] > log_delta:
            if high > 1e9:
                return math.inf, math.inf
            high *= 2.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.log_delta(middle, direction)[1] > log_delta else (low, middle)
        return high, high

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        value = self._discrete.delta(epsilon, direction)
        out = math.log(value) if value > 0.0 else -math.inf
        return out, out
