"""From a recorded run with canaries to a report: what an attacker who sees every release proves of ε."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leakcore import accounting, bounds
from leakcore._base import validate
from leakcore._base.codec.npz import FACTS, unpack
from leakcore._base.progress import timed
from leakcore.audit.canaries.report import GATE_SHARE, CanaryReport
from leakcore.audit.doctor import environment
from leakcore.audit.report.format import NUMBERS_FIXED, ROWS_PUBLIC, UNSAID
from leakcore.audit.report.report import GATE
from leakcore.audit.scores.coins import audited
from leakcore.audit.stated_epsilon import proved_epsilon
from leakcore.dpsgd import CanaryTrace, parse_divisor
from leakcore.mechanisms import Mechanism, Poisson

if TYPE_CHECKING:
    from leakcore.dpsgd import CanaryRecorder, Divisor

_DEPENDENT = 1e-4
"""p-value below which noise counts as dependent."""


@timed
def from_canaries(
    trace: CanaryTrace | CanaryRecorder | str | Path,
    *,
    delta: float = 1e-5,
    claimed_epsilon: float | None = None,
    mechanism: Mechanism | None = None,
    confidence: float = 0.95,
    divisor: Divisor | None = None,
) -> CanaryReport:
    """The report on a training run in which `leakcore.record` planted canaries.

    ε is proved by one test of the order of all canaries' scores, if the schedule ran with some noise; its p-value tests
    the schedule itself. Where the noise of different coordinates proves to be dependent, ε is proved by guesses at
    the coins instead, which assumes nothing of the noise. docs/explanation/audit-power.md has the argument.

    Args:
        trace: a `CanaryTrace`, a recorder, or the file that it wrote.
        delta: δ in (0, 1).
        claimed_epsilon: ε that the run claims at δ, under the relation of the report. None: the accountant's.
        mechanism: that is claimed to have run in the recorded steps. None: Poisson sampling as recorded.
        divisor: "constant" or "rows", as for `leakcore.record`; None: as the trace says. A coin decides whether a
            canary takes part, and what the run divides by stays: zero-out adjacency, unless it is "constant".
        confidence: of the quoted lower bounds. Claims are contradicted at 99.9%.

    Returns:
        A `CanaryReport`.

    Raises:
        ValueError: names the argument.
        TypeError: for another type.

    Guarantees:
        Deterministic. About the recorded steps.

    Example:
        >>> import numpy as np
        >>> from leakcore import audit, dpsgd
        >>> rng = np.random.default_rng(0)
        >>> scores = rng.normal(size=1000) + 2 * (np.arange(1000) < 100)  # full batches, 4 steps at σ = 1
        >>> trace = dpsgd.CanaryTrace(
        ...     noise_multiplier=np.ones(4), max_grad_norm=np.ones(4), sample_rate=1.0, rows=90, parameters=1000,
        ...     coins=np.arange(200) < 100, times_seen=np.full(200, 4), scores=scores, release_scores=scores,
        ...     noise_ratio=1.0, common_noise=0.5, repeated_noise=0.5, interference=0.0,
        ... )
        >>> report = audit.from_canaries(trace)
        >>> report.passed, report.proved.kind
        (True, 'lower')
    """
    start = time.monotonic()
    slack = validate.open_probability(delta=delta)
    claim = None if claimed_epsilon is None else validate.non_negative(claimed_epsilon=claimed_epsilon)
    level = validate.confidence(confidence=confidence)
    recorded = _read(trace)
    claimed = _recorded(recorded) if mechanism is None else mechanism
    validate.instance(Mechanism, mechanism=claimed)
    hypothesis = bounds.Hypothesis(claimed)
    stated = recorded.divisor if divisor is None else parse_divisor(divisor)
    relation = claimed.relation("zero-out" if stated == "rows" else "add-remove")
    inside = np.append(recorded.coins, np.zeros(recorded.controls, dtype=bool))

    def ordered(scores: np.ndarray, sure: float) -> bounds.EpsilonFromScores:
        return bounds.epsilon_lower_bound_from_scores(
            scores[inside],
            scores[~inside],
            adjacency=relation,
            threshold=bounds.SimultaneousThreshold(),
            confidence=sure,
            delta=slack,
            hypothesis=hypothesis,
        )

    whole = ordered(recorded.scores, level)
    of_coins = recorded.scores[: recorded.canaries], recorded.coins, slack
    tests = [p for p in (recorded.common_noise, recorded.repeated_noise) if p is not None]
    independent = min(tests) > _DEPENDENT
    strict = 1 - GATE_SHARE
    gate = ordered(recorded.scores, strict) if independent else audited(*of_coins, strict, relation)
    alone = dataclasses.replace(ordered(recorded.release_scores, level), kind="estimate", confidence=None)
    sigma, norm = recorded.noise_multiplier, recorded.max_grad_norm
    return CanaryReport(
        environment=environment(),
        delta=slack,
        claimed_epsilon=claim,
        confidence=level,
        steps=recorded.steps,
        noise_multiplier=(float(sigma.min()), float(sigma.max())),
        max_grad_norm=(float(norm.min()), float(norm.max())),
        sample_rate=recorded.sample_rate,
        mechanism=repr(claimed),
        canaries=recorded.canaries,
        included=int(recorded.coins.sum()),
        controls=recorded.controls,
        parameters=recorded.parameters,
        independent=independent,
        noise_ratio=recorded.noise_ratio,
        common_noise=recorded.common_noise,
        repeated_noise=recorded.repeated_noise,
        interference=recorded.interference,
        times_seen=float(recorded.times_seen[recorded.coins].mean()),
        divisor=stated,
        epsilon=_supposing(proved_epsilon(claimed, delta=slack, adjacency=relation), stated),
        proved=whole if independent else audited(*of_coins, level, relation),
        by_coins=audited(*of_coins, level, relation),
        from_release=alone,
        gate=dataclasses.replace(gate, confidence=GATE),
        p_value=float(whole.p_value or 0.0),
        seconds=time.monotonic() - start,
    )


def _supposing(epsilon: accounting.Epsilon, divisor: Divisor | None) -> accounting.Epsilon:
    """ε of the schedule, with what its relation presupposes of the divisor."""
    note = {"rows": ROWS_PUBLIC, "constant": NUMBERS_FIXED, None: f"{NUMBERS_FIXED} ({UNSAID})"}[divisor]
    assumed = epsilon.assumptions
    return dataclasses.replace(epsilon, assumptions=dataclasses.replace(assumed, notes=(*assumed.notes, note)))


def holds_canaries(path: str | Path) -> bool:
    """Whether a file is a trace of a run with canaries; anything else is left to other readers."""
    try:
        facts, _ = unpack(path, {FACTS})
    except ValueError:
        return False
    return isinstance(facts, dict) and facts.get("schema") == CanaryTrace.schema


def of_canaries(trace: object) -> bool:
    """Whether a trace, the recorder that made it, or its file, has canaries."""
    if isinstance(trace, (str, Path)):
        return Path(trace).is_file() and holds_canaries(trace)
    recorder = sys.modules.get("leakcore.dpsgd.record.canary_recorder")
    return isinstance(trace, CanaryTrace) or (recorder is not None and isinstance(trace, recorder.CanaryRecorder))


def _read(trace: object) -> CanaryTrace:
    if isinstance(trace, CanaryTrace):
        return trace
    if isinstance(trace, (str, Path)):
        return CanaryTrace.load(trace)
    if callable(getattr(trace, "trace", None)):
        recorded = trace.trace()  # type: ignore[attr-defined]
        if isinstance(recorded, CanaryTrace):
            return recorded
    raise TypeError(
        f"`trace` must be what leakcore.record gave with canaries, or the file it wrote, got {type(trace).__name__}"
    )


def _recorded(trace: CanaryTrace) -> Poisson:
    """The schedule of the recorded steps."""
    sigma = trace.noise_multiplier
    return Poisson(float(sigma[0]) if (sigma == sigma[0]).all() else sigma, trace.sample_rate, trace.steps)
