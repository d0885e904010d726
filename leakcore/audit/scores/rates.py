"""True-positive rates at fixed false-positive rates, with intervals that hold in finite samples."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
from scipy import special

from leakcore._base.results import Assumptions, Result
from leakcore.numerics import clopper_pearson


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MeasuredRate(Result):
    """A true-positive rate with its interval.

    Attributes:
        fpr: the false-positive rate at which it was measured.
    """

    compared_at: ClassVar[tuple[str, ...]] = ("fpr",)

    quantity: str = "true-positive rate"
    fpr: float


_ATTACKER = "sees the model (or what it was scored by) and the rows in question"

PROVENANCE = (
    "Carlini et al. (2022) for rates at low false-positive rates; Hoeffding (1963), Clopper and Pearson (1934) for the "
    "limits"
)


def assumed(notes: tuple[str, ...]) -> Assumptions:
    """What a rate or an area takes for granted."""
    return Assumptions(adjacency=None, attacker=_ATTACKER, notes=notes)


def rate_limits(
    inside: np.ndarray, outside: np.ndarray, fpr: float, level: float, notes: tuple[str, ...]
) -> MeasuredRate | None:
    """True-positive rate at a false-positive rate; None where there are too few non-members to see it.

    The k-th highest of m non-members is exceeded with a probability distributed as Beta(k, m − k + 1), or less where
    there are ties. Four events of error (1 − level)/4 each: threshold too low or too high, and the members' two counts.
    """
    m, n = len(outside), len(inside)
    allowed = math.floor(fpr * m + 1e-9)
    if allowed < 1:
        return None
    ranked = np.sort(outside)[::-1]
    here = ranked[allowed] if allowed < m else -np.inf
    k = np.arange(1, m + 1)
    exceeded = special.betainc(k, m - k + 1.0, fpr)
    each = (1 - level) / 4
    strict, loose = np.flatnonzero(exceeded >= 1 - each), np.flatnonzero(exceeded <= each)
    low, high = 0.0, 1.0
    if len(strict):
        hits = int((inside > ranked[strict[-1]]).sum())
        low = float(clopper_pearson(hits, n, confidence=1 - each, side="lower")[0])
    if len(loose):
        hits = int((inside >= ranked[loose[0]]).sum())
        high = float(clopper_pearson(hits, n, confidence=1 - each, side="upper")[1])
    return MeasuredRate(
        value=float((inside > here).mean()),
        kind="estimate",
        confidence=level,
        interval=(low, high),
        fpr=fpr,
        method="threshold from the non-members; order-statistic and Clopper–Pearson limits",
        assumptions=assumed(notes),
        provenance=PROVENANCE,
    )
