"""What an audit of a recorded run is asked, checked before any work."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate
from leakcore.audit.scores.coins import require_fair
from leakcore.audit.trace.chosen import Chosen, choose, limited_by_loader, sampled, stated, steps_of, under_its_relation
from leakcore.audit.trace.whole_run import WholeRun, whole_run
from leakcore.dpsgd import Divisor, Trace, parse_divisor
from leakcore.mechanisms import FixedSize, FullBatch, Mechanism, Poisson, RandomAllocation, Shuffled

if TYPE_CHECKING:
    from leakcore.dpsgd import Recorder

_MOST_CANDIDATES = 2**53
"""Beyond it 1/N and 1/(N + 1) are the same number."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Question:
    """The arguments of `audit.from_trace`, checked. trace: with its sampling rate. run: the run it is a part of.

    mechanism: what the run was; None where that is not known. chosen: what says so.
    """

    trace: Trace
    run: WholeRun
    mechanism: Mechanism | None
    chosen: Chosen
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
            "delta": self.delta,
            "claimed_epsilon": self.claimed_epsilon,
            "confidence": self.confidence,
            "coins": self.coins,
            "run": self.run.extent,
            "candidate_counts": self.candidate_counts,
            "mechanism": self.chosen,
        }


def ask(
    trace: Trace | Recorder | str | Path,
    *,
    delta: float,
    claimed_epsilon: float | None,
    mechanism: Mechanism | float | None,
    steps: int | None,
    num_candidates: int,
    coins: bool,
    confidence: float,
    divisor: Divisor | None,
) -> Question:
    """The question; ValueError or TypeError as `audit.from_trace` says."""
    slack = validate.open_probability(delta=delta)
    claim = None if claimed_epsilon is None else validate.non_negative(claimed_epsilon=claimed_epsilon)
    size = validate.integer(2, _MOST_CANDIDATES, num_candidates=num_candidates)
    level = validate.confidence(confidence=confidence)
    steps_seen = read_trace(trace)
    validate.boolean(coins=coins)
    if divisor is not None:
        steps_seen = dataclasses.replace(steps_seen, divisor=parse_divisor(divisor))
    part, run, (what, chosen) = _mechanism(steps_seen, mechanism, steps)
    chosen = under_its_relation(part, what, chosen)
    if coins:
        _require_coins(part)
    return Question(
        trace=part,
        run=run,
        mechanism=what,
        chosen=chosen,
        delta=slack,
        claimed_epsilon=claim,
        num_candidates=size,
        coins=coins,
        confidence=level,
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
    raise TypeError(f"`{name}` must be what leakcore.record gave, or the file it wrote, got {type(trace).__name__}")


def _mechanism(trace: Trace, said: Any, steps: int | None) -> tuple[Trace, WholeRun, tuple[Mechanism | None, Chosen]]:
    """The trace with the sampling rate of its mechanism, its run, and the mechanism; ValueError as `from_trace`."""
    if said is not None:
        _require_fresh(trace, said)
    if isinstance(said, Mechanism):
        if steps is not None:
            raise ValueError(f"`steps` must be left out where a mechanism is passed, got {steps}")
        counted = None if trace.complete else steps_of(said)
        rate = said.sample_rate if isinstance(said, Poisson) and not np.ndim(said.sample_rate) else trace.sample_rate
        part = dataclasses.replace(trace, sample_rate=rate)  # type: ignore[arg-type]
        if isinstance(said, Poisson) and (np.asarray(said.sample_rate) < 1).any():
            _require_loader(trace, repr(said))
            _require_poisson(part)
        run = whole_run(part, None if counted is None else max(counted, trace.run_steps))
        return part, run, stated(part, run, said)
    if said is not None:
        part = _sampled(trace, validate.probability(mechanism=said))
        run = whole_run(part, steps)
        what, chosen = sampled(run, "the caller says so")
        return part, run, (what, limited_by_loader(part.sampling, what, chosen))
    if trace.sampling.scheme == "poisson":
        trace = dataclasses.replace(trace, sample_rate=trace.sampling.sample_rate)
    elif trace.sampling.scheme == "full-batch":
        trace = dataclasses.replace(trace, sample_rate=1.0)
    run = whole_run(trace, steps)
    return trace, run, choose(trace, run)


def _sampled(trace: Trace, rate: float) -> Trace:
    """The trace with the rate that the caller states; ValueError where it is contradicted."""
    recorded, known = trace.sample_rate, trace.sampling
    if known.scheme == "poisson":
        recorded = known.sample_rate
    elif rate < 1:
        _require_loader(trace, f"Poisson sampling at q = {rate:.6g}")
    if recorded is not None and not math.isclose(rate, recorded, rel_tol=1e-9):
        raise ValueError(
            f"`mechanism` must be left out, or the q = {recorded:.12g} at which the trace was recorded, got {rate:.12g}"
        )
    part = dataclasses.replace(trace, sample_rate=rate)
    _require_poisson(part)
    return part


def _require_loader(trace: Trace, said: str) -> None:
    """ValueError where the loader of the trace did not sample by Poisson."""
    if trace.sampling.scheme not in ("poisson", "unknown"):
        raise ValueError(f"`mechanism` must be what the trace recorded, {trace.sampling.evidence}, got {said}")


def _require_fresh(trace: Trace, said: Any) -> None:
    """ValueError where the steps of the trace are known not to be what a known mechanism makes of each."""
    known = trace.sampling.violation
    whole = isinstance(said, FullBatch) or said == 1
    sampled = isinstance(said, (FixedSize, FullBatch, Poisson, RandomAllocation, Shuffled, int, float))
    if known and sampled and not (whole and known == "sampling"):
        raise ValueError(
            f"`mechanism` must be one that allows for what was recorded: {trace.sampling.evidence}. Got {said!r}, in "
            "which a step holds each row at most once, from a batch of its own"
        )


def _require_poisson(trace: Trace) -> None:
    if (trace.sample_rate or 0) < 1 and trace.not_poisson:
        raise ValueError(f"`mechanism` must be another than Poisson sampling, because {trace.not_poisson}")


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
