"""What an audit of a recorded run is asked, checked before any work."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakcore._base import validate as check
from leakcore.audit.scores.coins import require_fair
from leakcore.audit.trace.whole_run import WholeRun, whole_run
from leakcore.dpsgd import Trace

if TYPE_CHECKING:
    from leakcore.dpsgd import Recorder

_MOST_CANDIDATES = 2**53
"""Beyond it 1/N and 1/(N + 1) are the same number."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Question:
    """The arguments of `audit.from_trace`, checked. trace: with its sampling rate. run: the run it is a part of."""

    trace: Trace
    run: WholeRun
    delta: float
    claimed_epsilon: float | None
    num_candidates: int
    coins: bool
    confidence: float

    @property
    def candidate_counts(self) -> tuple[int, ...]:
        """Two candidates, and as many as were asked about."""
        return tuple(dict.fromkeys((2, self.num_candidates)))

    def settings(self) -> dict[str, Any]:
        """The fields of the report that repeat the question."""
        return {
            "delta": self.delta, "claimed_epsilon": self.claimed_epsilon, "confidence": self.confidence,
            "coins": self.coins, "run": self.run.extent, "candidate_counts": self.candidate_counts,
        }  # fmt: skip


def ask(
    trace: Trace | Recorder | str | Path,
    *,
    delta: float,
    claimed_epsilon: float | None,
    sample_rate: float | None,
    steps: int | None,
    num_candidates: int,
    coins: bool,
    confidence: float,
) -> Question:
    """The question; ValueError or TypeError as `audit.from_trace` says."""
    slack = check.open_probability(delta=delta)
    claim = None if claimed_epsilon is None else check.non_negative(claimed_epsilon=claimed_epsilon)
    size = check.integer(2, _MOST_CANDIDATES, num_candidates=num_candidates)
    level = check.confidence(confidence=confidence)
    steps_seen = read_trace(trace)
    check.boolean(coins=coins)
    sampled = _sampled(steps_seen, sample_rate)
    if coins:
        _require_coins(sampled)
    return Question(
        trace=sampled, run=whole_run(sampled, steps), delta=slack, claimed_epsilon=claim, num_candidates=size,
        coins=coins, confidence=level,
    )  # fmt: skip


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
    raise TypeError(f"`{name}` must be what leakcore.record gave, or the file it wrote, got {type(trace).__name__}")


def _sampled(trace: Trace, sample_rate: float | None) -> Trace:
    """The trace with its sampling rate; ValueError where that is unknown or contradicted, or not Poisson's."""
    recorded = trace.sample_rate
    rate = recorded if sample_rate is None else check.probability(sample_rate=sample_rate)
    if rate is None:
        raise ValueError("`sample_rate` must be given, q, for the trace does not say how batches were sampled")
    if recorded is not None and not math.isclose(rate, recorded, rel_tol=1e-9):
        raise ValueError(
            f"`sample_rate` must be left out, or the q = {recorded:.12g} at which the trace was recorded, got "
            f"{rate:.12g}"
        )
    sampled = dataclasses.replace(trace, sample_rate=rate)
    if rate < 1 and sampled.not_poisson:
        raise ValueError(
            f"`trace` must be of Poisson sampling, for which the accountant's ε and all bounds here are proved, but "
            f"{sampled.not_poisson}"
        )
    return sampled


def _require_coins(trace: Trace) -> None:
    """ValueError where the members of a trace cannot have been decided by fair coins."""
    if trace.members.all() or not trace.members.any():
        raise ValueError("`coins=True` needs fair coins, but all candidates are on the same side")
    if not trace.members_given and trace.sample_rate != 1:
        raise ValueError(
            "`coins=True` needs fair coins, but the trace knows as members only those that sampling picked; record "
            "with members=…, the coins themselves"
        )
    require_fair(int(trace.members.sum()), len(trace.members), "candidates")
