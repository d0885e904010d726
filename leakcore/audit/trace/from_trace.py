"""From a recorded training run to a report: accountant, bounds, what its candidates gave away, what that proves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from leakcore.audit.doctor import environment
from leakcore.audit.trace.measure import limits, proved, reached, recorded
from leakcore.audit.trace.question import ask
from leakcore.audit.trace.report import TraceReport

if TYPE_CHECKING:
    from leakcore.dpsgd import Recorder, Trace


def from_trace(
    trace: Trace | Recorder | str | Path,
    *,
    delta: float = 1e-5,
    claimed_epsilon: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    num_candidates: int = 10,
    coins: bool = False,
    confidence: float = 0.95,
) -> TraceReport:
    """The report on a training run that `leakcore.record` watched.

    ε, bounds and gate are of the whole run up to the end of the recording, with the steps that the accountant counts
    beside the recorded ones. Where these are not known, they are of the recorded steps alone and say so, and `passed`
    is None: such a part can contradict a claim, and never pass one. What attacks reached is of the recorded steps.

    Upper bounds follow from the schedule alone: ε by the exact accountant (add/remove and replacement), success of
    reconstruction for priors of 2 and `num_candidates` candidates (Hayes et al. 2023, Theorem 2), true-positive rate of
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
    num_candidates: 2 to 2⁵³. Its bound needs no candidates; the attack is measured where there are num_candidates − 1
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
    question = ask(
        trace, delta=delta, claimed_epsilon=claimed_epsilon, sample_rate=sample_rate, steps=steps,
        num_candidates=num_candidates, coins=coins, confidence=confidence,
    )  # fmt: skip
    return TraceReport(
        environment=environment(),
        **question.settings(),
        **recorded(question.trace),
        **limits(question),
        **reached(question),
        **proved(question),
        seconds=time.monotonic() - start,
    )
