"""What a single training run proves: many canaries, each in or out by its own coin, and guesses at the coins."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from leakcore._base import validate
from leakcore._base.one_thread import one_thread
from leakcore._base.results import Adjacency, Assumptions, Result, parse_adjacency
from leakcore.bounds.audited_epsilon.curve_families import (
    ApproximateFamily,
    CurveFamily,
    GaussianFamily,
    ScaledNoise,
    claimed_lines,
    log_ratios,
)
from leakcore.bounds.audited_epsilon.guess_tail import GuessTail
from leakcore.mechanisms import GDP, ApproximateDP, Mechanism


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
        mu: of family "gdp": no smaller μ is possible; else None.
        noise_multiplier: of a claimed mechanism: no larger σ is possible, at this confidence; else None.
        p_value: of a claimed mechanism: if it ran, this many guesses are right with at most this probability; None
            without a claimed mechanism.
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
) -> OneRunEpsilon:
    """Lower bound on ε from one run: m canaries, r guesses at whether each was included, v of them correct.

    Each canary is included by a fair coin; the auditor guesses r of the m coins and abstains on the rest.
    A mechanism's trade-off curve bounds how likely v right guesses are (Mahloujifar, Melis and Chaudhuri 2025); for (ε,
    0)-privacy by the tail of Bin(r, e^ε/(1 + e^ε)) (Steinke, Nasr and Jagielski 2023). `value` is the largest ε of the
    family that makes v right guesses less likely than 1 − confidence. docs/explanation/audit-power.md has the proof.

    Args:
        correct: v in [0, guesses].
        guesses: r in [0, canaries]; the number, or a rule by the scores, must be fixed before the coins are looked at.
        canaries: m ≥ 1, those not guessed included.
        confidence: in (0, 1 − 1e-12].
        delta: δ in [0, 1).
        adjacency: "replace" where each coin chose between two rows. None: a mechanism's own, else add-remove.
        family: what is refuted: "dp", (ε, δ)-privacy; "gdp", μ-GDP; or a mechanism of `leakcore.mechanisms`, with any
            noise, which is then tested itself. The last two need δ > 0.

    Returns:
        `OneRunEpsilon` of kind "lower"; 0 where the guesses prove nothing.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Holds over the coins and the mechanism's randomness; for "gdp" and a mechanism, if what ran is of that family.
        Deterministic given the counts.

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
    relation = _relation(adjacency, family)
    tail = GuessTail(v, r, m)
    refutes = functools.partial(tail.exceeds, 1 - level)
    tested = _tested(family, slack, relation, lambda gaussian: gaussian.largest_refuted(refutes))
    parameter = tested.largest_refuted(refutes)
    claimed = tested.lines(1.0) if isinstance(tested, ScaledNoise) else claimed_lines(family)
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
        noise_multiplier=tested.noise_multiplier(parameter) if isinstance(tested, ScaledNoise) and parameter else None,
        p_value=None if claimed is None else tail.chance(claimed),
    )


def _relation(adjacency: str | None, family: Any) -> Adjacency:
    if isinstance(family, Mechanism):
        return family.relation(adjacency)
    return "add-remove" if adjacency is None else parse_adjacency(adjacency)


def _tested(family: Any, delta: float, relation: Adjacency, fitted: Any) -> CurveFamily:
    """The family that is asked for; `fitted` says how far apart Gaussians with these counts are."""
    if isinstance(family, str):
        name = validate.one_of("dp", "gdp", family=family)
    elif isinstance(family, Mechanism):
        name = "gdp" if isinstance(family, GDP) else "dp" if isinstance(family, ApproximateDP) else "mechanism"
    else:
        raise TypeError(f"`family` must be 'dp', 'gdp' or a mechanism of leakcore.mechanisms, got {family!r}")
    if name == "dp":
        return ApproximateFamily(delta)
    if delta == 0:
        raise ValueError(f"`delta` must be positive with family={family!r}, got {delta!r}: its ε at δ = 0 is infinite")
    gaussian = GaussianFamily(delta)
    if name == "gdp":
        return gaussian
    family.with_noise(1.0)  # refuses a mechanism without noise to change
    return ScaledNoise(family, relation, delta, log_ratios(max(fitted(gaussian), 0.1)))
