"""What the scores of poisoned trainings prove."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from leakcore import bounds
from leakcore._base.results import Result
from leakcore.audit.report.claim import ClaimedEpsilon

Scores = dict[str, tuple[np.ndarray, np.ndarray, int]]
"""By name: the scores with the attacker's rows and without them, and the number of these rows."""
FAMILIES: dict[Literal["dp", "gdp"], str] = {"dp": "(ε, δ)", "gdp": "Gaussian mechanism"}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Proof:
    """One lower bound.

    Attributes:
        method: how it was obtained.
        what: on what it was obtained.
        found: the bound.
        ceiling: the most that an audit of this size could prove.
    """

    method: str
    what: str
    found: Result
    ceiling: float

    @property
    def epsilon(self) -> float:
        return float(self.found.value)


def families(claimed: ClaimedEpsilon, confidence: float) -> tuple[tuple[Literal["dp", "gdp"], ...], float]:
    """The families of guarantees that are refuted, and the confidence of each: they hold together."""
    names: tuple[Literal["dp", "gdp"], ...] = ("dp", "gdp") if claimed.gaussian else ("dp",)
    return names, 1 - (1 - confidence) / len(names)


def prove(scores: Scores, claimed: ClaimedEpsilon, confidence: float, seed: int) -> tuple[Proof, ...]:
    """The bound by counts and, for a Gaussian mechanism, by the Gaussian family, valid together at `confidence`."""
    perfect = {name: (np.ones(len(a)), np.zeros(len(b)), k) for name, (a, b, k) in scores.items()}
    names, level = families(claimed, confidence)
    proofs = []
    for family in names:
        more: dict[str, Any] = {
            "threshold": bounds.SimultaneousThreshold(seed=seed),
            "confidence": level,
            "delta": claimed.delta,
            "adjacency": claimed.adjacency,
            "hypothesis": bounds.Hypothesis(family=family),
        }
        best = bounds.epsilon_lower_bound_best(scores, **more)
        ceiling = bounds.epsilon_lower_bound_best(perfect, **more)
        proofs.append(
            Proof(method=f"counts, {FAMILIES[family]}", what=best.chosen, found=best, ceiling=float(ceiling.value))
        )
    return tuple(proofs)
