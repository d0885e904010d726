"""What an attacker learns who sees the final model alone, if the loss were linear in the parameters."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import optimize, special

from leakcore._base import memory_limit, validate
from leakcore._base.results import Assumptions, Result
from leakcore.accounting.epsilon import epsilon
from leakcore.mechanisms import FullBatch

_SOURCE = "Steinke, Nasr, Ganesh et al. (2024), The last iterate advantage, arXiv 2410.06186, Theorem 1"
_ATTACKER = (
    "sees the first and the final model alone, not the models between them; knows every other record and the "
    "hyperparameters"
)
_NOTES = (
    "exact for losses that are linear in the parameters, such as gradients that an attacker crafts",
    "a heuristic for other losses, whose last iterate can leak more",
    "Poisson sampling or full batches; constant learning rate",
)
_FAR = 60.0
"""Standard deviations beyond which a normal law holds less than the smallest float64."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LastIterateEpsilon(Result):
    """ε at a δ of the final model, as `accounting.last_iterate_epsilon` returns it.

    Attributes:
        value: ε of the final model if the loss is linear.
        delta: the δ that was asked for.
    """

    quantity: str = "ε of the last iterate"
    delta: float


def last_iterate_epsilon(
    noise_multiplier: float, sample_rate: float, steps: int, *, delta: float
) -> LastIterateEpsilon:
    """ε of DP-SGD's final model, for an attacker who sees none of the models before it; an estimate.

    With a loss that is linear in the parameters, the final model is the sum of all releases. One row adds a binomial
    number of unit gradients to it, so that the pair is μ = Σ_k Bin(k; T, q)·N(k, Tσ²) and ν = N(0, Tσ²). With full
    batches both attackers learn the same: the last iterate has no advantage. A convex or a neural loss may leak less,
    and may leak more.

    Args:
        noise_multiplier: σ > 0, relative to the clipping norm.
        sample_rate: q in [0, 1].
        steps: T ≥ 0.
        delta: δ in (0, 1).

    Returns:
        `LastIterateEpsilon` of kind "estimate", add-remove. It does not bound an attacker who sees every release.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.
        MemoryError: for more steps than memory holds.

    Guarantees:
        Deterministic; relative error below 1e-8.

    Example:
        >>> from leakcore import accounting
        >>> last = accounting.last_iterate_epsilon(1.0, 0.01, 1000, delta=1e-5)
        >>> every = accounting.epsilon(1.0, 0.01, 1000, delta=1e-5)
        >>> f"{last.value:.3f} of {every.value:.3f}", last.kind
        ('1.278 of 1.828', 'estimate')
    """
    sigma = validate.positive(noise_multiplier=noise_multiplier)
    rate = validate.probability(sample_rate=sample_rate)
    count = validate.integer(0, None, steps=steps)
    target = validate.open_probability(delta=delta)
    if count == 0 or rate == 0:
        value = 0.0
    elif rate == 1:
        value = float(epsilon(FullBatch(sigma, count), delta=target).value)
    else:
        memory_limit.require(64 * count, steps=count)
        value = _Pair(sigma, rate, count).epsilon(target)
    return LastIterateEpsilon(
        value=value,
        kind="estimate",
        confidence=None,
        interval=None,
        method="last iterate of linear losses",
        assumptions=Assumptions(adjacency="add-remove", attacker=_ATTACKER, notes=_NOTES),
        provenance=_SOURCE,
        delta=target,
    )


class _Pair:
    """μ = Σ_k Bin(k; T, q)·N(ks, 1) and ν = N(0, 1), s = 1/(√T·σ). The loss log μ/ν grows with x."""

    def __init__(self, sigma: float, rate: float, steps: int) -> None:
        k = np.arange(steps + 1.0)
        choices = -math.log1p(steps) - special.betaln(k + 1.0, steps - k + 1.0)
        log_weight = choices + special.xlogy(k, rate) + special.xlog1py(steps - k, -rate)
        likely = log_weight > -1000.0 - 0.5 * _FAR**2
        self._centre = k[likely] / (math.sqrt(steps) * sigma)
        self._log_weight = log_weight[likely]
        self._least = steps * math.log1p(-rate)

    def _loss(self, x: float) -> float:
        return float(special.logsumexp(self._log_weight + self._centre * x - 0.5 * self._centre**2))

    def _where(self, loss: float) -> float:
        """x at which log μ/ν is `loss`."""
        high = _FAR
        while self._loss(high) < loss:
            high *= 2.0
        low = -_FAR
        while self._loss(low) > loss:
            low *= 2.0
        return float(optimize.brentq(lambda x: self._loss(x) - loss, low, high, xtol=1e-13, rtol=1e-14))

    def _delta(self, epsilon: float) -> float:
        """The larger of δ_remove(ε) and δ_add(ε)."""
        x = self._where(epsilon)
        tail = special.logsumexp(self._log_weight + special.log_ndtr(self._centre - x))
        remove = math.exp(tail) - math.exp(epsilon + special.log_ndtr(-x))
        add = 0.0
        if -epsilon > self._least:
            x = self._where(-epsilon)
            tail = special.logsumexp(self._log_weight + special.log_ndtr(x - self._centre))
            add = math.exp(special.log_ndtr(x)) - math.exp(epsilon + tail)
        return max(remove, add)

    def epsilon(self, delta: float) -> float:
        if self._delta(0.0) <= delta:
            return 0.0
        high = 1.0
        while self._delta(high) > delta:
            high *= 2.0
        return float(optimize.brentq(lambda e: self._delta(e) - delta, 0.0, high, xtol=1e-12, rtol=1e-12))
