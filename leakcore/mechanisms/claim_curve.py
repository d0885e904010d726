"""The profile of the pair of Kairouz, Oh and Viswanath (2015), in closed form."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics import AccuracyError, Effort

_SLACK = 1e-14


@dataclasses.dataclass(frozen=True)
class ClaimCurve:
    """δ + (1 − δ)·(e^ε − e^x)_+/(1 + e^ε) at x ≥ −ε, the same in both directions; see `numerics.Bounded`."""

    bound: float
    slack: float

    def chernoff_tables(self, log_floor: float) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """A bare claim has no moments worth a tilt."""
        raise AccuracyError("a bare claim has no moments")

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort | None = None) -> tuple[float, float]:
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

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort | None = None) -> tuple[float, float]:
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
