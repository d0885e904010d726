"""What guesses at membership prove: valid over independent coins or separate models, an estimate on one model."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore.bounds.audited_epsilon.one_run import epsilon_lower_bound_one_run
from leakcore.numerics import clopper_pearson

_ATTACKER = "sees the released models and the rows in question, and guesses of each whether it was trained on"
_PAPER = "Yeom et al. (2018); Jagielski, Ullman and Oprea (2020), Appendix D"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MembershipEpsilon(Result):
    """ε that follows from how often membership was guessed right, as `epsilon_from_membership` returns it.

    Attributes:
        value: ε; kind "lower" for coins "rows" and "models", "estimate" for "none".
        correct: number of correct guesses.
        guesses: number of guesses.
        accuracy: their ratio.
        coins: as asked.
        delta: as asked.
    """

    quantity: str = "ε"
    correct: int
    guesses: int
    accuracy: float
    coins: str
    delta: float


def epsilon_from_membership(
    correct: int,
    guesses: int,
    *,
    coins: str = "none",
    rows: int | None = None,
    confidence: float = 0.99,
    delta: float = 0.0,
    adjacency: str = "add-remove",
    chosen: Literal["before", "by-scores"] = "before",
) -> MembershipEpsilon:
    """ε from the accuracy a of a balanced membership attack; how members were chosen decides what it is worth.

    Under (ε, δ)-privacy a guess at a fair coin is right with probability at most (e^ε + δ)/(1 + e^ε), so ε ≥ log((a −
    δ)/(1 − a)) (Yeom et al. 2018; Jagielski, Ullman and Oprea 2020, Appendix D).

    - "models": a coin and a model for every guess. Guesses are independent; a becomes its one-sided Clopper–Pearson
      limit.
    - "rows": every row was in or out of its model by its own fair coin. Guesses about one model are dependent, yet
      `epsilon_lower_bound_one_run` holds. Several such models count together.
    - "none": members of one given split, as the text has it. No limit is valid: kind "estimate".

    Args:
        correct: number of correct guesses, in [0, guesses].
        guesses: at least 1.
        coins: "models", "rows" or "none".
        rows: with "rows", the number of all coins, including those not guessed; None: `guesses`.
        confidence: of kind "lower".
        delta: δ in [0, 1).
        adjacency: "add-remove": a row is there or not; "replace" where the coin chose between two rows.
        chosen: with "rows", how the number of guesses was chosen, as in `epsilon_lower_bound_one_run`.

    Returns:
        `MembershipEpsilon` of kind "lower" or "estimate"; 0 where nothing is proved.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        The rule that guesses, its threshold included, must be fixed beforehand or come from other models.
        Deterministic.

    Example:
        >>> from leakcore import bounds
        >>> for coins in ("models", "rows", "none"):
        ...     epsilon = bounds.epsilon_from_membership(700, 1000, coins=coins)
        ...     print(coins, epsilon.kind, f"{epsilon.value:.2f}")
        models lower 0.69
        rows lower 0.69
        none estimate 0.85
    """
    n = validate.integer(1, guesses=guesses)
    hits = validate.integer(0, n, correct=correct)
    design = validate.one_of("models", "rows", "none", coins=coins)
    level, slack = validate.confidence(confidence=confidence), validate.below_one(delta=delta)
    relation = parse_adjacency(adjacency)
    if rows is not None and design != "rows":
        raise ValueError(f"`rows` must be None with coins={design!r}, got {rows!r}: it goes with coins='rows' only")
    if validate.one_of("before", "by-scores", chosen=chosen) != "before" and design != "rows":
        raise ValueError(f"`chosen` must be 'before' with coins={design!r}, got {chosen!r}: it goes with coins='rows'")
    if design == "rows":
        proof = epsilon_lower_bound_one_run(
            hits, n, n if rows is None else rows, confidence=level, delta=slack, adjacency=relation, chosen=chosen
        )
        value, method, notes = float(proof.value), proof.method, proof.assumptions.notes
        provenance = f"{proof.provenance}; {_PAPER}"
    elif design == "models":
        low, _ = clopper_pearson(hits, n, confidence=level, side="lower")
        value, method = _epsilon(float(low), slack), "one-sided Clopper–Pearson limit of the accuracy"
        notes = ("every guess is about a fair coin and a model of its own", "the rule was fixed before these models")
        provenance = f"{_PAPER}; Clopper and Pearson (1934)"
    else:
        value, method = _epsilon(hits / n, slack), "accuracy as it is"
        notes = ("guesses about one model are dependent and no coin chose the members: no confidence can be stated",)
        provenance = _PAPER
    return MembershipEpsilon(
        value=value,
        kind="estimate" if design == "none" else "lower",
        confidence=None if design == "none" else level,
        interval=None,
        method=method,
        assumptions=Assumptions(adjacency=relation, attacker=_ATTACKER, notes=notes),
        provenance=provenance,
        correct=hits,
        guesses=n,
        accuracy=hits / n,
        coins=design,
        delta=slack,
    )


def _epsilon(accuracy: float, delta: float) -> float:
    if accuracy <= 0.5 or accuracy <= delta:
        return 0.0
    return math.inf if accuracy == 1 else max(0.0, math.log((accuracy - delta) / (1 - accuracy)))
