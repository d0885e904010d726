"""What a single training run proves by guesses: at the coins of many canaries, or at who was a member."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Adjacency, Assumptions, Result, parse_adjacency
from leakcore.bounds.audited_epsilon.families import (
    ApproximateFamily,
    CurveFamily,
    GaussianFamily,
    MechanismFamily,
    ScaledMechanism,
    Tangents,
    claimed_lines,
    log_ratios,
)
from leakcore.mechanisms import GDP, ApproximateDP, Mechanism
from leakcore.numerics import clopper_pearson


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OneRunEpsilon(Result):
    """A proof from one run, at its confidence, that no mechanism of the family with an ε at δ below `value` was run.

    Attributes:
        value: ε, 0 where the guesses prove nothing.
        correct: number of correct guesses.
        guesses: number of guesses.
        canaries: number of canaries.
        delta: as asked.
        family: "dp", "gdp" or the claimed mechanism as text.
        mu: with family "gdp", no smaller μ is possible; else None.
        noise_multiplier: with a claimed mechanism, no larger σ is possible, at this confidence; else None.
        p_value: with a claimed mechanism, how likely so many right guesses are at most if it ran; else None.
    """

    quantity: str = "ε"
    correct: int
    guesses: int
    canaries: int
    delta: float
    family: str = "dp"
    mu: float | None = None
    noise_multiplier: float | None = None
    p_value: float | None = None


@one_thread()
def epsilon_lower_bound_one_run(
    correct: int,
    guesses: int,
    canaries: int,
    *,
    confidence: float = 0.99,
    delta: float = 0.0,
    adjacency: str | None = None,
    family: str | Mechanism = "dp",
    chosen: Literal["before", "by-scores"] = "before",
    k: int = 1,
) -> OneRunEpsilon:
    """Lower bound on ε from one run: m canaries, r guesses at whether each was included, v of them correct.

    Each canary is included by a fair coin. A mechanism's trade-off curve bounds how likely v right guesses are
    (Mahloujifar, Melis and Chaudhuri 2025; Steinke, Nasr and Jagielski 2023). `value` is the largest ε of the family
    that makes them less likely than 1 − confidence (docs/explanation/audit-power.md).

    Args:
        correct: v in [0, guesses].
        guesses: r in [0, canaries], not chosen by how many guesses are right.
        canaries: m ≥ 1, guessed or not.
        confidence: level of the bound, in (0, 1 − 1e-12].
        delta: δ in [0, 1).
        adjacency: "replace" where each coin chose between two rows; None: a mechanism's own, else add-remove.
        family: what is refuted: "dp"; "gdp", μ-GDP; or a mechanism with any noise. The last two need δ > 0.
        chosen: when r was chosen: "before" anyone looked at the scores, or "by-scores", by any rule on the release.
            That is free at δ = 0, halves the error of "dp" at δ > 0, costs more with "gdp", and is refused otherwise.
        k: rows that a coin changes, 1 for a mechanism; `value` is about one row.

    Returns:
        `OneRunEpsilon` of kind "lower"; 0 where the guesses prove nothing.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        Holds over coins and mechanism; for "gdp" and a mechanism, if what ran is of that family. Deterministic.

    Example:
        >>> from leakcore import bounds, mechanisms
        >>> counts = {"correct": 180, "guesses": 200, "canaries": 1000, "delta": 1e-5}
        >>> [f"{bounds.epsilon_lower_bound_one_run(**counts, family=name).value:.2f}" for name in ("dp", "gdp")]
        ['1.66', '2.43']
        >>> proof = bounds.epsilon_lower_bound_one_run(**counts, family=mechanisms.FullBatch(2.0, 1))
        >>> f"σ = 2 has p-value {proof.p_value:.0e}; σ is at most {proof.noise_multiplier:.1f}"
        'σ = 2 has p-value 2e-03; σ is at most 1.7'
    """
    m = validate.integer(1, canaries=canaries)
    r = validate.integer(0, m, guesses=guesses)
    v = validate.integer(0, r, correct=correct)
    level = validate.confidence(confidence=confidence)
    slack = validate.below_one(delta=delta)
    if isinstance(family, Mechanism):
        relation = family.relation(adjacency)
    else:
        relation = "add-remove" if adjacency is None else parse_adjacency(adjacency)
    rows = validate.integer(1, k=k)
    rule = validate.one_of("before", "by-scores", chosen=chosen)
    if rule != "before" and isinstance(family, Mechanism) and not isinstance(family, (GDP, ApproximateDP)):
        raise ValueError(
            f"`chosen` must be 'before' where `family` is {type(family).__name__}, got {chosen!r}: a choice by the "
            "scores is paid for with 'dp' and 'gdp' alone; fix the number of guesses, or split the error over a few"
        )
    tail = GuessTail(v, r, m)

    def refutes(lines: Tangents) -> bool:
        return tail.exceeds((1 - level) / _paid(rule, lines), lines)

    tested = _tested(family, slack, relation, rows, lambda gaussian: gaussian.largest_refuted(refutes))
    parameter = tested.largest_refuted(refutes)
    claimed = tested.lines(1.0) if isinstance(tested, MechanismFamily) else claimed_lines(family, rows)
    return OneRunEpsilon(
        value=tested.epsilon(parameter) if parameter > 0 else 0.0,
        kind="lower",
        confidence=level,
        interval=None,
        method="tail of the correct guesses under a trade-off curve",
        assumptions=Assumptions(
            adjacency=relation,
            attacker="inserts the canaries, sees what the run releases, and guesses the coins",
            notes=(
                "each canary was included by its own fair coin, independent of everything else",
                "which coins are guessed, and how, depends on the release alone",
                "the number of guesses was chosen by the release alone; the error pays for the choice"
                if rule == "by-scores"
                else "the number of guesses was fixed before the scores were looked at",
                *(
                    ()
                    if rows == 1
                    else (f"a coin changes {rows} rows; the bound is for one of them, by group privacy",)
                ),
                "one run: holds over the coins and the mechanism's own randomness",
                *tested.notes(),
            ),
        ),
        provenance="Steinke, Nasr and Jagielski (2023), Theorem 5.2; Mahloujifar, Melis and Chaudhuri (2025), "
        "Theorem 9",
        correct=v,
        guesses=r,
        canaries=m,
        delta=slack,
        family=family if isinstance(family, str) else repr(family),
        mu=parameter if isinstance(tested, GaussianFamily) else None,
        noise_multiplier=tested.mechanism.noise_multiplier(parameter) if isinstance(tested, MechanismFamily) else None,
        p_value=None if claimed is None else min(1.0, _paid(rule, claimed) * tail.chance(claimed)),
    )


def _paid(rule: str, lines: Tangents) -> int:
    """The factor by which a choice of the number of guesses by the release can raise the error.

    For each number r, P(r is chosen and at least v_r guesses are right) is at most a concave and homogeneous function
    f_r of P(r is chosen) and of the parts of mδ_l that the outputs with this choice use up. The parts of all r share
    mδ_l. Where f_r ≤ α at (1, mδ), the tangent there gives f_r(π, d) ≤ α π + α Σ_l d_l/(mδ_l), and so Σ_r f_r ≤ α(1 +
    number of lines with δ > 0).
    """
    return 1 if rule == "before" else 1 + int(np.count_nonzero(lines.deltas))


def _tested(family: Any, delta: float, relation: Adjacency, k: int, fitted: Any) -> CurveFamily:
    """The family that is asked for; `fitted` says how far apart Gaussians with these counts are."""
    if isinstance(family, str):
        name = validate.one_of("dp", "gdp", family=family)
    elif isinstance(family, Mechanism):
        name = "gdp" if isinstance(family, GDP) else "dp" if isinstance(family, ApproximateDP) else "mechanism"
    else:
        raise TypeError(f"`family` must be 'dp', 'gdp' or a mechanism of leakcore.mechanisms, got {family!r}")
    if name == "dp":
        return ApproximateFamily(delta, k)
    if delta == 0:
        raise ValueError(f"`delta` must be positive with family={family!r}, got {delta!r}: its ε at δ = 0 is infinite")
    gaussian = GaussianFamily(delta, k)
    if name == "gdp":
        return gaussian
    if k > 1:
        raise ValueError(f"`k` must be 1 where `family` is a mechanism, got {k}: its curve is about one row")
    family.with_noise(1.0)  # refuses a mechanism without noise to change
    return MechanismFamily(ScaledMechanism(family, relation, delta), log_ratios(max(fitted(gaussian), 0.1)))


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

    - "models": a coin and a model for every guess; a becomes its one-sided Clopper–Pearson limit.
    - "rows": every row was in or out of its model by its own fair coin, as in `epsilon_lower_bound_one_run`. Several
      such models count together.
    - "none": members of one given split, as the text has it. No limit is valid: kind "estimate".

    Args:
        correct: number of correct guesses, in [0, guesses].
        guesses: number of guesses, at least 1.
        coins: "models", "rows" or "none".
        rows: with "rows", the number of all coins, including those not guessed; None: `guesses`.
        confidence: level of a bound of kind "lower", in (0, 1 − 1e-12].
        delta: δ in [0, 1).
        adjacency: "add-remove": a row is there or not; "replace" where the coin chose between two rows.
        chosen: with "rows", how the number of guesses was chosen, as in `epsilon_lower_bound_one_run`.

    Returns:
        `MembershipEpsilon` of kind "lower" or "estimate"; 0 where nothing is proved.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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


_ROUNDING = 1e-9
"""More than the recursion's rounding can move a probability, relative to it."""
_HALVINGS = 60


