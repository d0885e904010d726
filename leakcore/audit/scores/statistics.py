"""Statistics of members' and non-members' scores: area under the ROC curve, rates, and what guesses at coins prove."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
from scipy import special

from leakcore import bounds, kernels
from leakcore._base.results import Assumptions, Result
from leakcore._base.score_arrays import ascending
from leakcore.audit.shared.claimed_epsilon import noted
from leakcore.mechanisms import Mechanism
from leakcore.numerics import clopper_pearson


def area(inside: np.ndarray, outside: np.ndarray) -> float:
    """P(a score with the rows is larger than one without) + half the ties."""
    pooled, counts = np.unique(np.concatenate([inside, outside]), return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    ranks = middle[np.searchsorted(pooled, inside)].sum()
    return float((ranks - len(inside) * (len(inside) + 1) / 2) / (len(inside) * len(outside)))


def area_limits(value: float, pairs: int, level: float) -> tuple[float, float]:
    """All μ with pairs·KL(value ‖ μ) ≤ log(2/(1 − level)), each side at half of the error."""
    budget = math.log(2 / (1 - level)) / pairs

    def apart(mu: float) -> float:
        return float(special.rel_entr(value, mu) + special.rel_entr(1 - value, 1 - mu))

    ends = []
    for far in (0.0, 1.0):
        near, beyond = value, far
        for _ in range(60):
            middle = 0.5 * (near + beyond)
            near, beyond = (middle, beyond) if apart(middle) <= budget else (near, middle)
        ends.append(beyond)
    return ends[0], ends[1]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MeasuredRate(Result):
    """A true-positive rate with its interval. fpr: the false-positive rate at which it was measured."""

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


_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Shares of the coins that are guessed; the error is split over them, so that the best may be quoted."""
_FAIR = 1e-6
"""Fair coins that fall this unevenly, or more so, are not believed."""


def require_fair(heads: int, coins: int, rows: str) -> None:
    """ValueError where fair coins fall this unevenly less than once in a million."""
    more = max(heads, coins - heads)
    if 2 * float(special.betainc(more, coins - more + 1, 0.5)) < _FAIR:
        raise ValueError(
            f"`coins=True` needs fair coins, which do not make {heads:,} of {coins:,} {rows} members, unless rows are "
            "missing"
        )


def provable(members: np.ndarray, delta: float, confidence: float, family: str | Mechanism = "dp") -> float:
    """The ε that `audited` proves of scores that tell every coin: no scores prove more."""
    return float(audited(members.astype(float), members, delta, confidence, family=family).value)


def audited(
    scores: np.ndarray,
    members: np.ndarray,
    delta: float,
    confidence: float,
    adjacency: str | None = None,
    family: str | Mechanism = "dp",
    k: int = 1,
) -> bounds.OneRunEpsilon:
    """The highest-scoring rows are guessed in, the lowest out, for four numbers of guesses, each at a quarter of the
    error. Every coin must be there. Deterministic.

    A mechanism's curve is slow to compute: the number of guesses is the one that proves most of a Gaussian mechanism.
    """
    n = len(scores)
    order = ascending(scores, kernels.generator(0, kernels.Stream.COIN_TIES))
    each = 1 - (1 - confidence) / len(_SHARES)

    def proof(counts: tuple[int, int], family: str | Mechanism) -> bounds.OneRunEpsilon:
        return bounds.epsilon_lower_bound_one_run(
            *counts, n, confidence=each, delta=delta, adjacency=adjacency, family=family, k=k
        )

    halves = dict.fromkeys(max(1, int(share * n) // 2) for share in _SHARES)
    counts = [
        (int(members[order[n - half :]].sum()) + int((~members[order[:half]]).sum()), 2 * half) for half in halves
    ]
    if isinstance(family, str):
        best = max((proof(pair, family) for pair in counts), key=lambda r: float(r.value))
    else:
        best = proof(max(counts, key=lambda pair: float(proof(pair, "gdp").value)), family)
    p_value = None if best.p_value is None else min(1.0, len(_SHARES) * best.p_value)
    note = f"the best of {len(_SHARES)} numbers of guesses; the error is split over them"
    return noted(best, note, confidence=confidence, p_value=p_value)
