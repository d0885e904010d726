"""What guesses at coins prove, from one score for each coin: the best of four numbers of guesses, paid for."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from leakcore import bounds
from leakcore._base.results import Adjacency
from leakcore.mechanisms import Mechanism

_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Shares of the coins that are guessed; the error is split over them, so that the best may be quoted."""
_HALVINGS = 30
AS_PAIR = "a replaced row counts as two rows, one that is taken out and one that is put in (group privacy)"
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
) -> bounds.OneRunEpsilon:
    """The highest-scoring rows are guessed in, the lowest out, for four numbers of guesses, each at a quarter of the
    error. Every coin must be there. Deterministic.

    A mechanism's curve is slow to compute: the number of guesses is the one that proves most of a Gaussian mechanism.
    """
    order = np.argsort(scores, kind="stable")
    n = len(scores)
    each = 1 - (1 - confidence) / len(_SHARES)

    def proof(counts: tuple[int, int], family: str | Mechanism) -> bounds.OneRunEpsilon:
        return bounds.epsilon_lower_bound_one_run(
            *counts, n, confidence=each, delta=delta, adjacency=adjacency, family=family
        )

    halves = dict.fromkeys(max(1, int(share * n) // 2) for share in _SHARES)
    counts = [
        (int(members[order[n - half :]].sum()) + int((~members[order[:half]]).sum()), 2 * half) for half in halves
    ]
    if isinstance(family, str):
        best = max((proof(pair, family) for pair in counts), key=lambda r: float(r.value))
    else:
        best = proof(max(counts, key=lambda pair: float(proof(pair, "gdp").value)), family)
    notes = (*best.assumptions.notes, f"the best of {len(_SHARES)} numbers of guesses; the error is split over them")
    p_value = None if best.p_value is None else min(1.0, len(_SHARES) * best.p_value)
    return dataclasses.replace(
        best,
        confidence=confidence,
        assumptions=dataclasses.replace(best.assumptions, notes=notes),
        p_value=p_value,
    )


def audited_as_pairs(
    scores: np.ndarray, members: np.ndarray, delta: float, confidence: float, adjacency: Adjacency
) -> bounds.OneRunEpsilon:
    """What coins that chose between two rows prove of one row that is there or not.

    (ε, δ)-privacy of such a row is (2ε, (1 + e^ε)δ)-privacy of a replacement: every ε is refuted for which the coins
    prove at least 2ε at (1 + e^ε)δ. More is allowed by a larger ε, so all smaller ones are refuted with it.
    """

    def proof(epsilon: float) -> bounds.OneRunEpsilon:
        return audited(scores, members, delta * (1 + math.exp(epsilon)), confidence, "replace")

    def refuted(epsilon: float) -> bool:
        grown = delta * (1 + math.exp(min(epsilon, 700.0)))
        return grown < 1 and float(proof(epsilon).value) >= 2 * epsilon

    plain = audited(scores, members, delta, confidence, "replace")
    low, high = 0.0, float(plain.value) / 2  # at a larger δ less is proved
    for _ in range(_HALVINGS):
        if high - low <= 1e-4 * high:
            break
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    notes = (*plain.assumptions.notes, AS_PAIR)
    return dataclasses.replace(
        plain, value=low, assumptions=dataclasses.replace(plain.assumptions, adjacency=adjacency, notes=notes)
    )