class GuessTail:
    """The event {at least v of r guesses at m fair coins are right}.

    With p_c = P(c guesses are right), flipping the coin of a right guess turns c right guesses into c − 1. For each
    line (ε, δ) and each test θ_c ∈ [0, 1] of the number of right guesses

        Σ_c θ_c c p_c ≤ mδ + e^ε Σ_c θ_c (r − c + 1) p_(c−1)

    (Mahloujifar, Melis and Chaudhuri 2025, Theorem 9, for θ of an interval). θ_c = 1 for i ≤ c ≤ v and, above v, θ as
    the binomial law of odds e^ε has it, makes the part above v a multiple κ(ε) of γ = P(at least v are right):

        κ(ε)γ + A_i ≤ mδ + e^ε B_(i−1),  A_i = Σ_(i≤c<v) c p_c,  B_i = Σ_(i≤c<v) (r − c) p_c.

    From the top, B_(i−1) is at least the largest that a line demands, and A follows. All probabilities together are
    γ + (A_0 + B_0)/r; a γ for which that exceeds 1 is impossible.
    """

    def __init__(self, correct: int, guesses: int, canaries: int) -> None:
        self._correct, self._guesses, self._canaries = correct, guesses, canaries

    def exceeds(self, chance: float, lines: Tangents) -> bool:
        """Whether no release under these lines makes the event as likely as `chance`."""
        return self._correct > 0 and self._total(chance, lines, self._multiples(lines)) > 1.0 + _ROUNDING

    def chance(self, lines: Tangents) -> float:
        """No release under these lines makes the event likelier than this: a p-value of the lines."""
        if self._correct == 0:
            return 1.0
        multiples = self._multiples(lines)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high) if low > 0 or high > 1e-3 else high * 1e-3
            if middle < 1e-300:
                break
            if self._total(middle, lines, multiples) > 1.0 + _ROUNDING:
                high = middle
            else:
                low = middle
        return high

    def _multiples(self, lines: Tangents) -> np.ndarray:
        """κ(ε) = v·P(W = v)/P(W ≥ v) for W ~ Bin(r, e^ε/(1 + e^ε)), from below."""
        v, r = self._correct, self._guesses
        right = special.expit(lines.epsilons)
        tail = special.betainc(v, r - v + 1.0, right)
        log_mass = (
            special.gammaln(r + 1.0)
            - special.gammaln(v + 1.0)
            - special.gammaln(r - v + 1.0)
            + v * special.log_expit(lines.epsilons)
            + (r - v) * special.log_expit(-lines.epsilons)
        )
        with np.errstate(divide="ignore", over="ignore"):
            exact = np.exp(log_mass - np.log(tail))
            # Where the tail underflows: its terms fall at least as fast as the first two.
            ratio = (r - v) / (v + 1.0) * np.exp(lines.epsilons)
        share = np.where(tail > 1e-290, exact, np.maximum(1.0 - ratio, 0.0))
        return np.asarray(v * np.minimum(share, 1.0) * (1.0 - _ROUNDING))

    def _total(self, chance: float, lines: Tangents, multiples: np.ndarray) -> float:
        """The least sum of all probabilities, or a part of it that exceeds 1."""
        r = self._guesses
        scale = np.exp(-lines.epsilons)
        fixed = ((multiples * chance - self._canaries * lines.deltas) * scale).tolist()
        slopes = scale.tolist()
        right = wrong = 0.0
        for i in range(self._correct, 0, -1):
            demanded = max([a + right * b for a, b in zip(fixed, slopes, strict=True)])
            if demanded <= wrong:
                break
            right += (i - 1) / (r - i + 1) * (demanded - wrong)
            wrong = demanded
            if chance + (right + wrong) / r > 1.0 + _ROUNDING:
                break
        return chance + (right + wrong) / r
