"""What a single training run proves: many canaries, each in or out by its own coin, and guesses at the coins."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result, parse_adjacency

_LARGEST = 700.0
"""Largest ε that can be proved: e^ε overflows above it."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OneRunEpsilon(Result):
    """A proof from one run, at its confidence, that the mechanism is not (ε′, δ)-private for any ε′ < `value`.

    Attributes:
        value: ε, 0 where the guesses prove nothing.
        correct: number of correct guesses.
        guesses: number of guesses.
        canaries: number of canaries.
        delta: as asked.
    """

    quantity: str = "ε"
    correct: int
    guesses: int
    canaries: int
    delta: float


def epsilon_lower_bound_one_run(
    correct: int,
    guesses: int,
    canaries: int,
    *,
    confidence: float = 0.99,
    delta: float = 0.0,
    adjacency: str = "add-remove",
) -> OneRunEpsilon:
    """Lower bound on ε from one run: m canaries, r guesses at whether each was included, v of them correct.

    Each canary is included by an independent fair coin; the auditor guesses r of the m coins and abstains on the rest.
    If the mechanism is (ε, δ)-private, then with W ~ Bin(r, e^ε/(1 + e^ε))

        P(correct ≥ v) ≤ P(W ≥ v) + 2mδ·max_{1 ≤ i ≤ v} P(v − i ≤ W < v)/i,

    and `value` is the largest ε for which the right side is at most 1 − confidence (Steinke, Nasr and Jagielski 2023,
    Theorem 5.2 and Appendix D).

    Args:
        correct: v in [0, guesses].
        guesses: r in [0, canaries]; the number, or a rule by the scores (such as the largest and the smallest 100),
            must be fixed before the coins are looked at.
        canaries: m ≥ 1, those not guessed included.
        confidence: in (0, 1 − 1e-12].
        delta: δ in [0, 1).
        adjacency: "add-remove": a coin says whether the canary is there; "replace" where each coin chose between two
            rows.

    Returns:
        `OneRunEpsilon` of kind "lower"; 0 where the guesses prove nothing.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Holds over the coins and the mechanism's randomness. Rarely tight: canaries in one run disturb each other.
        Deterministic given the counts.

    Example:
        >>> from leakcore import bounds
        >>> proof = bounds.epsilon_lower_bound_one_run(180, 200, 1000, delta=1e-5)
        >>> f"{proof.value:.2f}", proof.kind
        ('1.65', 'lower')
    """
    m = validate.integer(1, canaries=canaries)
    r = validate.integer(0, m, guesses=guesses)
    v = validate.integer(0, r, correct=correct)
    level = validate.confidence(confidence=confidence)
    slack = validate.below_one(delta=delta)
    relation = parse_adjacency(adjacency)
    low, high = 0.0, _LARGEST
    if _chance(v, r, m, 0.0, slack) > 1 - level:
        high = 0.0
    # (ε, δ) refuted refutes every smaller ε, so whichever refuted ε the bisection ends on is a bound.
    while low < (middle := 0.5 * (low + high)) < high:
        if _chance(v, r, m, middle, slack) <= 1 - level:
            low = middle
        else:
            high = middle
    return OneRunEpsilon(
        value=low,
        kind="lower",
        confidence=level,
        interval=None,
        method="binomial tail of the correct guesses",
        assumptions=Assumptions(
            adjacency=relation,
            attacker="inserts the canaries, sees what the run releases, and guesses the coins",
            notes=(
                "each canary was included by its own fair coin, independent of everything else",
                "which coins are guessed, and how, depends on the release alone",
                "one run: holds over the coins and the mechanism's own randomness",
            ),
        ),
        provenance="Steinke, Nasr and Jagielski (2023), Theorem 5.2 and Appendix D",
        correct=v,
        guesses=r,
        canaries=m,
        delta=slack,
    )


def _chance(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    """The theorem's bound on the probability of v or more correct guesses."""
    right = 1.0 / (1.0 + math.exp(-epsilon))
    tail = 1.0 if v == 0 else float(special.betainc(v, r - v + 1, right))
    if delta == 0 or v == 0:
        return tail
    w = np.arange(v - 1.0, -1.0, -1.0)
    wrong_log = -epsilon - math.log1p(math.exp(-epsilon))
    log_mass = (
        special.gammaln(r + 1.0) - special.gammaln(w + 1.0) - special.gammaln(r - w + 1.0)
        + w * math.log(right) + (r - w) * wrong_log
    )  # fmt: skip
    nearest = np.cumsum(np.exp(log_mass)) / np.arange(1, v + 1)
    return tail + 2 * m * delta * float(nearest.max())
