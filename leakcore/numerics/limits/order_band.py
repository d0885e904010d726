"""A confidence limit of a distribution function that holds at every point at once: the price of picking a threshold by
the very trials that are counted."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import fft, special

from leakcore._base import validate
from leakcore.numerics.dot import dot

_NEGLIGIBLE = 1e-17
"""Probability dropped per point of a step. It can only lower the computed coverage, and so the limits."""

_ROUNDING = 1e-9
"""Relative error of a coverage: at most 20,000 steps, each with probabilities right to some 1e-14."""

_ALL_RANKS = 500
"""With so few trials every rank has a limit of its own."""

_SPACING = 0.5
"""Beyond, ranks with limits are this many standard deviations of an order statistic apart."""

_DIRECT = 1 << 18
"""Products up to which a convolution is faster without a transform."""

_MAX_TRIALS = 1 << 24
"""More trials would take more than a minute."""


def simultaneous_lower_limits(trials: int, *, confidence: float) -> np.ndarray:
    """Lower confidence limits of a distribution function that hold at every point at once.

    L_0 = 0 ≤ L_1 ≤ … ≤ L_n with P(for all x: F(x) ≥ L_{number of draws ≤ x}) ≥ confidence. On a fixed set of ranks L_i
    is the one-sided Clopper–Pearson limit of i successes in n trials, I⁻¹(γ; i, n−i+1), at one common level γ (Berk and
    Jones 1979; Moscovich, Nadler and Spiegelman 2016), so nowhere much looser than the limit at a point fixed
    beforehand. Between them it is that of the rank below. Up to 500 trials the set has every rank, beyond one for every
    half of a standard deviation of U_(i). γ is the largest for which n uniforms satisfy U_(i) ≥ L_i for all i with the
    stated probability.

    By symmetry 1 − L_{n−i} is a simultaneous upper limit after i draws.

    Args:
        trials: n, 1 to 2²⁴.
        confidence: in (0, 1).

    Returns:
        L_0, …, L_n, (n + 1,) float64.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Holds for every F and finite n; a discrete F only makes it safer. The probability is computed exactly, and what
        rounding drops lowers the limits. Deterministic. Time grows like n log n.

    Example:
        >>> from leakcore import numerics
        >>> numerics.simultaneous_lower_limits(4, confidence=0.9).round(3).tolist()
        [0.0, 0.008, 0.078, 0.214, 0.426]
        >>> low, _ = numerics.clopper_pearson(4, 4, confidence=0.9, side="lower")
        >>> f"{low:.3f}"  # a limit at one point that was fixed beforehand is higher
        '0.562'
    """
    n = validate.integer(1, _MAX_TRIALS, trials=trials)
    level = validate.open_probability(confidence=confidence)
    ranks = _ranks(n, _SPACING)
    limits = _limits(ranks, n, _local_level(n, level))
    return np.repeat(np.concatenate([[0.0], limits]), np.diff(ranks, prepend=0, append=n + 1))


def _ranks(n: int, spacing: float) -> np.ndarray:
    """Ranks `spacing` standard deviations √(i(n − i)/n) apart, the first and the last among them."""
    if n <= _ALL_RANKS:
        return np.arange(1, n + 1)
    # i = n sin²(a/2) has that deviation √n/2 · sin a = di/da / √n, so equal steps of a are equal numbers of them.
    angles = np.linspace(0.0, math.pi, math.ceil(math.pi * math.sqrt(n) / spacing) + 1)
    return np.unique(np.clip(np.rint(n * np.sin(angles / 2) ** 2).astype(np.int64), 1, n))


def _limits(ranks: np.ndarray, n: int, gamma: float) -> np.ndarray:
    return np.asarray(special.betaincinv(ranks, n - ranks + 1.0, gamma))


@lru_cache(maxsize=64)
def _local_level(n: int, level: float) -> float:
    """The largest γ whose band has the wanted coverage, to three digits from below.

    Missing the band has a logarithm that is nearly linear in that of γ, so a secant finds γ in two or three steps.
    """
    if n == 1:
        return 1 - level
    ranks = _ranks(n, _SPACING)
    tolerance = 1e-3 if n <= _ALL_RANKS else 4e-3
    # As shares of 1 − level: the union bound over all limits makes 1/n enough, and one limit alone needs at most 1.
    low, high = -math.log(n), 0.0
    at, slope, before = max(low, -_log_number(n, level)), 0.9, None
    while high - low > tolerance:
        missed = 1 - coverage(ranks, _limits(ranks, n, (1 - level) * math.exp(at)), n)
        error = math.log(missed / (1 - level))
        if error <= 0:
            low = at
            if error >= -tolerance:
                break
        else:
            high = at
        if before is not None and at != before[0]:
            slope = min(2.0, max(0.3, (error - before[1]) / (at - before[0])))
        before = at, error
        step = at - (error + 0.5 * tolerance) / slope
        at = step if low < step < high else 0.5 * (low + high)
    return (1 - level) * math.exp(low)


def _log_number(n: int, level: float) -> float:
    """About how many independent limits the band is worth: a fit to measured ones, from which the secant starts."""
    size, odds = math.log(n), math.log(0.025 / (1 - level))
    return math.log(max(1.1, (0.38 * size**2 + 3.49 * size - 2.17) * max(0.2, 1 + 0.16 * odds - 0.008 * odds**2)))


def coverage(ranks: np.ndarray, limits: np.ndarray, n: int) -> float:
    """P(U_(i) ≥ limits[j] for every i = ranks[j]) of n uniforms, from below."""
    weight = np.ones(1)  # of the numbers of points so far: first, first + 1, …
    first, error = 0, 0.0
    for rank, mean in zip(ranks.tolist(), (n * np.diff(limits, prepend=0.0)).tolist(), strict=True):
        # Up to the limit of a rank there may be rank − 1 points.
        least, points = _poisson(mean)
        weight, lost = _convolved(weight, points)
        first, error = first + least, error + lost
        weight = weight[: max(0, rank - first)]
        heavy = np.flatnonzero(weight > _NEGLIGIBLE)
        if len(heavy) == 0:
            return 0.0
        weight, first = weight[heavy[0] : heavy[-1] + 1], first + int(heavy[0])
    counts = n - np.arange(first, first + len(weight))  # points still to come beyond the last limit
    rest = n * (1 - limits[-1])
    log_last = special.xlogy(counts, rest) - rest - special.gammaln(counts + 1.0)
    log_total = n * math.log(n) - n - math.lgamma(n + 1.0) if n < 100 else _log_mode(n)
    scale = math.exp(-log_total)
    return max(0.0, dot(weight, np.exp(log_last)) * scale * (1 - _ROUNDING) - error * scale)


def _log_mode(n: int) -> float:
    """log P(Poisson(n) = n) by Stirling's series, without the cancellation of n log n."""
    return -0.5 * math.log(2 * math.pi * n) - 1 / (12 * n) + 1 / (360 * n**3)


def _poisson(mean: float) -> tuple[int, np.ndarray]:
    """Probabilities of a Poisson distribution where they are not negligible, and the first number that has one."""
    reach = 8.7 * math.sqrt(mean) + 15
    least = max(0, math.floor(mean - reach))
    k = np.arange(least + 1, math.ceil(mean + reach) + 1.0)
    if least == 0:
        return 0, np.cumprod(np.concatenate([[math.exp(-mean)], mean / k]))
    logs = np.concatenate([[0.0], np.cumsum(np.log(mean / k))])
    points = np.exp(logs - logs.max())
    return least, points / points.sum()


def _convolved(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float]:
    """The convolution, and the largest error of a point that matters: sums of positive products have none."""
    size = len(a) + len(b) - 1
    if len(a) * len(b) < _DIRECT:
        return np.convolve(a, b), 0.0
    padded = fft.next_fast_len(size, real=True)
    out = fft.irfft(fft.rfft(a, padded) * fft.rfft(b, padded), padded)[:size]
    # Higham, Accuracy and Stability of Numerical Algorithms (2002), Theorem 24.2, for three transforms.
    norm = math.sqrt(dot(a, a) * dot(b, b))
    return out, 32 * 2.0**-53 * math.log2(padded) * norm
