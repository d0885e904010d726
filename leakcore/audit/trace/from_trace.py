"""From a recorded training run to a report: accountant, bounds, what its candidates gave away, what that proves."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import bounds
from leakcore._base import validate as check
from leakcore.audit.doctor import environment
from leakcore.audit.report.report import GATE
from leakcore.audit.scores.coins import audited, provable, require_fair
from leakcore.audit.stated_epsilon import proved_epsilon
from leakcore.audit.trace.rates import named, rate_at, roc, separation
from leakcore.audit.trace.report import Exposure, TraceReport
from leakcore.audit.trace.whole_run import whole_run
from leakcore.dpsgd import Trace

if TYPE_CHECKING:
    from leakcore.dpsgd import Recorder

_FPRS = (0.01, 0.05, 0.1)
_PRIOR = 2**53
"""The largest prior: beyond it 1/N and 1/(N + 1) are the same number."""


def from_trace(
    trace: Trace | Recorder | str | Path,
    *,
    delta: float = 1e-5,
    claimed_epsilon: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    prior_size: int = 10,
    coins: bool = False,
    confidence: float = 0.95,
) -> TraceReport:
    """The report on a training run that `leakcore.record` watched.

    ε, bounds and gate are of the whole run up to the end of the recording, with the steps that the accountant counts
    beside the recorded ones. Where these are not known, they are of the recorded steps alone and say so, and `passed`
    is None: such a part can contradict a claim, and never pass one. What attacks reached is of the recorded steps.

    Upper bounds follow from the schedule alone: ε by the exact accountant (add/remove and replacement), success of
    reconstruction for priors of 2 and `prior_size` candidates (Hayes et al. 2023, Theorem 2), true-positive rate of
    membership. Beside them what the white-box attacks reached on this run's candidates: the prior-aware attack for each
    member against non-members drawn at random (its expectation over the draw is computed, not sampled), and the
    membership test; both by likelihood where q and the noise are known, else by summed products. These are estimates
    with finite-sample intervals for rows drawn independently: few candidates make them wide, and what all of them
    share, the run's noise, is not counted. A rate above a bound, be it with its whole interval, is therefore a reason
    to check, and fails no gate. Members are said to be told from others where the one-sided Mann-Whitney
    test rejects, at 1 − `confidence`, that scores say nothing of membership.

    trace: a `Trace`, the recorder of a `with leakcore.record(…)` block, or the file it wrote.
    delta: δ in (0, 1). claimed_epsilon: ε that the run claims at δ, add/remove; None: what the accountant gives.
    sample_rate: q of a trace that does not say; None: the trace's own. steps: of the whole run, for a trace that does
        not know them all: the others are then taken at the recorded σ and q. None: as the trace says.
    prior_size: 2 to 2⁵³. Its bound needs no candidates; the attack is measured where there are prior_size − 1
        non-members.
    coins: True only if every candidate was put into the training data, or left out, by its own fair coin, and the
        recorder was told which (members=…), unless every batch held all rows. Then guesses at the coins prove a lower
        bound on ε (Steinke, Nasr and Jagielski 2023, Theorem 5.2): the highest-scoring rows are guessed in, the lowest
        out, for four numbers of guesses, each at a quarter of the error.
    confidence: of the quoted lower bound, of every interval and of the membership test. What coins prove contradicts
        a claim at 99.9%, so for a correct run with probability at most 0.1%; a limit (`with_limit`) is held against
        the lower bound that is quoted.

    Returns a `TraceReport`, an `AuditReport`. Deterministic. Raises ValueError or TypeError that names argument, value
    and what is allowed, before any work; ValueError where there is no member, or no non-member, among the candidates
    and `coins` says there should be, or where the batches recorded are not those of Poisson sampling.
    """
    start = time.monotonic()
    slack = check.open_probability(delta=delta)
    claim = None if claimed_epsilon is None else check.non_negative(claimed_epsilon=claimed_epsilon)
    size = check.integer(2, _PRIOR, prior_size=prior_size)
    level = check.confidence(confidence=confidence)
    seen = read_trace(trace)
    check.boolean(coins=coins)
    recorded = seen.sample_rate
    rate = recorded if sample_rate is None else check.probability(sample_rate=sample_rate)
    if rate is not None and recorded is not None and not math.isclose(rate, recorded, rel_tol=1e-9):
        raise ValueError(f"sample_rate={rate:.12g}: the trace was recorded at q = {recorded:.12g}; leave it out")
    if rate is None:
        raise ValueError("sample_rate=None: the trace does not say how batches were sampled; give q")
    seen = dataclasses.replace(seen, sample_rate=rate)
    if rate < 1 and seen.not_poisson:
        raise ValueError(
            f"trace: {seen.not_poisson}; the accountant's ε and all bounds here are for Poisson sampling, and none is "
            "proved for other batches"
        )
    if coins and (seen.members.all() or not seen.members.any()):
        raise ValueError("coins=True: all candidates are on the same side: fair coins do not do that")
    if coins:
        if not seen.members_given and rate < 1:
            raise ValueError(
                "coins=True: the trace knows as members only those that sampling picked, which is no fair coin; record "
                "with members=…, the coins themselves"
            )
        require_fair(int(seen.members.sum()), len(seen.members), "candidates")
    whole = whole_run(seen, steps)
    sigma = seen.noise_multiplier
    schedule = whole.noise_multiplier, whole.sample_rate, whole.steps
    inside, outside = np.flatnonzero(seen.members), np.flatnonzero(~seen.members)
    likelihood = bool(np.isfinite(seen.membership_likelihood).all())
    scores = seen.membership_likelihood if likelihood else seen.membership_sum
    pairs = seen.pair_likelihood if likelihood else seen.pair_sum
    both = len(inside) > 0 and len(outside) > 0
    recognised = bool(seen.times_seen[inside].any())
    those, others = scores[inside], scores[outside]
    sizes = tuple(dict.fromkeys((2, size)))
    return TraceReport(
        environment=environment(),
        delta=slack,
        claimed_epsilon=claim,
        confidence=level,
        coins=coins,
        steps=seen.steps,
        run=whole.extent,
        noise_multiplier=(float(sigma.min()), float(sigma.max())),
        max_grad_norm=(float(seen.max_grad_norm.min()), float(seen.max_grad_norm.max())),
        sample_rate=rate,
        batch_rows=float(seen.batch_rows.mean()),
        members=len(inside),
        non_members=len(outside),
        members_given=seen.members_given,
        recognised=recognised,
        statistic="likelihood ratio" if likelihood else "summed products",
        epsilon=whole.of(proved_epsilon(*schedule, delta=slack)),
        epsilon_replace=whole.of(proved_epsilon(*schedule, delta=slack, adjacency="replace")),
        prior_sizes=sizes,
        reconstruction=tuple(whole.of(bounds.reconstruction(*schedule, kappa=1 / p)) for p in sizes),
        named=tuple(
            named(pairs, inside, outside, p, level) if both and recognised and p - 1 <= len(outside) else None
            for p in sizes
        ),
        membership=whole.of(bounds.membership(*schedule, fpr=np.geomspace(1e-3, 1, 61))),
        at_fpr=whole.of(bounds.membership(*schedule, fpr=np.array(_FPRS))),
        found_at_fpr=tuple(rate_at(those, others, f, level) if both else None for f in _FPRS),
        roc=roc(those, others) if both else None,
        area=separation(those, others, level) if both else None,
        audited=audited(scores, seen.members, slack, level) if coins else None,
        gate=audited(scores, seen.members, slack, GATE) if coins else None,
        ceiling=provable(seen.members, slack, GATE) if coins else None,
        exposed=_exposed(seen, pairs, inside, outside) if both and recognised else (),
        seconds=time.monotonic() - start,
    )


def read_trace(trace: Any, name: str = "trace") -> Trace:
    """The trace that is given as such, as its recorder or as its file."""
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, (str, Path)):
        return Trace.load(trace)
    if callable(getattr(trace, "trace", None)):
        recorded = trace.trace()
        if isinstance(recorded, Trace):
            return recorded
    raise TypeError(f"{name} is a {type(trace).__name__}: must be what leakcore.record gave, or the file it wrote")


def _exposed(seen: Trace, pairs: np.ndarray, inside: np.ndarray, outside: np.ndarray) -> tuple[Exposure, ...]:
    """The members whose own score lies furthest above their best rival's, five at most; of those that were in a batch,
    for nothing is exposed of a row that the run never used.
    """
    inside = inside[seen.times_seen[inside] > 0]
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
