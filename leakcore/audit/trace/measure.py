"""What a recorded run is measured by: limits of its schedule, what attacks reached on its candidates, what coins prove.

Each function returns fields of `TraceReport`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import numpy as np

from leakcore import bounds
from leakcore._base.results import Result
from leakcore.audit.report.report import GATE
from leakcore.audit.scores.coins import audited, provable
from leakcore.audit.stated_epsilon import proved_epsilon
from leakcore.audit.trace.facts import GATE_SHARE, Exposure
from leakcore.audit.trace.question import Question
from leakcore.audit.trace.rates import FPRS, named, rate_at, roc, separation
from leakcore.dpsgd import Trace
from leakcore.mechanisms import GDP, FullBatch, Mechanism, Poisson

R = TypeVar("R", bound=Result)


def recorded(question: Question) -> dict[str, Any]:
    """The recorded steps and the candidates."""
    trace = question.trace
    poisson = isinstance(question.mechanism, Poisson | FullBatch)
    sigma, norm = trace.noise_multiplier, trace.max_grad_norm
    members = np.flatnonzero(trace.members)
    return {
        "steps": trace.steps,
        "noise_multiplier": (float(sigma.min()), float(sigma.max())),
        "max_grad_norm": (float(norm.min()), float(norm.max())),
        "sample_rate": trace.sample_rate if poisson else None,
        "batch_rows": float(trace.batch_rows.mean()),
        "members": len(members),
        "non_members": len(trace.members) - len(members),
        "members_given": trace.members_given,
        "recognised": bool(trace.times_seen[members].any()),
        "statistic": "likelihood ratio" if _by_likelihood(trace) else "summed products",
    }


def limits(question: Question) -> dict[str, Any]:
    """What no attacker beats: ε by the accountant, and the upper bounds of the mechanism; None without one."""
    mechanism, sizes = question.mechanism, question.candidate_counts
    if mechanism is None:
        names = ("epsilon", "epsilon_replace", "membership", "at_fpr")
        return {**dict.fromkeys(names), "reconstruction": (None,) * len(sizes)}
    try:
        return _limits(question, mechanism)
    except ArithmeticError:  # AccuracyError is one: no method reaches the mechanism as it is
        relation = question.chosen.adjacency or mechanism.adjacency
        apart = mechanism.separation(relation)
        if isinstance(mechanism, Poisson | FullBatch) or not math.isfinite(apart):
            raise
        return _limits(question, GDP(apart, claimed_under=relation))


def _limits(question: Question, mechanism: Mechanism) -> dict[str, Any]:
    run, slack = question.run, question.delta
    schedule: tuple[Any, ...] = (mechanism,)
    if isinstance(mechanism, Poisson):
        schedule = mechanism.noise_multiplier, mechanism.sample_rate, mechanism.steps
    elif isinstance(mechanism, FullBatch):
        schedule = mechanism.noise_multiplier, 1.0, mechanism.steps

    relation = question.chosen.adjacency or mechanism.adjacency

    def of(result: R) -> R:
        """For the relation of the run, with what it and the batches presuppose of the program."""
        assumed = result.assumptions
        under = assumed.adjacency
        if relation == "zero-out" and under != "replace":
            under = relation
        notes = (*assumed.notes, *question.chosen.premises(under))
        return run.of(
            dataclasses.replace(result, assumptions=dataclasses.replace(assumed, adjacency=under, notes=notes))
        )

    def epsilon(adjacency: str) -> Result:
        return of(proved_epsilon(mechanism, delta=slack, adjacency=adjacency))

    replaces = "replace" in mechanism.adjacencies
    return {
        "epsilon": epsilon(relation),
        "epsilon_replace": epsilon("replace") if replaces else None,
        "reconstruction": tuple(
            of(bounds.reconstruction(*schedule, kappa=1 / size)) for size in question.candidate_counts
        ),
        "membership": of(bounds.membership(*schedule, fpr=np.geomspace(1e-3, 1, 61))),
        "at_fpr": of(bounds.membership(*schedule, fpr=np.array(FPRS))),
    }


def reached(question: Question) -> dict[str, Any]:
    """What attacks reached on the candidates: estimates, None where there is nothing to tell apart."""
    trace, level = question.trace, question.confidence
    scores, pairs = _scores(trace)
    inside, outside = np.flatnonzero(trace.members), np.flatnonzero(~trace.members)
    both = len(inside) > 0 and len(outside) > 0
    in_batches = both and bool(trace.times_seen[inside].any())
    sides = scores[inside], scores[outside]
    return {
        "named": tuple(
            named(pairs, inside, outside, size, level) if in_batches and size - 1 <= len(outside) else None
            for size in question.candidate_counts
        ),
        "found_at_fpr": tuple(rate_at(*sides, fpr, level) if both else None for fpr in FPRS),
        "roc": roc(*sides) if both else None,
        "area": separation(*sides, level) if both else None,
        "exposed": _exposed(trace, pairs, inside, outside) if in_batches else (),
    }


def proved(question: Question) -> dict[str, Any]:
    """What guesses at the coins prove of ε; None where members were not decided by coins.

    The gate has two ways to fail, which share its error: ε at any mechanism, and the run's own mechanism.
    """
    if not question.coins:
        return dict.fromkeys(("audited", "gate", "ceiling", "own_curve"))
    scores, _ = _scores(question.trace)
    members, slack = question.trace.members, question.delta
    untested = question.run.extent.unknown or question.chosen.adjacency == "zero-out"  # coins leave rows out
    own = None if untested else _own_curve(question.mechanism)
    level = GATE if own is None else 1 - GATE_SHARE
    return {
        "audited": audited(scores, members, slack, question.confidence),
        "gate": dataclasses.replace(audited(scores, members, slack, level), confidence=GATE),
        "ceiling": provable(members, slack, level),
        "own_curve": None if own is None else audited(scores, members, slack, question.confidence, family=own),
    }


def _own_curve(mechanism: Mechanism | None) -> Mechanism | None:
    """The run's mechanism with one noise multiplier, if its trade-off curve is quickly computed; else None."""
    if not isinstance(mechanism, Poisson | FullBatch):
        return None
    sigma = np.asarray(mechanism.noise_multiplier)
    return mechanism if sigma.ndim == 0 and 0 < float(sigma) < math.inf else None


def _by_likelihood(trace: Trace) -> bool:
    return bool(np.isfinite(trace.membership_likelihood).all())


def _scores(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Scores of membership, and of each candidate in each candidate's place: by likelihood where it is known."""
    if _by_likelihood(trace):
        return trace.membership_likelihood, trace.pair_likelihood
    return trace.membership_sum, trace.pair_sum


def _exposed(trace: Trace, pairs: np.ndarray, inside: np.ndarray, outside: np.ndarray) -> tuple[Exposure, ...]:
    """The members whose own score lies furthest above their best rival's, five at most; of those that were in a batch,
    for nothing is exposed of a row that the run never used.
    """
    inside = inside[trace.times_seen[inside] > 0]
    own = pairs[inside, inside]
    beaten = (pairs[np.ix_(inside, outside)] < own[:, None]).mean(axis=1)
    lead = own - pairs[np.ix_(inside, outside)].max(axis=1)
    order = np.lexsort((-lead, -beaten))[:5]
    return tuple(
        Exposure(
            candidate=int(inside[k]),
            times_seen=int(trace.times_seen[inside[k]]),
            clipped_share=float(trace.clipped_share[inside[k]]),
            beaten=float(beaten[k]),
            lead=float(lead[k]),
        )
        for k in order
    )
