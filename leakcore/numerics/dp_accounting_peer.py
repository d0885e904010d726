"""Google's dp-accounting as the independent route to profiles and blow-ups; it is imported at the first call.

Privacy loss distributions (`DiscreteLoss`): only the REMOVE distribution (the mixture above) answers sup μ(E) with
ν(E) ≤ κ; the ADD distribution's far tail loses its digits to cancellation.

Rényi divergences (`rdp_epsilon`, `rdp_log_delta`) and their conversion to (ε, δ), rounded upwards. The divergences
come from logarithms of moments near 1, whose rounding hides small ones: dp-accounting then calls them 0, and so ε, δ.
What rounding may have taken is added here, and ε = 0 or a small δ rest on Pinsker's inequality in the form
δ(0) ≤ √(1 − e^{−D}) with that divergence, or on the total variation distance itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from leakcore.numerics.arithmetic import AccuracyError
from leakcore.numerics.loss import PrivacyLoss
from leakcore.numerics.profile import BEST, Precision

_REACH = 10.0
_MAX_POINTS = 80_000
_OPTIMISTIC_POINTS = 200_000
_COARSEST = 700.0
"""Interval whose exponential is still a float."""
_MISSING = "`method={method!r}` needs dp-accounting, which is not installed: pip install leakcore[accounting]"


def fft_rounding(count: int) -> float:
    """By how much rounding may move a sum of masses after `count` distributions were convolved by FFT.

    Measured against the exact profile where masses have long vanished: 1e-14 at 100 steps, 1.5e-13 at 10,000 and 3e-12
    at 100,000, in either direction; the masses of a single one are differences that round as much as a hundred.
    """
    return 0.0 if count == 0 else 1e-13 + 1e-15 * count


def import_dp_accounting(method: str) -> Any:
    """The dp_accounting package; ImportError says how to install it."""
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(_MISSING.format(method=method)) from error
    return dp_accounting


class DiscreteLoss:
    """The composed, discretised privacy loss.

    Args:
        loss: the steps.
        pessimistic: whether it is an upper bound in both directions; else it is a lower bound in the REMOVE direction
            only, which is all that a blow-up needs.
        interval: width of the loss's cells; None: it follows from the loss's spread.
        replaced: whether the steps are taken under replacement, which is pessimistic only.
    """

    def __init__(
        self, loss: PrivacyLoss, *, pessimistic: bool, interval: float | None = None, replaced: bool = False
    ) -> None:
        if loss.log_no_escape != 0.0:
            raise ValueError("`noise_multiplier` must be positive with method='pld', got 0; use method='exact'")
        relation = import_dp_accounting("pld").NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution as pld

        steps = [(g.sigma, g.rate, g.count) for g in loss.groups]
        if loss.gaussian_variance > 0.0:
            steps.append((1.0 / math.sqrt(loss.gaussian_variance), 1.0, 1))
        self.interval = interval or _default_interval(loss)
        if interval is None and steps:
            widest = max(_end(sigma, rate) - _start(sigma, rate) for sigma, rate, _ in steps)
            if pessimistic:
                # dp-accounting takes microseconds per point, and its error falls with the square of the interval.
                self.interval = max(self.interval, widest / _MAX_POINTS)
                if self.interval > _COARSEST:
                    raise AccuracyError(
                        "`noise_multiplier` must be large enough for method='pld', got privacy losses of "
                        f"{widest:.3g}; use method='exact'"
                    )
            else:
                # Rounding down errs by the interval itself, but costs little per point.
                self.interval = min(self.interval, widest / _OPTIMISTIC_POINTS)
        self.rounding = fft_rounding(sum(count for _, _, count in steps))
        composed: Any = None
        for sigma, rate, count in steps:
            if pessimistic:
                one = pld.from_gaussian_mechanism(
                    sigma,
                    sampling_prob=rate,
                    pessimistic_estimate=True,
                    value_discretization_interval=self.interval,
                    use_connect_dots=True,
                    **({"neighboring_relation": relation.REPLACE_ONE} if replaced else {}),
                )
            else:
                one = pld.PrivacyLossDistribution(_rounded_down(sigma, rate, self.interval))
            if count > 1:
                one = one.self_compose(count)
            composed = one if composed is None else composed.compose(one)
        self._pld = composed

    def delta(self, epsilon: float, direction: str) -> float:
        """δ(ε) in one direction; what rounding may have taken from a pessimistic one is added."""
        if self._pld is None:
            return max(0.0, -math.expm1(epsilon))
        pmf = self._pld._pmf_remove if direction == "remove" else self._pld._pmf_add
        return min(1.0, float(pmf.get_delta_for_epsilon(epsilon)) + self.rounding)

    def epsilon(self, log_delta: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        """(high, high): the smallest ε with δ(ε) at most e^log_delta, as `curves.Curve` has it."""
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

    def log_delta(self, epsilon: float, direction: str, *, precision: Precision = BEST) -> tuple[float, float]:
        """(high, high) of log δ(ε), as `curves.Curve` has it."""
        value = self.delta(epsilon, direction)
        out = math.log(value) if value > 0.0 else -math.inf
        return out, out

    def log_blow_up(self, log_kappa: np.ndarray) -> np.ndarray:
        """log min_ε [κe^ε + δ_remove(ε)] over all real ε, for a 1-d array of log κ.

        δ_remove is convex and piecewise linear in e^ε with its knots at the losses of the grid, so the minimum
        lies at one.
        """
        if self._pld is None:
            return np.array(log_kappa)
        pmf = self._pld._pmf_remove.to_dense_pmf()
        mass = np.maximum(np.asarray(pmf._probs, dtype=np.float64), 0.0)
        losses = (pmf._lower_loss + np.arange(len(mass))) * pmf._discretization
        # Suffix sums: μ(L ≥ l_j) and ν(L ≥ l_j), the latter relative to e^{−l_j} so that nothing overflows.
        above = np.cumsum(mass[::-1])[::-1] + float(pmf._infinity_mass)
        log_nu = _log_suffix_sums(mass, losses)
        # ν(L ≥ l_j) falls with j; the best knot is where it crosses κ.
        knot = np.clip(len(losses) - np.searchsorted(log_nu[::-1], log_kappa, side="right"), 0, len(losses) - 1)
        best = np.zeros_like(log_kappa)
        for shift in (-1, 0, 1):
            j = np.clip(knot + shift, 0, len(losses) - 1)
            nu_part = np.exp(np.minimum(losses[j] + log_nu[j], 700.0))
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                value = np.log(np.maximum(above[j] - nu_part, 0.0) + np.exp(np.minimum(log_kappa + losses[j], 700.0)))
            best = np.minimum(best, value)
        return best


def _loss(z: float, sigma: float, rate: float) -> float:
    exponent = z / sigma - 0.5 / (sigma * sigma)
    return float(np.logaddexp(math.log1p(-rate) if rate < 1.0 else -math.inf, math.log(rate) + exponent))


def _start(sigma: float, rate: float) -> float:
    return _loss(-_REACH, sigma, rate)


def _end(sigma: float, rate: float) -> float:
    """Beyond it μ has less than 1e-22 of its mass."""
    return _loss(1.0 / sigma + _REACH, sigma, rate)


def _rounded_down(sigma: float, rate: float, interval: float) -> Any:
    """One step's REMOVE loss with every value rounded down to the grid, what lies below it left out: optimistic."""
    from dp_accounting.pld import pld_pmf

    first = math.floor(_start(sigma, rate) / interval)
    last = math.floor(_end(sigma, rate) / interval)
    losses = np.arange(first, last + 1) * interval
    # z where the loss is l: e^l = 1 − q + q·exp(z/σ − 1/(2σ²)); −∞ where no z is so low.
    with np.errstate(divide="ignore"):
        z = sigma * np.log(np.maximum(np.expm1(losses) / rate + 1.0, 0.0)) + 0.5 / sigma
    above = (1.0 - rate) * special.ndtr(-z) + rate * special.ndtr(1.0 / sigma - z)
    mass = np.maximum(above - np.append(above[1:], 0.0), 0.0)
    return pld_pmf.DensePLDPmf(interval, first, mass, 0.0, False)


