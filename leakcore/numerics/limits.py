"""Confidence limits for finite samples: of a proportion, of a mean by betting, and of a distribution function.

Betting: if X_1 … X_n are independent with mean m and values in [0, 1], W(m) = Π_i (1 + λ(X_i − m)) has expectation 1
for every fixed λ that keeps the factors positive, so P(W(m) ≥ 1/α) ≤ α (Markov; by Ville's inequality for all n at
once, so that one may stop at any time). The limit is the edge of the candidates that are not rejected (Waudby-Smith and
Ramdas 2024, with a constant bet). λ must not depend on the X: it is chosen on an independent pilot.

Betting from sums alone (`PairSums`), for outcomes that are averages and cannot be counted in cells: for independent
D_i ≥ −d with mean at most 0, and λ < 1/d fixed beforehand, Π(1 + λD_i) has expectation at most 1, and
log(1 + x) ≥ x − k(c)x²/2 for x ≥ −c, k(c) = −2(log(1 − c) + c)/c², because (x − log(1 + x))/x² falls. So
    P(λΣD − k(λd)·λ²ΣD²/2 ≥ log(1/α)) ≤ α:
an empirical Bernstein test with the constants of betting (Waudby-Smith and Ramdas 2024, Section 3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import fft, special

from leakcore._base import validate
from leakcore._base.results import Number
from leakcore.numerics.arithmetic import bisect, dot


def clopper_pearson(
    successes: Any, trials: Any, *, confidence: float, side: str = "two-sided"
) -> tuple[Number, Number]:
    """Confidence limits (low, high) of a probability p from `successes` out of `trials` independent draws.

    Clopper and Pearson (1934): low solves P(Bin(n, p) ≥ k) = a and high solves P(Bin(n, p) ≤ k) = a. These are the Beta
    quantiles low = I⁻¹(a; k, n−k+1) and high = I⁻¹(1−a; k+1, n−k), with a = (1 − confidence)/2 for "two-sided" and a =
    1 − confidence for "lower" (then high is 1) and "upper" (then low is 0).

    Args:
        successes: k, an integer or an integer array, 0 ≤ k ≤ n; broadcast with `trials`.
        trials: n ≥ 1, likewise.
        confidence: level of the interval, in (0, 1).
        side: "two-sided", "lower" or "upper".

    Returns:
        (low, high): floats for scalar input, otherwise float64 arrays of the broadcast shape. No successes give low = 0
        exactly, all successes give high = 1 exactly.

    Raises:
        ValueError: for a count outside its range, shapes that do not broadcast, or another value that is not allowed.
        TypeError: for a count that is not an integer.

    Guarantees:
        Holds for finite samples: whatever p is, the interval misses it with probability at most 1 − confidence.
        Deterministic.

    Example:
        >>> from leakcore import numerics
        >>> low, high = numerics.clopper_pearson(7, 10, confidence=0.95)
        >>> f"{low:.3f} to {high:.3f}"
        '0.348 to 0.933'
    """
    level = validate.open_probability(confidence=confidence)
    which = validate.one_of("two-sided", "lower", "upper", side=side)
    n = _counts("trials", trials, 1)
    k = _counts("successes", successes, 0)
    try:
        k, n = np.broadcast_arrays(k, n)
    except ValueError:
        raise ValueError(f"`successes` and `trials` must broadcast, got shapes {k.shape} and {n.shape}") from None
    if (k > n).any():
        at = tuple(np.argwhere(k > n)[0])
        raise ValueError(f"`successes` must be at most trials={int(n[at])}, got {int(k[at])}")
    tail = (1.0 - level) / (2.0 if which == "two-sided" else 1.0)
    low = np.zeros(k.shape)
    high = np.ones(k.shape)
    # At k = 0 and k = n one Beta quantile is undefined and its limit is 0 or 1: shift those cases, then discard them.
    if which != "upper":
        low = np.where(k == 0, 0.0, special.betaincinv(np.maximum(k, 1), n - k + 1.0, tail))
    if which != "lower":
        # The complementary inverse keeps a tiny tail exact, where 1 − tail would round to 1.
        high = np.where(k == n, 1.0, special.betainccinv(k + 1.0, np.maximum(n - k, 1), tail))
    if k.ndim == 0:
        return float(low), float(high)
    return low, high


def _counts(name: str, value: Any, least: int) -> np.ndarray:
    out = validate.even_array(**{name: value})
    if out.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be an integer or an array of integers, got {value!r}")
    if (out < least).any():
        raise ValueError(f"`{name}` must be at least {least}, got {int(out[out < least][0])}")
    return out.astype(np.int64)


_BETS = np.concatenate((np.geomspace(1e-5, 0.5, 40), np.linspace(0.55, 0.98, 10)))


def betting_upper_limit(
    values: np.ndarray, counts: np.ndarray, bet: float | np.ndarray, alpha: float, *, relative_width: float = 0.0
) -> float:
    """The smallest m whose hypothesis "mean ≥ m" is rejected at level α; 1 when none is.

    values: distinct outcomes in [0, 1]; counts: how often each was seen. bet: λ in (0, 1), independent of the counts,
    or several whose wealth is averaged. P(limit < true mean) ≤ α, for all sizes of a growing sample at once. The
    bisection's upper end is returned, `relative_width` above the edge at most.
    """
    bets = np.atleast_1d(np.asarray(bet, dtype=np.float64))
    target = math.log(len(bets)) - math.log(alpha)
    hit = np.asarray(counts) != 0
    values, counts = np.asarray(values)[hit], np.asarray(counts)[hit]

    def rejected(m: float) -> bool:
        # A bet that the mean is below m: each factor is at least 1 − λ > 0.
        gaps = m - values
        won = [dot(counts, np.log1p(one * gaps)) for one in bets]
        return float(np.logaddexp.reduce(won)) >= target

    low, high = 0.0, 1.0
    if not rejected(1.0):
        return 1.0
    if rejected(0.0):
        return 0.0
    while low < (middle := 0.5 * (low + high)) < high and high - low > relative_width * high:
        low, high = (low, middle) if rejected(middle) else (middle, high)
    return min(1.0, high * (1.0 + 1e-12))


def betting_lower_limit(
    values: np.ndarray, counts: np.ndarray, bet: float | np.ndarray, alpha: float, *, relative_width: float = 0.0
) -> float:
    """The mirror image: P(limit > true mean) ≤ α; 0 when nothing is rejected."""
    return 1.0 - betting_upper_limit(1.0 - values, counts, bet, alpha, relative_width=relative_width)


def choose_bet(values: np.ndarray, pilot_counts: np.ndarray, num_samples: int, alpha: float) -> float:
    """The λ that would give the least upper limit if `num_samples` outcomes were distributed like the pilot's.

    One unseen outcome of 1 is added, so that a pilot without variation does not bet as if there were none.
    """
    cell = np.minimum((np.asarray(values) * 256).astype(np.int64), 255)
    counts = np.bincount(cell, weights=pilot_counts, minlength=257)
    counts[256] += 1.0
    counts *= num_samples / counts.sum()
    centres = np.append((np.arange(256) + 0.5) / 256, 1.0)
    # Outcomes of exactly 0 are most of them in the far tail; a cell's centre would hide that.
    zero = float(np.asarray(pilot_counts)[np.asarray(values) == 0.0].sum()) * num_samples / (np.sum(pilot_counts) + 1.0)
    counts[0] = max(counts[0] - zero, 0.0)
    centres, counts = np.append(centres, 0.0), np.append(counts, zero)
    occupied = counts > 0
    centres, counts = centres[occupied], counts[occupied]

    def limit(index: int) -> float:
        return betting_upper_limit(centres, counts, float(_BETS[index]), alpha, relative_width=1e-4)

    # The limit falls and then rises with the bet: every seventh finds the neighbourhood.
    rough = min(range(0, len(_BETS), 7), key=limit)
    return float(_BETS[min(range(max(rough - 6, 0), min(rough + 7, len(_BETS))), key=limit)])


_LARGEST = 0.5
"""λd at most: k(0.5) = 1.55 costs little, and only samples too small to matter would want more."""


@dataclasses.dataclass(frozen=True)
class PairSums:
    """Sums over n independent pairs (a, b), 0 ≤ b ≤ a ≤ 1."""

    count: float
    a: float
    b: float
    aa: float
    ab: float
    bb: float

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> PairSums:
        """The sums of two arrays."""
        return cls(float(len(a)), float(a.sum()), float(b.sum()), dot(a, a), dot(a, b), dot(b, b))

    def __add__(self, other: PairSums) -> PairSums:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return PairSums(*(x + y for x, y in pairs))

    def gap(self, x: float, y: float, z: float) -> tuple[float, float]:
        """(ΣD, ΣD²) of D = x·a + y·b + z."""
        n = self.count
        square = x * x * self.aa + y * y * self.bb + z * z * n + 2.0 * (x * y * self.ab + z * (x * self.a + y * self.b))
        return x * self.a + y * self.b + z * n, max(square, 0.0)


def lower_limit(
    counted: PairSums,
    pilot: PairSums,
    alpha: float,
    *,
    a: float = 0.0,
    b: float = 0.0,
    constant: float = 0.0,
    most: float = 1.0,
) -> float:
    """P(limit > E Y) ≤ α for Y = a·A + b·B + constant, the coefficients such that Y is in [0, most] whatever the pair.

    The bet is chosen on the pilot, which is independent of these sums.
    """
    centre = (a * pilot.a + b * pilot.b) / pilot.count + constant
    bet = _bet(pilot.gap(a, b, constant - centre), pilot.count, counted.count, most, alpha)
    return _last(lambda m: _log_wealth(counted.gap(a, b, constant - m), bet, most), 0.0, most, alpha)


def _bet(gap: tuple[float, float], pilot: float, count: float, least: float, alpha: float) -> float:
    # One unit outcome more than the pilot saw: a pilot without variation must not bet as if there were none.
    square = (gap[1] + min(least, 1.0) ** 2) / (pilot + 1.0)
    return min(math.sqrt(-2.0 * math.log(alpha) / (count * square)), _LARGEST / least)


def _log_wealth(gap: tuple[float, float], bet: float, least: float) -> float:
    c = bet * least
    curvature = -2.0 * (math.log1p(-c) + c) / (c * c) if c > 1e-4 else 1.0 + c
    return bet * gap[0] - 0.5 * curvature * bet * bet * gap[1]


def _last(log_wealth: Callable[[float], float], low: float, high: float, alpha: float) -> float:
    """The end of the rejected candidates, which start at `low`: the wealth is a concave parabola of the candidate."""
    target = -math.log(alpha)
    if log_wealth(low) < target:
        return low
    return bisect(low, high, lambda m: log_wealth(m) >= target)[0]


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
        confidence: level of the band, in (0, 1).

    Returns:
        L_0, …, L_n, (n + 1,) float64.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
    """The largest γ whose band has the wanted coverage, to three digits from below. Missing the band has a logarithm
    that is nearly linear in that of γ, so a secant finds γ in two or three steps."""
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
