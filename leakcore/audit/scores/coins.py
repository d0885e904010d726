"""What guesses at coins prove, from one score for each coin: the best of four numbers of guesses, paid for."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from leakcore import bounds
from leakcore._base.results import Result

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


def provable(members: np.ndarray, delta: float, confidence: float) -> float:
    """The ε that `audited` proves of scores that tell every coin: no scores prove more."""
    return float(audited(members.astype(float), members, delta, confidence).value)


def audited(
    scores: np.ndarray, members: np.ndarray, delta: float, confidence: float, adjacency: str = "add-remove"
) -> Result:
    """The highest-scoring rows are guessed in, the lowest out, for four numbers of guesses, each at a quarter of the
    error (Steinke, Nasr and Jagielski 2023, Theorem 5.2). Every coin must be there. Deterministic.
    """
    order = np.argsort(scores, kind="stable")
    n = len(scores)
    each = 1 - (1 - confidence) / len(_SHARES)
    proofs = []
    for share in _SHARES:
        half = max(1, int(share * n) // 2)
        low, high = order[:half], order[n - half :]
        correct = int(members[high].sum()) + int((~members[low]).sum())
        proofs.append(
            bounds.epsilon_lower_bound_one_run(
                correct, 2 * half, n, confidence=each, delta=delta, adjacency=adjacency
            )
        )  # fmt: skip
    best = max(proofs, key=lambda r: float(r.value))
    notes = (*best.assumptions.notes, f"the best of {len(_SHARES)} numbers of guesses; the error is split over them")
    return dataclasses.replace(
        best, confidence=confidence, assumptions=dataclasses.replace(best.assumptions, notes=notes)
    )
