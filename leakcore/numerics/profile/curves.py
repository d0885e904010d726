"""A mechanism's privacy profile and its inverse in either direction, by the routes that have one."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

from leakcore.numerics.privacy_loss.loss import PrivacyLoss
from leakcore.numerics.profile import profile as _profile
from leakcore.numerics.profile.profile import BEST, Effort


class Curve(Protocol):
    """A mechanism's privacy profile in each direction, as one method computes it: (low, high)."""

    @property
    def loss(self) -> PrivacyLoss: ...

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]: ...

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]: ...


@dataclasses.dataclass(frozen=True)
class ExactCurve:
    loss: PrivacyLoss

    def epsilon(self, log_delta: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        return _profile.epsilon_for(self.loss, log_delta, direction, effort=effort)

    def log_delta(self, epsilon: float, direction: str, *, effort: Effort = BEST) -> tuple[float, float]:
        return _profile.log_delta(self.loss, epsilon, direction, effort=effort)


class DiscreteCurve:
    def __init__(self, loss: PrivacyLoss) -> None:
        from leakcore.numerics.profile.dp_accounting_pld import DiscreteLoss

        self.loss = loss
        self._discrete = DiscreteLoss(loss, pessimistic=True)

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
