"""What guesses at membership prove: valid over independent coins or separate models, an estimate on one model."""

from __future__ import annotations

import dataclasses
import math

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore.bounds.audited_epsilon.one_run import epsilon_lower_bound_one_run
from leakcore.numerics import clopper_pearson

_ATTACKER = "sees the released models and the rows in question, and guesses of each whether it was trained on"
_PAPER = "Yeom et al. (2018); Jagielski, Ullman and Oprea (2020), Appendix D"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MembershipEpsilon(Result):
    """ε that follows from how often membership was guessed right.

    kind: "lower" for coins="rows" and "models", "estimate" for coins="none". correct, guesses: as counted. accuracy:
    their ratio. coins, delta: as asked.
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
) -> MembershipEpsilon:
    """ε from the accuracy of a balanced membership attack; what it is worth depends on how members were chosen.

    A guess at a fair coin is right with probability at most (e^ε + δ)/(1 + e^ε) under (ε, δ)-privacy, so accuracy a
    proves ε ≥ log((a − δ)/(1 − a)) (Yeom et al. 2018; Jagielski, Ullman and Oprea 2020, Appendix D).

    - coins="models": every guess is about a coin and a model of its own: guesses are independent, and a is replaced by
      its one-sided Clopper–Pearson limit. kind "lower".
    - coins="rows": every row was in or out of its model by its own fair coin, many rows to a model. Guesses about one
      model are dependent, yet their number of hits is dominated as if they were not (Steinke, Nasr and Jagielski 2023,
      Theorem 5.2): `epsilon_lower_bound_one_run`. Several models trained with coins of their own count together: they
      are one mechanism with more coins. kind "lower".
    - coins="none": the n members and n non-members of one given split, as the text has it. The 2n guesses are
      dependent and no coin decided who is a member, so no limit is valid: kind "estimate", log(a/(1 − a)) as it is.

    The rule that guesses, its threshold included, must be fixed beforehand or come from other models: the mean training
    loss of the very model is side information that the mechanism does not release.

    correct: in [0, guesses]. guesses ≥ 1. rows: with coins="rows" the number of all coins, those not guessed included;
        None: as many as guesses. confidence: of kind "lower". delta: δ in [0, 1).
    adjacency: "add-remove", because membership decides it: a row is there or not. "replace" where the coin chose
        between two rows.

    Returns a `MembershipEpsilon`, 0 where nothing is proved. Deterministic. Raises ValueError or TypeError that names
    the argument.
    """
    n = validate.integer(1, guesses=guesses)
    hits = validate.integer(0, n, correct=correct)
    design = validate.one_of("models", "rows", "none", coins=coins)
    level, slack = validate.confidence(confidence=confidence), validate.below_one(delta=delta)
    relation = parse_adjacency(adjacency)
    if rows is not None and design != "rows":
        raise ValueError(f"rows={rows!r}: goes with coins='rows' only, not with {design!r}")
    if design == "rows":
        proof = epsilon_lower_bound_one_run(
            hits, n, n if rows is None else rows, confidence=level, delta=slack, adjacency=relation
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
