"""The Gaussian pair N(0, 1) against N(s, 1): blow-up, privacy profile and inverses, in log space."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Number
from leakcore.numerics.arithmetic import bisect

_CLOSE = -0.2
_OWN_ERROR = 1e-12
"""Error of `log_profile` besides the rounding of its arguments and its result."""
_FAR = 1e10
"""Separation beyond which ε of a Gaussian pair is its first two terms, to less than their rounding."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def log_blow_up(log_kappa: np.ndarray, separation: float) -> np.ndarray:
    """log Φ(Φ⁻¹(κ) + s): the largest power of a test of size κ between N(0, 1) and N(s, 1). Hayes et al. (2023),
    Corollary 4 with q = 1, where s = √T/σ; the same as Dong et al. (2019), 1 − G_s(κ)."""
    log_kappa = np.asarray(log_kappa, dtype=np.float64)
    if separation == 0.0:
        return np.array(log_kappa)
    if math.isinf(separation):
        return np.zeros_like(log_kappa)
    # The quantile is +inf at log κ = 0 and log_ndtr(inf) = 0, as it must be.
    return np.asarray(special.log_ndtr(_quantile(log_kappa) + separation))


def log_blow_up_error(log_kappa: np.ndarray, separation: float) -> np.ndarray:
    """What rounding may take from `log_blow_up` where a far quantile and a large s all but cancel: four units in the
    last place of both, times the derivative φ/Φ at their sum."""
    if separation == 0.0 or math.isinf(separation):
        return np.zeros_like(log_kappa)
    x = _quantile(log_kappa)
    x = np.where(np.isinf(x), 0.0, x)  # nothing is rounded there
    with np.errstate(over="ignore"):
        slope = math.sqrt(2.0 / math.pi) / special.erfcx(-(x + separation) * math.sqrt(0.5))
    return np.where((log_kappa == 0.0) | np.isinf(log_kappa), 0.0, slope * (np.abs(x) + separation) * 2.0**-50)


def _quantile(log_p: np.ndarray) -> np.ndarray:
    """Φ⁻¹(p); far out SciPy's is right to 5e-13 only, and two of Newton's steps take it to its last places."""
    x = np.asarray(special.ndtri_exp(log_p))
    far = (log_p < -100.0) & np.isfinite(log_p)
    if far.any():
        wanted, y = log_p[far], x[far]
        for _ in range(2):
            y = y - (special.log_ndtr(y) - wanted) * math.sqrt(0.5 * math.pi) * special.erfcx(-y * math.sqrt(0.5))
        x = x.copy()
        x[far] = y
    return x


def log_profile(epsilon: np.ndarray, separation: float) -> np.ndarray:
    """log δ(ε) = log[Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s)], any real ε; Dong et al. (2019), Corollary 2.13. −inf at s = 0
    for ε ≥ 0. Accurate in relative terms also where δ underflows."""
    epsilon = np.asarray(epsilon, dtype=np.float64)
    if separation == 0.0:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(-np.expm1(np.minimum(epsilon, 0.0))))
    if math.isinf(separation):
        return np.zeros_like(epsilon)
    first, share = _profile_parts(epsilon, separation)
    return np.asarray(first + share)


def log_profile_limits(epsilon: float, separation: float, shift: float = 0.0) -> tuple[float, float]:
    """(low, high) around log δ(ε), for every s and ε within two units in the last place, ε also moved by `shift`. high
    > −inf where anything leaks, though δ be below e^(−1e308)."""
    value = float(log_profile(np.asarray(epsilon), separation))
    if math.isinf(value) or math.isinf(separation):
        return value, value if separation == 0.0 else max(value, -sys.float_info.max)
    by_s, fall = _profile_slopes(epsilon, separation)
    error = _OWN_ERROR + 2.0**-51 * (by_s + abs(epsilon) * fall + abs(value)) + shift * fall
    return value - error, min(value + error, 0.0)


def epsilon_limits(log_delta: float, separation: float) -> tuple[float, float]:
    """(low, high) around `epsilon_of`, for every s within two units in the last place."""
    if separation > _FAR:
        return _epsilon_limits_far(log_delta, separation)
    value = epsilon_of(log_delta, separation)
    if math.isinf(value) or separation == 0.0:
        return value, value
    by_s, fall = _profile_slopes(value, separation)
    error = 2.0**-51 * abs(value) + (_OWN_ERROR + 2.0**-51 * (by_s + abs(log_delta))) / max(fall, sys.float_info.min)
    return value - error, value + error


def _epsilon_limits_far(log_delta: float, separation: float) -> tuple[float, float]:
    """The same for s where ε/s − s/2 has no digits left. With ε = s²/2 + st the profile lies between Φ(−t) − φ(t)/(s +
    t) and Φ(−t), so that ε is between s²/2 + s(z − 2/s) and s²/2 + sz, Φ(−z) = δ."""
    high = 0.5 * separation * separation - separation * float(special.ndtri_exp(log_delta))
    if math.isinf(high):
        return high, high
    rounding = 2.0**-49 * high
    return high - 2.0 - rounding, high + rounding


