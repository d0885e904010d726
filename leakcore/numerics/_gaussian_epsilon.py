"""ε of many pairs of unit Gaussians at one δ: the inverse of the Gaussian privacy profile, vectorised, in log space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from leakcore import _validate
from leakcore._results import Number

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def gaussian_pair_epsilon(separation: Any, *, delta: float) -> Number:
    """The smallest ε ≥ 0 at which N(m, 1) and N(0, 1) are (ε, δ)-indistinguishable.

    Solves δ = Φ(m/2 − ε/m) − e^ε Φ(−m/2 − ε/m) (Balle and Wang 2018, Theorem 8). With x = ε/m − m/2 and Mills' ratio
    R(x) = Φ(−x)/φ(x) the right side is φ(x)(R(x) − R(x + m)), which neither overflows nor cancels.

    separation: m in [0, ∞], scalar or array. delta: in [0, 1).
    m = 0 gives 0; so does δ ≥ 2Φ(m/2) − 1, the total variation distance. δ = 0 or m = ∞ give ∞ where m > 0.
    Returns a float for a scalar, else a float64 array. Deterministic, by bisection to the last bit.
    """
    m = _validate.real_array("in [0, inf]", lambda v: v >= 0, separation=separation)
    slack = _validate.below_one(delta=delta)
    out = np.where((m > 0) & ((slack == 0) | np.isinf(m)), np.inf, 0.0)
    solve = np.isfinite(out) & (m > 0) & (special.erf(m / math.sqrt(8.0)) > slack)
    if solve.any():
        out[solve] = _bisect(m[solve], slack)
    return float(out) if out.ndim == 0 else out


def _bisect(m: np.ndarray, delta: float) -> np.ndarray:
    log_delta = math.log(delta)
    # Below x = −25 the profile is 1 to the last bit, so no δ < 1 has its root there; Φ(−x) bounds the profile from
    # above.
    low = np.maximum(-m / 2.0, -25.0)
    high = np.maximum(np.full(m.shape, -special.ndtri(delta)), low)
    for _ in range(200):
        middle = 0.5 * (low + high)
        if ((middle <= low) | (middle >= high)).all():
            break
        above = _log_profile(middle, m) > log_delta
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.maximum(m * (low + m / 2.0), 0.0))


def _log_profile(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    # Close pairs would cancel in R(x) − R(x + m), which is the integral of −R′ = 1 − tR(t).
    t = x[:, None] + 0.5 * m[:, None] * (_NODES + 1.0)
    integral = 0.5 * m * ((1.0 - t * _mills(t)) @ _WEIGHTS)
    difference = np.where(m < 0.1, integral, _mills(x) - _mills(x + m))
    with np.errstate(divide="ignore"):
        return np.asarray(-0.5 * x * x - 0.5 * math.log(2.0 * math.pi) + np.log(np.maximum(difference, 0.0)))


def _mills(x: np.ndarray) -> np.ndarray:
    return np.asarray(math.sqrt(math.pi / 2.0) * special.erfcx(x / math.sqrt(2.0)))
