"""What a recorded run is measured by: bounds of its schedule, what attacks reached, what guesses at coins prove."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import numpy as np
from scipy import special, stats

from leakcore import bounds
from leakcore._base.results import Assumptions, Result
from leakcore.audit.scores.statistics import area, area_limits, audited, provable, rate_limits
from leakcore.audit.shared.claimed_epsilon import noted, proved_epsilon, schedule_of
from leakcore.audit.shared.report import GATE, GATE_SHARE
from leakcore.audit.trace.recorded_run import AuditRequest
from leakcore.dpsgd import Trace
from leakcore.mechanisms import GDP, FullBatch, Mechanism, Poisson

R = TypeVar("R", bound=Result)
FPRS = (0.01, 0.05, 0.1)
"""False-positive rates at which the membership test is reported."""
_EXACT = 50_000
"""Members times non-members up to which the rank sum's exact law is summed: a quarter of a second."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Measured(Result):
    """What an attack on one recorded run reached. trials: rows it was measured on."""

    quantity: str = "success rate"
    trials: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Separation(Measured):
    """An area under the ROC curve. p_value: one-sided, that candidates as alike as these scores say reach it."""

    quantity: str = "area under the ROC curve"
    p_value: float


_ONE_RUN = (
    "the interval is for rows drawn independently; all candidates share one run's noise, which it does not count",
    "members and non-members are the caller's candidates; they must come from the same distribution",
    "another attack may do better",
)
_TEST = "knows the batches and all rows that are not candidates, sees every release"


def _assumed(attacker: str) -> Assumptions:
    return Assumptions(adjacency="add-remove", attacker=attacker, notes=_ONE_RUN)


