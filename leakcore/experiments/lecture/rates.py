"""How fast measured errors grow, network by network, and the least error that noise allows an unbiased attacker."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from leakcore.experiments.result import Stated

CONFIDENCE = 0.95
"""Of an exponent's interval, over networks."""


@dataclasses.dataclass(frozen=True)
class Rate:
    """An exponent of the error: the one that a bound promises, and ours with its interval over networks."""

    over: str
    promised: float
    measured: float
    interval: tuple[float, float]

    @property
    def holds(self) -> bool:
        """Whether the error grows no faster than promised, as far as the interval can tell."""
        return self.interval[0] <= self.promised

    def stated(self) -> Stated:
        """As a line of the result."""
        return Stated(
            what=f"exponent of the error over {self.over}",
            paper=f"at most {self.promised:g}",
            ours=self.measured,
            interval=self.interval if all(map(math.isfinite, self.interval)) else None,
            kind="estimate",
            confidence=CONFIDENCE if all(map(math.isfinite, self.interval)) else None,
            comment="Student's t over networks, each with a slope of its own",
        )


def rate(over: str, promised: float, x: Sequence[float] | np.ndarray, errors: np.ndarray) -> Rate:
    """The slope of log error over log x, of each network by itself.

    errors: (values of x, networks), positive. With one network the interval is the whole line: it refutes nothing.
    """
    slopes = np.polyfit(np.log(np.asarray(x, float)), np.log(errors), 1)[0]
    middle = float(np.mean(slopes))
    if len(slopes) < 2:
        return Rate(over, promised, middle, (-math.inf, math.inf))
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(slopes) - 1) * np.std(slopes, ddof=1) / math.sqrt(len(slopes)))
    return Rate(over, promised, middle, (middle - reach, middle + reach))


def least_error(x: np.ndarray, residuals: np.ndarray, weights: np.ndarray, std: float) -> float:
    """Cramér–Rao: the least root mean square error of inputs of unit length, for an unbiased attacker.

    Of g_j = Σ_i r_i ELU(w_jᵀx_i) + N(0, std²), with weights known and inputs and residuals unknown. x: (B, d).
    """
    columns, tangents = [], []
    for row, r in zip(x, residuals, strict=True):
        u = weights @ row
        across = np.linalg.svd(row[None])[2][1:]  # (d − 1, d): the directions in which a unit vector can move
        slope = np.where(u > 0, 1.0, np.exp(np.minimum(u, 0.0)))
        columns += [
            np.where(u > 0, u, np.expm1(np.minimum(u, 0.0)))[:, None],
            (r * slope)[:, None] * weights @ across.T,
        ]
        tangents += [False] + [True] * len(across)
    design = np.hstack(columns)
    covariance = std**2 * np.linalg.pinv(design.T @ design, hermitian=True)
    return math.sqrt(float(np.diag(covariance)[np.array(tangents)].sum()) / len(x))
