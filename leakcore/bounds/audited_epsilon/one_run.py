"""What a single training run proves: many canaries, each in or out by its own coin, and guesses at the coins."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import numpy as np

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Adjacency, Assumptions, Result, parse_adjacency
from leakcore.bounds.audited_epsilon.curve_families import (
    ApproximateFamily,
    CurveFamily,
    GaussianFamily,
    ScaledNoise,
    claimed_lines,
    log_ratios,
)
from leakcore.bounds.audited_epsilon.guess_tail import GuessTail, Tangents
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
    chosen: Literal["before", "by-scores"] = "before",
    k: int = 1,
) -> OneRunEpsilon:
    """Lower bound on ε from one run: m canaries, r guesses at whether each was included, v of them correct.

    Each canary is included by a fair coin. A mechanism's trade-off curve bounds how likely v right guesses are
    (Mahloujifar, Melis and Chaudhuri 2025; Steinke, Nasr and Jagielski 2023). `value` is the largest ε of the family
    that makes them less likely than 1 − confidence. docs/explanation/audit-power.md has the proof.

    Args:
        correct: v in [0, guesses].
        guesses: r in [0, canaries], not chosen by how many guesses are right.
        canaries: m ≥ 1, with those not guessed.
        confidence: in (0, 1 − 1e-12].
        delta: δ in [0, 1).
        adjacency: "replace" where each coin chose between two rows. None: a mechanism's own, else add-remove.
        family: what is refuted: "dp"; "gdp", μ-GDP; or a mechanism with any noise, itself tested. The last two
            need δ > 0.
        chosen: when r was chosen: "before" anyone looked at the scores, or "by-scores", by any rule on the release.
            That is free at δ = 0, halves the error of "dp" at δ > 0, costs more with "gdp", and is refused for another
            mechanism.
        k: rows that a coin changes, 1 for a mechanism; `value` is about one of them.

    Returns:
        `OneRunEpsilon` of kind "lower"; 0 where the guesses prove nothing.

    Raises:
        ValueError: names the argument.
        TypeError: for an argument of another type.

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
    relation = _relation(adjacency, family)
    rows = validate.integer(1, k=k)
    rule = validate.one_of("before", "by-scores", chosen=chosen)
    if rule != "before" and isinstance(family, Mechanism) and not isinstance(family, (GDP, ApproximateDP)):
        raise ValueError(
            f"`chosen` must be 'before' where `family` is {type(family).__name__}, got {chosen!r}: a choice by the "
            "scores is paid for with 'dp' and 'gdp' alone; fix the number of guesses, or split the error over a few"
        )
    tail = GuessTail(v, r, m)
    refutes = functools.partial(_refutes, tail, 1 - level, rule)
    tested = _tested(family, slack, relation, rows, lambda gaussian: gaussian.largest_refuted(refutes))
    parameter = tested.largest_refuted(refutes)
    claimed = tested.lines(1.0) if isinstance(tested, ScaledNoise) else claimed_lines(family, rows)
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
        noise_multiplier=tested.noise_multiplier(parameter) if isinstance(tested, ScaledNoise) and parameter else None,
        p_value=None if claimed is None else min(1.0, _paid(rule, claimed) * tail.chance(claimed)),
    )


def _refutes(tail: GuessTail, error: float, rule: str, lines: Tangents) -> bool:
    """Whether so many right guesses refute the lines at an error, however the rule chose their number."""
    return tail.exceeds(error / _paid(rule, lines), lines)


def _paid(rule: str, lines: Tangents) -> int:
    """The factor by which a choice of the number of guesses by the release can raise the error.

    For each number r, P(r is chosen and at least v_r guesses are right) is at most a concave and homogeneous function
    f_r of P(r is chosen) and of the parts of mδ_l that the outputs with this choice use up. The parts of all r share
    mδ_l. Where f_r ≤ α at (1, mδ), the tangent there gives f_r(π, d) ≤ α π + α Σ_l d_l/(mδ_l), and so Σ_r f_r ≤ α(1 +
    number of lines with δ > 0).
    """
    return 1 if rule == "before" else 1 + int(np.count_nonzero(lines.deltas))


def _relation(adjacency: str | None, family: Any) -> Adjacency:
    if isinstance(family, Mechanism):
        return family.relation(adjacency)
    return "add-remove" if adjacency is None else parse_adjacency(adjacency)


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
    return ScaledNoise(family, relation, delta, log_ratios(max(fitted(gaussian), 0.1)))
