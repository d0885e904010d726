"""dp-accounting's Rényi differential privacy of composed, Poisson-sampled Gaussian steps, imported at the first
call, and its conversion to (ε, δ), rounded upwards.

The divergences come from logarithms of moments near 1, whose rounding hides small ones: dp-accounting then calls them 0
and so ε and δ. What rounding may have taken is added here, and ε = 0 or a small δ rest on Pinsker's inequality in the
form δ(0) ≤ √(1 − e^{−D}) with that divergence, or on the total variation distance itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from leakcore.numerics.privacy_loss.loss import PrivacyLoss
from leakcore.numerics.profile.dp_accounting_pld import import_dp_accounting

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


def epsilon(loss: PrivacyLoss, log_delta: float, orders: Any = None) -> float:
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


def log_delta(loss: PrivacyLoss, epsilon: float, orders: Any = None) -> float:
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