def named(pairs: np.ndarray, inside: np.ndarray, outside: np.ndarray, size: int, confidence: float) -> Measured:
    """Mean over members of the probability that `size` − 1 non-members drawn at random all score lower; ties lose.

    A two-sample U-statistic of values in [0, 1]: Chernoff limits with as many independent terms as there are members
    with rivals of their own (Hoeffding 1963, Section 5b), so that few non-members make a wide interval.
    """
    own = pairs[inside, inside]
    lower = (pairs[np.ix_(inside, outside)] < own[:, None]).sum(axis=1)
    log_all = _log_choose(len(outside), size - 1)
    value = min(1.0, float(np.exp(_log_choose(lower, size - 1) - log_all).mean()))
    apart = min(len(inside), len(outside) // (size - 1))
    return Measured(
        value=value,
        kind="estimate",
        confidence=confidence,
        interval=area_limits(value, apart, confidence),
        method="prior-aware attack, expectation over random rivals; Chernoff limits of a two-sample U-statistic",
        trials=len(inside),
        assumptions=_assumed(
            "knows every row but one and the batches, sees every release; the missing row is one of the candidates"
        ),
        provenance="Hayes, Mahloujifar and Balle (2023), Algorithm 2 and Appendix G; Hoeffding (1963), Section 5b",
    )


def _log_choose(n: object, k: int) -> np.ndarray:
    n = np.asarray(n, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_masses = -special.betaln(n - k + 1.0, k + 1.0) - np.log(n + 1.0)
    return np.where(n >= k, log_masses, -np.inf)


def rate_at(inside: np.ndarray, outside: np.ndarray, fpr: float, confidence: float) -> Measured | None:
    """True-positive rate at the threshold that lets at most a share `fpr` of the non-members through; None where that
    is not one of them. The limits count the members (Clopper and Pearson 1934) and the threshold's own uncertainty
    (order statistics of the non-members).
    """
    limits = rate_limits(inside, outside, fpr, confidence, _ONE_RUN)
    if limits is None:
        return None
    return Measured(
        value=limits.value,
        kind="estimate",
        confidence=confidence,
        interval=limits.interval,
        method=f"membership test, {limits.method}",
        trials=len(inside) + len(outside),
        assumptions=_assumed(_TEST),
        provenance="Hayes et al. (2023), Appendix G; Clopper and Pearson (1934)",
    )


def roc(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False- and true-positive rates of every threshold."""
    levels = np.unique(np.concatenate([inside, outside]))[::-1]
    return (np.array([(outside >= t).mean() for t in levels]), np.array([(inside >= t).mean() for t in levels]))


def separation(inside: np.ndarray, outside: np.ndarray, confidence: float) -> Separation:
    """The area under the ROC curve, its limits, and the p-value of the null that scores say nothing of membership."""
    value = area(inside, outside)
    return Separation(
        value=value,
        kind="estimate",
        confidence=confidence,
        interval=area_limits(value, min(len(inside), len(outside)), confidence),
        p_value=rank_sum(inside, outside),
        method="area under the ROC curve, Chernoff limits of a two-sample U-statistic; one-sided Mann-Whitney test",
        trials=len(inside) + len(outside),
        assumptions=_assumed(_TEST),
        provenance="Hayes et al. (2023), Appendix G; Hoeffding (1963), Section 5b; Mann and Whitney (1947)",
    )


def rank_sum(inside: np.ndarray, outside: np.ndarray) -> float:
    """P(members rank at least this high | which scores are the members' is exchangeable), Mann and Whitney (1947).

    Up to 50,000 pairs by the exact law, ties counted against the members (the test then rejects a true null at most
    as often as it says); beyond that the normal law with corrections for ties and continuity. Noise that scores share
    does no harm: under the null it says nothing of who is a member.
    """
    scores = np.concatenate([inside, outside])
    if (scores == scores[0]).all():
        return 1.0
    if len(inside) * len(outside) > _EXACT:
        return float(stats.mannwhitneyu(inside, outside, alternative="greater", method="asymptotic").pvalue)
    rank = np.empty(len(scores))
    rank[np.lexsort((np.arange(len(scores)) >= len(inside), scores))] = np.arange(len(scores))
    return float(
        stats.mannwhitneyu(rank[: len(inside)], rank[len(inside) :], alternative="greater", method="exact").pvalue
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Exposure:
    """A member among the candidates that was in a batch.

    beaten: share of non-members that it outscores. lead: its score less the best rival's, in units of the statistic.
    """

    candidate: int
    times_seen: int
    clipped_share: float
    beaten: float
    lead: float


def recorded_steps(request: AuditRequest) -> dict[str, Any]:
    """The recorded steps and the candidates."""
    trace = request.trace
    poisson = isinstance(request.mechanism, Poisson | FullBatch)
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


def upper_bounds(request: AuditRequest) -> dict[str, Any]:
    """What no attacker beats: ε by the accountant, and the upper bounds of the mechanism; None without one."""
    mechanism, sizes = request.mechanism, request.candidate_counts
    if mechanism is None:
        names = ("epsilon", "epsilon_replace", "membership", "at_fpr")
        return {**dict.fromkeys(names), "reconstruction": (None,) * len(sizes)}
    try:
        return _upper_bounds(request, mechanism)
    except ArithmeticError:  # AccuracyError is one: no method reaches the mechanism as it is
        relation = request.chosen.adjacency or mechanism.adjacency
        apart = mechanism.separation(relation)
        if isinstance(mechanism, Poisson | FullBatch) or not math.isfinite(apart):
            raise
        return _upper_bounds(request, GDP(apart, claimed_under=relation))


def _upper_bounds(request: AuditRequest, mechanism: Mechanism) -> dict[str, Any]:
    run, slack = request.run, request.delta
    schedule = schedule_of(mechanism)
    relation = request.chosen.adjacency or mechanism.adjacency

    def of(result: R) -> R:
        """For the relation of the run, with what it and the batches presuppose of the program."""
        under = result.adjacency
        if relation == "zero-out" and under != "replace":
            under = relation
        return run.of(noted(result, *request.chosen.premises(under), adjacency=under))

    def epsilon(adjacency: str) -> Result:
        return of(proved_epsilon(mechanism, delta=slack, adjacency=adjacency))

    replaces = "replace" in mechanism.adjacencies
    return {
        "epsilon": epsilon(relation),
        "epsilon_replace": epsilon("replace") if replaces else None,
        "reconstruction": tuple(of(bounds.reconstruction(*schedule, kappa=1 / n)) for n in request.candidate_counts),
        "membership": of(bounds.membership(*schedule, fpr=np.geomspace(1e-3, 1, 61))),
        "at_fpr": of(bounds.membership(*schedule, fpr=np.array(FPRS))),
    }


def attack_rates(request: AuditRequest) -> dict[str, Any]:
    """What attacks reached on the candidates: estimates, None where there is nothing to tell apart."""
    trace, level = request.trace, request.confidence
    scores, pairs = _scores(trace)
    inside, outside = np.flatnonzero(trace.members), np.flatnonzero(~trace.members)
    both = len(inside) > 0 and len(outside) > 0
    in_batches = both and bool(trace.times_seen[inside].any())
    sides = scores[inside], scores[outside]
    return {
        "named": tuple(
            named(pairs, inside, outside, size, level) if in_batches and size - 1 <= len(outside) else None
            for size in request.candidate_counts
        ),
        "found_at_fpr": tuple(rate_at(*sides, fpr, level) if both else None for fpr in FPRS),
        "roc": roc(*sides) if both else None,
        "area": separation(*sides, level) if both else None,
        "exposed": _exposed(trace, pairs, inside, outside) if in_batches else (),
    }


def lower_bounds(request: AuditRequest) -> dict[str, Any]:
    """What guesses at the coins prove of ε; None where members were not decided by coins.

    The gate has two ways to fail, which share its error: ε at any mechanism, and the run's own mechanism.
    """
    if not request.coins:
        return dict.fromkeys(("audited", "gate", "ceiling", "own_curve"))
    scores, _ = _scores(request.trace)
    members, slack = request.trace.members, request.delta
    untested = request.run.coverage.unknown or request.chosen.adjacency == "zero-out"  # coins leave rows out
    own = None if untested else _own_curve(request.mechanism)
    level = GATE if own is None else 1 - GATE_SHARE
    return {
        "audited": audited(scores, members, slack, request.confidence),
        "gate": dataclasses.replace(audited(scores, members, slack, level), confidence=GATE),
        "ceiling": provable(members, slack, level),
        "own_curve": None if own is None else audited(scores, members, slack, request.confidence, family=own),
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
    rivals = pairs[np.ix_(inside, outside)]
    beaten, lead = (rivals < own[:, None]).mean(axis=1), own - rivals.max(axis=1)
    order = np.lexsort((-lead, -beaten))[:5]
    columns = inside, trace.times_seen[inside], trace.clipped_share[inside], beaten, lead
    return tuple(Exposure(*row) for row in zip(*(column[order].tolist() for column in columns), strict=True))