def _log_suffix_sums(mass: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """log Σ_{i ≥ j} mass_i e^{−losses_i} for every j."""
    with np.errstate(divide="ignore"):
        logs = np.log(mass) - losses
    return np.asarray(np.logaddexp.accumulate(logs[::-1])[::-1])


def _default_interval(loss: PrivacyLoss) -> float:
    """1e-4, scaled down with the loss's standard deviation where that is below 0.1 and up where it is above 10."""
    spread = math.sqrt(loss.cumulants(1.0).variance)
    return 1e-4 * max(min(10.0 * spread, 1.0), spread / 10.0, 1e-6)


AUTHORS_ORDERS = tuple([1.0 + x / 10.0 for x in range(1, 100)] + [float(a) for a in range(11, 64)])
"""1.1, 1.2, …, 10.9 and 11, 12, …, 63: the orders of the reconstruction paper's released code."""

_ROUNDING = 2.0**-48
"""Rounding of one logarithm in a moment, relative to the larger of its size and 1."""
_LEAST_ORDER = 1.01
"""The conversion is unstable, and useless, at smaller orders."""


def composed_accountant(loss: PrivacyLoss, orders: Any = None) -> Any:
    """An RdpAccountant that has composed all steps of `loss` (σ > 0); orders None means dp-accounting's own."""
    dp = import_dp_accounting("rdp")
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant() if orders is None else RdpAccountant(orders=[float(a) for a in orders])
    for group in loss.groups:
        event = dp.PoissonSampledDpEvent(group.rate, dp.GaussianDpEvent(group.sigma))
        accountant.compose(event, group.count)
    if loss.gaussian_variance > 0.0:
        accountant.compose(dp.GaussianDpEvent(1.0 / math.sqrt(loss.gaussian_variance)))
    return accountant


def rdp_epsilon(loss: PrivacyLoss, log_delta: float, orders: Any = None) -> float:
    """An upper bound of ε ≥ 0: the least of r + log(1 − 1/α) − log(αδ)/(α − 1) (Canonne et al. 2020, Proposition 12),
    and 0 where δ is proved to be no less than δ(0)."""
    alphas, divergences = _rounded_up(loss, orders)
    if log_delta >= min(_log_total_variation(loss), float(np.min(_log_pinsker(divergences)))):
        return 0.0
    used = alphas > _LEAST_ORDER
    a, r = alphas[used], divergences[used]
    parts = np.log1p(-1.0 / a), -(log_delta + np.log(a)) / (a - 1.0)
    value = r + sum(parts) + 4.0 * _ROUNDING * (np.abs(parts[0]) + np.abs(parts[1]))
    return max(0.0, float(np.min(value, initial=math.inf)))


def rdp_log_delta(loss: PrivacyLoss, epsilon: float, orders: Any = None) -> float:
    """An upper bound of log δ(ε), ε ≥ 0, by the same conversion."""
    alphas, divergences = _rounded_up(loss, orders)
    used = alphas > _LEAST_ORDER
    a, r = alphas[used], divergences[used]
    with np.errstate(invalid="ignore"):
        value = (a - 1.0) * (r - epsilon + np.log1p(-1.0 / a)) - np.log(a)
        value += 4.0 * _ROUNDING * ((a - 1.0) * (r + epsilon + 1.0) + np.log(a))
    least = min(float(np.min(value, initial=0.0)), _log_total_variation(loss), float(np.min(_log_pinsker(divergences))))
    return min(least, 0.0)


def _rounded_up(loss: PrivacyLoss, orders: Any) -> tuple[np.ndarray, np.ndarray]:
    """(orders, Rényi divergences of those orders, from above)."""
    accountant = composed_accountant(loss, orders)
    alphas = np.asarray(accountant._orders, dtype=np.float64)
    divergences = np.maximum(np.asarray(accountant._rdp, dtype=np.float64), 0.0)
    slack = np.zeros(len(alphas))
    for group in loss.groups:
        size = 1.0 + alphas * (1.0 - math.log(group.rate)) + 0.5 * (alphas / group.sigma) ** 2
        slack += group.count * size / (alphas - 1.0)
    return alphas, divergences * (1.0 + 4.0 * _ROUNDING) + _ROUNDING * slack


def _log_total_variation(loss: PrivacyLoss) -> float:
    value = loss.total_variation() * (1.0 + 1e-12)
    return math.log(value) if 0.0 < value < 1.0 else 0.0


def _log_pinsker(divergences: np.ndarray) -> np.ndarray:
    """log √(1 − e^{−D}), rounded up; D of any order above 1 is no less than that of order 1."""
    with np.errstate(divide="ignore"):
        return np.asarray(0.5 * np.log(-np.expm1(-divergences)) + _ROUNDING)
