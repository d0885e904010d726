"""What guesses at coins prove, from one score for each coin: the best of four numbers of guesses, paid for."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from leakcore import bounds, kernels
from leakcore._base.score_arrays import ascending
from leakcore.mechanisms import Mechanism

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
    notes = (*best.assumptions.notes, f"the best of {len(_SHARES)} numbers of guesses; the error is split over them")
    p_value = None if best.p_value is None else min(1.0, len(_SHARES) * best.p_value)
    return dataclasses.replace(
        best, confidence=confidence, assumptions=dataclasses.replace(best.assumptions, notes=notes), p_value=p_value
    )