def _profile_slopes(epsilon: float, separation: float) -> tuple[float, float]:
    """(∂ log δ/∂ log s, −∂ log δ/∂ε), from ∂δ/∂s = φ(s/2 − ε/s) and ∂δ/∂ε = −e^ε Φ(−s/2 − ε/s); for ε < 0 where
    s = 0."""
    if separation == 0.0:
        return 0.0, -math.exp(epsilon) / math.expm1(epsilon)
    _, share = _profile_parts(np.asarray(epsilon), separation)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = special.erfcx((epsilon / separation - 0.5 * separation) * math.sqrt(0.5))
        by_s = separation * math.sqrt(2.0 / math.pi) / scaled * np.exp(-share)
        return float(by_s), float(np.expm1(-share))


def _profile_parts(epsilon: np.ndarray, separation: float) -> tuple[np.ndarray, np.ndarray]:
    """(log Φ(s/2 − ε/s), log of the share of it that δ is), for 0 < s < ∞."""
    x, s = epsilon / separation, separation
    first = special.log_ndtr(0.5 * s - x)
    # e^ε Φ(−s/2 − x) / Φ(s/2 − x) as a ratio of scaled complements: both Gaussians share exp(−(x − s/2)²/2).
    tail = x - 0.5 * s > -25.0
    upper, lower = np.where(tail, x - 0.5 * s, 0.0), np.where(tail, x + 0.5 * s, 0.0)
    root = math.sqrt(0.5)
    scaled_first = special.erfcx(upper * root)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        log_ratio = np.where(
            tail,
            np.log(special.erfcx(lower * root)) - np.log(scaled_first),
            epsilon + special.log_ndtr(-0.5 * s - x) - first,
        )
        log_ratio = np.minimum(log_ratio, 0.0)
        share = np.log(-np.expm1(log_ratio))
    # Scaled complements that agree in their first digits (small s) lose them in the difference: integrate the
    # derivative instead.
    close = tail & (log_ratio > _CLOSE)
    if np.any(close):
        share = np.where(close, _log_small_difference(upper, s, scaled_first), share)
    return np.asarray(first), np.asarray(share)


def _log_small_difference(low: np.ndarray, separation: float, scaled_low: np.ndarray) -> np.ndarray:
    """log[(R(low) − R(low + s))/R(low)] with R(x) = erfcx(x/√2) = Mills' ratio·√(2/π), by quadrature of −R′ = √(2/π) −
    xR."""
    half = 0.5 * separation
    slopes = _mills_slope(np.add.outer(half * (1.0 + _NODES), low))
    total = np.zeros_like(low)
    for weight, slope in zip(_WEIGHTS, slopes, strict=True):
        total += weight * slope
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(half * total) - np.log(scaled_low))


def _mills_slope(x: np.ndarray) -> np.ndarray:
    """√(2/π) − x·erfcx(x/√2), whose direct difference cancels for large x: asymptotic series there."""
    root = math.sqrt(2.0 / math.pi)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        direct = root - x * special.erfcx(x * math.sqrt(0.5))
        inverse = 1.0 / (x * x)
        # x·R(x) = √(2/π)(1 − 1/x² + 3/x⁴ − 15/x⁶ + …)
        term, series = np.ones_like(x), np.zeros_like(x)
        for k in range(1, 20):
            term = term * -(2 * k - 1) * inverse
            series = series - term
    return np.where(x > 12.0, root * series, direct)


def epsilon_of(log_delta: float, separation: float) -> float:
    """The real ε, of either sign, with log δ(ε) = log_delta < 0, from above; inf at s = ∞, where δ = 1 throughout."""
    if math.isinf(separation):
        return math.inf
    if separation == 0.0:
        return math.log(-math.expm1(log_delta)) if log_delta < 0.0 else -math.inf
    low, high = -1.0, 1.0
    while float(log_profile(np.asarray(low), separation)) < log_delta:
        low *= 2.0
    while float(log_profile(np.asarray(high), separation)) > log_delta:
        high *= 2.0
    return bisect(low, high, lambda at: float(log_profile(np.asarray(at), separation)) > log_delta)[1]


def gaussian_separation(epsilon: float, delta: float) -> float:
    """The largest s whose pair is (ε, δ)-private, for ε ≥ 0; 0 at delta = 0."""
    if delta <= 0.0:
        return 0.0
    target = math.log(delta)
    low, high = 0.0, 1.0
    while float(log_profile(np.asarray(epsilon), high)) <= target:
        low, high = high, 2.0 * high
    return bisect(low, high, lambda at: float(log_profile(np.asarray(epsilon), at)) <= target)[0]


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
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
