"""Limits of mean gains over units: of the held-out gain itself, and of V-information, which the gain does not exceed.

Each limit adds one unit that was not observed: with the worst gain that a prediction could have made below, with the
best above. Where all gains are equal, the limits then lie about 3/units of such a gain from them (the "rule of three"
at 95%), and no interval has zero width.
"""

from __future__ import annotations

import math

import numpy as np

from leakcore.leakage.units import Units


def student(gains: np.ndarray, units: Units, confidence: float) -> tuple[float, float, float]:
    """(mean over rows, low, high): Student's interval over units."""
    mean, error, reach = _moments(gains, units, None, confidence)
    return mean, mean - reach * error, mean + reach * error


def gain_limits(
    held_out: np.ndarray, worst: float, best: np.ndarray | None, units: Units, confidence: float, empirical_prior: bool
) -> tuple[float, float, float]:
    """(low, high of the held-out gain, high of V-information I = sup_f E[gain of f]).

    Low, of both: fitted members of the family gain at most I on average, so the lower limit of the held-out gain is one
    of I. High, of I: the member that reaches I gains at most as much on these rows as the best fit to them, whose gains
    are `best` (None: not known; I is at most the logarithm of the number of classes). Each side holds with probability
    (1 + confidence)/2.

    Args:
        held_out: (n,) gains of predictions for rows that the fit did not use.
        worst: the least gain that one of these predictions could have made.
        best: (n,) gains of the best fit to all rows, or None.
        units: which rows belong together.
        confidence: of the two-sided limits.
        empirical_prior: whether f[∅] was also estimated, from as many units; its error (χ²/(2·units)) is added to I's
            limit.
    """
    from scipy.special import chdtri

    classes = int(units.labels.max()) + 1
    most = math.log(classes)
    mean, error, reach = _moments(held_out, units, worst, confidence)
    low = mean - reach * error
    mean, error, _ = _moments(held_out, units, most, confidence)
    high = mean + reach * error
    if best is None:
        return low, high, max(high, most)
    mean, spread, _ = _moments(best, units, most, confidence)
    largest = mean + reach * max(spread, error)
    if empirical_prior:
        largest += float(chdtri(classes - 1, (1 - confidence) / 2)) / (2 * len(units.labels))
    return low, high, min(largest, most)


def _moments(gains: np.ndarray, units: Units, one_more: float | None, confidence: float) -> tuple[float, float, float]:
    """(mean over rows, its standard error over units, Student's quantile), with one more unit of that gain, if any."""
    from scipy.special import stdtrit

    number, rows = len(units.labels), float(len(gains))
    sums, sizes = np.bincount(units.rows, gains, minlength=number), np.bincount(units.rows, minlength=number)
    if one_more is not None:
        typical = rows / number
        sums, sizes = np.append(sums, typical * one_more), np.append(sizes, typical)
        number, rows = number + 1, rows + typical
    mean = float(sums.sum() / rows)
    error = math.sqrt(number / (number - 1) * float(((sums - sizes * mean) ** 2).sum())) / rows
    return mean, error, float(stdtrit(number - 1, (1 + confidence) / 2))
