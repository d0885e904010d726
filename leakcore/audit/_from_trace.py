"""From a recorded training run to a report: accountant, bounds, what its candidates gave away, what that proves."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from leakcore import _validate as check
from leakcore import accounting, bounds
from leakcore._results import Assumptions, Result
from leakcore.audit._coins import audited
from leakcore.audit._doctor import environment
from leakcore.audit._trace_report import Exposure, TraceReport
from leakcore.dpsgd import Trace

if TYPE_CHECKING:
    from leakcore.dpsgd import Recorder

_GATE = 0.999
_FPRS = (0.01, 0.05, 0.1)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Measured(Result):
    """What an attack on one recorded run reached. trials: rows it was measured on."""

    trials: int


def from_trace(
    trace: Trace | Recorder | str | Path,
    *,
    delta: float = 1e-5,
    claimed_epsilon: float | None = None,
    sample_rate: float | None = None,
    prior_size: int = 10,
    coins: bool = False,
    confidence: float = 0.95,
) -> TraceReport:
    """The report on a training run that `leakcore.record` watched.

    Upper bounds follow from the schedule alone: ε by the exact accountant (add/remove and replacement), success of
    reconstruction for priors of 2 and `prior_size` candidates (Hayes et al. 2023, Theorem 2), true-positive rate of
    membership. Beside them what the white-box attacks reached on this run's candidates: the prior-aware attack for each
    member against non-members drawn at random (its expectation over the draw is computed, not sampled), and the
    membership test; both by likelihood where q and the noise are known, else by summed products. One run gives
    estimates without intervals: all candidates share the run's noise.

    trace: a `Trace`, the recorder of a `with leakcore.record(…)` block, or the file it wrote.
    delta: δ in (0, 1). claimed_epsilon: ε that the run claims at δ, add/remove; None: what the accountant gives.
    sample_rate: q; None: the trace's own. prior_size: ≥ 2.
    coins: True only if every candidate was put into the training data, or left out, by its own fair coin. Then guesses
        at the coins prove a lower bound on ε (Steinke, Nasr and Jagielski 2023, Theorem 5.2): the highest-scoring rows
        are guessed in, the lowest out, for four numbers of guesses, each at a quarter of the error.
    confidence: of the quoted lower bound. The gate uses 99.9%: it fails a correct run with probability below 0.1%.

    Returns a `TraceReport`, an `AuditReport`. Deterministic. Raises ValueError or TypeError that names argument, value
    and what is allowed, before any work; ValueError where there is no member, or no non-member, among the candidates
    and `coins` says there should be.
    """
    start = time.monotonic()
    slack = check.open_probability(delta=delta)
    claim = None if claimed_epsilon is None else check.non_negative(claimed_epsilon=claimed_epsilon)
    size = check.integer(2, prior_size=prior_size)
    level = check.open_probability(confidence=confidence)
    seen = _read(trace)
    rate = seen.sample_rate if sample_rate is None else check.probability(sample_rate=sample_rate)
    if rate is None:
        raise ValueError("sample_rate=None: the trace does not say how batches were sampled; give q")
    if coins and (seen.members.all() or not seen.members.any()):
        raise ValueError("coins=True: all candidates are on the same side: fair coins do not do that")
    sigma = seen.noise_multiplier
    schedule: Any = float(sigma[0]) if (sigma == sigma[0]).all() else sigma
    inside, outside = np.flatnonzero(seen.members), np.flatnonzero(~seen.members)
    likelihood = bool(np.isfinite(seen.membership_likelihood).all())
    scores = seen.membership_likelihood if likelihood else seen.membership_sum
    pairs = seen.pair_likelihood if likelihood else seen.pair_sum
    both = len(inside) > 0 and len(outside) > 0
    recognised = bool(seen.times_seen[inside].any())
    sizes = [p for p in dict.fromkeys((2, size)) if p - 1 <= len(outside)] or [2]
    return TraceReport(
        environment=environment(),
        delta=slack,
        claimed_epsilon=claim,
        coins=coins,
        steps=seen.steps,
        noise_multiplier=(float(sigma.min()), float(sigma.max())),
        max_grad_norm=(float(seen.max_grad_norm.min()), float(seen.max_grad_norm.max())),
        sample_rate=rate,
        batch_rows=float(seen.batch_rows.mean()),
        members=len(inside),
        non_members=len(outside),
        members_given=seen.members_given,
        recognised=recognised,
        statistic="likelihood ratio" if likelihood else "summed products",
        epsilon=accounting.epsilon(schedule, rate, seen.steps, delta=slack),
        epsilon_replace=accounting.epsilon(schedule, rate, seen.steps, delta=slack, adjacency="replace"),
        prior_sizes=tuple(sizes),
        reconstruction=tuple(bounds.reconstruction(schedule, rate, seen.steps, kappa=1 / p) for p in sizes),
        named=tuple(
            _named(pairs, inside, outside, p) if both and recognised and p - 1 <= len(outside) else None for p in sizes
        ),
        membership=bounds.membership(schedule, rate, seen.steps, fpr=np.geomspace(1e-3, 1, 61)),
        at_fpr=bounds.membership(schedule, rate, seen.steps, fpr=np.array(_FPRS)),
        found_at_fpr=tuple(_rate_at(scores, inside, outside, f) if both else None for f in _FPRS),
        roc=_roc(scores, inside, outside) if both else None,
        area=_area(scores, inside, outside) if both else None,
        audited=audited(scores, seen.members, slack, level) if coins else None,
        gate=audited(scores, seen.members, slack, _GATE) if coins else None,
        exposed=_exposed(seen, pairs, inside, outside) if both and recognised else (),
        seconds=time.monotonic() - start,
    )


def _read(trace: Any) -> Trace:
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, (str, Path)):
        return Trace.load(trace)
    if callable(getattr(trace, "trace", None)):
        found = trace.trace()
        if isinstance(found, Trace):
            return found
    raise TypeError(f"trace is a {type(trace).__name__}: must be what leakcore.record gave, or the file it wrote")


_ONE_RUN = (
    "one training run: all candidates share its noise, so no interval is valid; another attack may do better",
    "members and non-members are the candidates given; they must come from the same distribution",
)


def _estimate(value: float, trials: int, method: str, attacker: str, provenance: str) -> Measured:
    return Measured(
        value=value, kind="estimate", confidence=None, interval=None, method=method, trials=trials,
        assumptions=Assumptions(adjacency="add-remove", attacker=attacker, notes=_ONE_RUN), provenance=provenance,
    )  # fmt: skip


def _named(pairs: np.ndarray, inside: np.ndarray, outside: np.ndarray, size: int) -> Measured:
    """Mean over members of the probability that `size` − 1 non-members drawn at random all score lower; ties lose."""
    own = pairs[inside, inside]
    lower = (pairs[np.ix_(inside, outside)] < own[:, None]).sum(axis=1)
    log_all = _log_choose(len(outside), size - 1)
    chance = np.exp(_log_choose(lower, size - 1) - log_all)
    return _estimate(
        float(chance.mean()), len(inside), "prior-aware attack, expectation over random rivals",
        "knows every row but one and the batches, sees every release; the missing row is one of the candidates",
        "Hayes, Mahloujifar and Balle (2023), Algorithm 2 and Appendix G",
    )  # fmt: skip


def _log_choose(n: Any, k: int) -> np.ndarray:
    n = np.asarray(n, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = -special.betaln(n - k + 1.0, k + 1.0) - np.log(n + 1.0)
    return np.where(n >= k, found, -np.inf)


def _rate_at(scores: np.ndarray, inside: np.ndarray, outside: np.ndarray, fpr: float) -> Measured | None:
    """True-positive rate at the threshold that lets at most a share `fpr` of the non-members through."""
    allowed = int(np.floor(fpr * len(outside) + 1e-9))
    if allowed < 1:
        return None
    threshold = np.sort(scores[outside])[::-1][allowed] if allowed < len(outside) else -np.inf
    return _estimate(
        float((scores[inside] > threshold).mean()), len(scores), "membership test, threshold from the non-members",
        "knows all rows that are no candidates and the batches, sees every release", "Hayes et al. (2023), Appendix G",
    )  # fmt: skip


def _roc(scores: np.ndarray, inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    levels = np.unique(scores)[::-1]
    return (
        np.array([(scores[outside] >= t).mean() for t in levels]),
        np.array([(scores[inside] >= t).mean() for t in levels]),
    )


def _area(scores: np.ndarray, inside: np.ndarray, outside: np.ndarray) -> Measured:
    a, b = scores[inside][:, None], scores[outside][None, :]
    return _estimate(
        float(((a > b) + 0.5 * (a == b)).mean()), len(scores), "area under the ROC curve",
        "knows all rows that are no candidates and the batches, sees every release", "Hayes et al. (2023), Appendix G",
    )  # fmt: skip


def _exposed(seen: Trace, pairs: np.ndarray, inside: np.ndarray, outside: np.ndarray) -> tuple[Exposure, ...]:
    """The members whose own score lies furthest above their best rival's, five at most."""
    own = pairs[inside, inside]
    beaten = (pairs[np.ix_(inside, outside)] < own[:, None]).mean(axis=1)
    lead = own - pairs[np.ix_(inside, outside)].max(axis=1)
    order = np.lexsort((-lead, -beaten))[:5]
    return tuple(
        Exposure(
            candidate=int(inside[k]), times_seen=int(seen.times_seen[inside[k]]),
            clipped_share=float(seen.clipped_share[inside[k]]), beaten=float(beaten[k]), lead=float(lead[k]),
        )
        for k in order
    )  # fmt: skip
