"""What holds of a composition however far out it is asked: Chernoff's bound from moments with proofs in closed form.

A lattice ends where a float can no longer hold the losses or the probabilities of one step. Beyond it every step law
still bounds its own moments, and the moments' logarithms of independent steps add up. With s > 0, and x = L − ε for
"remove",
    (1 − e^{−x})₊ ≤ c_s·e^{sx},  c_s = s^s/(1 + s)^{1+s},
so that log δ(ε) ≤ Σ log E_μ e^{sL} − sε + log c_s; for "add" the same of −L under ν. Infinite losses are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from leakcore.numerics.lattice.cells import StepLaw

_POWERS = np.exp(np.linspace(-14.0, 60.0, 297))
_NEAR = 33
_ROUNDING = 2.0**-48


def log_delta_above(laws: Sequence[StepLaw], epsilon: float, direction: str) -> float:
    """An upper bound of log δ(ε), 0 at most."""
    remove, log_infinite = direction == "remove", infinite(laws, direction)

    def bound(s: np.ndarray) -> np.ndarray:
        moments, away = _moments(laws, s, remove), s * epsilon
        return np.asarray(moments - away + _log_share(s) + _ROUNDING * (np.abs(moments) + np.abs(away) + 1.0))

    return min(float(np.logaddexp(_least(bound), log_infinite)), 0.0)


def epsilon_above(laws: Sequence[StepLaw], log_delta: float, direction: str) -> float:
    """An upper bound of the ε, of either sign, with log δ(ε) = log_delta; ∞ where infinite losses have as much mass."""
    remove, log_infinite = direction == "remove", infinite(laws, direction)
    if log_infinite >= log_delta:
        return math.inf
    rest = log_delta + math.log(-math.expm1(log_infinite - log_delta)) if log_infinite > -math.inf else log_delta

    def bound(s: np.ndarray) -> np.ndarray:
        moments = _moments(laws, s, remove)
        return np.asarray((moments + _log_share(s) - rest + _ROUNDING * (np.abs(moments) + abs(rest) + 1.0)) / s)

    return _least(bound)


def log_blow_up_above(laws: Sequence[StepLaw], log_kappa: np.ndarray) -> np.ndarray:
    """Upper bounds of log B_κ ≤ log(κe^x + δ(x)), for every x."""
    log_infinite = infinite(laws, "remove")
    moments = _moments(laws, _POWERS, True)
    k = moments + _log_share(_POWERS) + _ROUNDING * (moments + 1.0)
    with np.errstate(invalid="ignore"):
        # The least of κe^x + e^{k − sx} over x, at e^{(1 + s)x} = s·e^k/κ: κe^x·(1 + 1/s).
        x = (np.log(_POWERS) + k - log_kappa[:, None]) / (1.0 + _POWERS)
        least = np.nanmin(log_kappa[:, None] + x + np.log1p(1.0 / _POWERS) + _ROUNDING * (1.0 + np.abs(x)), axis=1)
    return np.asarray(np.minimum(np.logaddexp(least, log_infinite), 0.0))


def infinite(laws: Sequence[StepLaw], direction: str) -> float:
    """log of the mass of infinite losses, all steps together."""
    side = 0 if direction == "remove" else 1
    finite = math.fsum(law.count * math.log1p(-math.exp(law.log_infinite[side])) for law in laws)
    return math.log(-math.expm1(finite)) if finite < 0.0 else -math.inf


def gaussian_log_moments(s: np.ndarray, separation: float, rate: float = 1.0) -> np.ndarray:
    """log[1 − rate + rate·e^{s(s+1)m²/2}] at separation m.

    It is log E_μ(μ/ν)^s of N(m, 1) against N(0, 1) at rate 1. Moments of order s + 1 are jointly convex in (μ, ν), so
    that it bounds those of any pair (1 − rate)·(R, R) + rate·(μ, ν).
    """
    whole = 0.5 * (separation * separation) * s * (1.0 + s)
    if rate == 1.0:
        return np.asarray(whole)
    near = np.minimum(whole, 30.0)
    return np.asarray(
        np.where(whole > 30.0, np.logaddexp(math.log1p(-rate), math.log(rate) + whole), np.log1p(rate * np.expm1(near)))
    )


def _moments(laws: Sequence[StepLaw], s: np.ndarray, remove: bool) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum([law.count * law.log_moments(s, remove) for law in laws], axis=0)
    return np.asarray(np.where(np.isnan(total), np.inf, total))


def _log_share(s: np.ndarray) -> np.ndarray:
    """log c_s = −s·log(1 + 1/s) − log(1 + s)."""
    return np.asarray(-s * np.log1p(1.0 / s) - np.log1p(s))


def _least(bound: Callable[[np.ndarray], np.ndarray]) -> float:
    """The least of a bound that holds for every s, on a grid and then on a finer one around its best point."""
    s = _POWERS
    for _ in range(3):
        with np.errstate(over="ignore", invalid="ignore"):
            values = bound(s)
        values = np.where(np.isnan(values), np.inf, values)
        best = int(np.argmin(values))
        least = float(values[best])
        s = np.geomspace(s[max(best - 1, 0)], s[min(best + 1, len(s) - 1)], _NEAR)
    return least
