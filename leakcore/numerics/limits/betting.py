"""Finite-sample confidence limits for the mean of [0, 1] variables by betting against each candidate mean.

If X_1 … X_n are independent with mean m and values in [0, 1], W(m) = Π_i (1 + λ(X_i − m)) has expectation 1 for every
fixed λ that keeps the factors positive, so P(W(m) ≥ 1/α) ≤ α (Markov; by Ville's inequality for all n at once, so that
one may stop when one likes). The limit is the edge of the candidates that are not rejected (Waudby-Smith and Ramdas
2024, with a constant bet). λ must not depend on the X: it is chosen on an independent pilot.
"""

from __future__ import annotations

import math

import numpy as np

from leakcore.numerics.dot import dot

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
