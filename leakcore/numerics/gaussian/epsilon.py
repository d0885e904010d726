"""ε of many pairs of unit Gaussians at one δ: the inverse of the Gaussian privacy profile, vectorised, in log space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Number

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def gaussian_pair_epsilon(separation: Any, *, delta: float) -> Number:
    """The smallest ε ≥ 0 at which N(m, 1) and N(0, 1) are (ε, δ)-indistinguishable.

    Solves δ = Φ(m/2 − ε/m) − e^ε Φ(−m/2 − ε/m) (Balle and Wang 2018, Theorem 8). With x = ε/m − m/2 and Mills' ratio
    R(x) = Φ(−x)/φ(x) the right side is φ(x)(R(x) − R(x + m)), which neither overflows nor cancels.

    Args:
        separation: m in [0, ∞], a number or an array.
        delta: δ in [0, 1).

    Returns:
        ε, a float for a number, else a float64 array. m = 0 gives 0, and so does δ ≥ 2Φ(m/2) − 1, the total variation
        distance. δ = 0 or m = ∞ give ∞ where m > 0.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic, to a few units in the last place of the profile as floats represent it.

    Example:
        >>> from leakcore import numerics
        >>> f"{numerics.gaussian_pair_epsilon(1.0, delta=1e-5):.3f}"  # one step at noise multiplier 1
        '4.377'
        >>> numerics.gaussian_pair_epsilon([0.0, 0.5, 1.0], delta=1e-5).round(2).tolist()
        [0.0, 1.99, 4.38]
    """
    m = validate.real_array("at least 0", lambda v: v >= 0, separation=separation)
    slack = validate.below_one(delta=delta)
    out = np.where((m > 0) & ((slack == 0) | np.isinf(m)), np.inf, 0.0)
    solve = np.isfinite(out) & (m > 0) & (special.erf(m / math.sqrt(8.0)) > slack)
    if solve.any():
        out[solve] = _root(m[solve], slack)
    return float(out) if out.ndim == 0 else out


def _root(m: np.ndarray, delta: float) -> np.ndarray:
    """The ε at which each pair's profile is δ, by Newton's iteration on the logarithm of the profile.

    In x that logarithm is concave, since the profile is the convolution of a Gaussian with the log-concave function
    (1 − e^{−m(t−x)})_+. It falls, so a start on the right of the root descends to it and never passes it except for
    rounding, which ends the descent.
    """
    log_delta = math.log(delta)
    # Φ(−x) bounds the profile from above, so its root lies on the right; ε ≥ 0 is x ≥ −m/2.
    x = np.maximum(-special.ndtri(delta), -m / 2.0)
    falling = np.arange(m.size)
    for _ in range(200):
        at, width = x[falling], m[falling]
        far = _mills(at + width)
        difference = _difference(at, width, far)
        log_density = -0.5 * at * at - 0.5 * math.log(2.0 * math.pi)
        # Where the profile is close to 1, its complement Φ(x) + φ(x)R(x + m) keeps the digits.
        left = np.minimum(at, -1.0)
        complement = special.ndtr(left) + np.exp(log_density) * far
        log_profile = np.where(
            (at < -1.0) & (complement < 0.5), np.log1p(-np.minimum(complement, 0.5)), log_density + np.log(difference)
        )
        gap = log_profile - log_delta
        # d log(φ(x)(R(x) − R(x + m)))/dx = −m R(x + m)/(R(x) − R(x + m)), since R′(x) = xR(x) − 1.
        step = at + gap * difference / (width * far)
        moved = step < at
        falling = falling[moved]
        if not falling.size:
            break
        x[falling] = step[moved]
    with np.errstate(over="ignore"):  # an ε beyond what a float holds is inf
        return np.asarray(np.maximum(m * (x + m / 2.0), 0.0))


def _difference(x: np.ndarray, m: np.ndarray, far: np.ndarray) -> np.ndarray:
    """R(x) − R(x + m). Close pairs would cancel, so there it is the integral of −R′ = 1 − tR(t)."""
    out = np.asarray(_mills(x) - far)
    close = m < 0.1
    if close.any():
        t = x[close, None] + 0.5 * m[close, None] * (_NODES + 1.0)
        out[close] = 0.5 * m[close] * ((1.0 - t * _mills(t)) * _WEIGHTS).sum(axis=-1)
    return out


def _mills(x: np.ndarray) -> np.ndarray:
    return np.asarray(math.sqrt(math.pi / 2.0) * special.erfcx(x / math.sqrt(2.0)))
