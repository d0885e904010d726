"""From a recorded training run to a report; and the parts of one recorded run, put together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakcore._base.progress import timed
from leakcore.audit.shared.doctor import environment
from leakcore.audit.trace.canaries import CanaryReport, from_canaries
from leakcore.audit.trace.measure import attack_rates, lower_bounds, recorded_steps, upper_bounds
from leakcore.audit.trace.recorded_run import parse, read_trace
from leakcore.audit.trace.report import TraceReport
from leakcore.dpsgd import CanaryTrace, Trace, joined

if TYPE_CHECKING:
    from leakcore.dpsgd import CanaryRecorder, Divisor, Recorder
    from leakcore.mechanisms import Mechanism


@timed
def join(traces: Sequence[Trace | Recorder | str | Path]) -> Trace:
    """Join the traces of a run that was recorded in parts, for example before and after a checkpoint.

    Scores and log-likelihood ratios are sums over steps, so they are added, which rounds in another order than one
    recording would; counts and schedules are exact. Steps before the first part and between blocks of one recorder
    remain steps that were not recorded.

    Args:
        traces: the parts in the order of the run, each a `Trace`, a recorder or a file.

    Returns:
        A `Trace`, for `from_trace`.

    Raises:
        ValueError: names the part that does not continue the one before: other candidates, members, shapes of
            parameters, q or expected batch size; another step or other parameters at its beginning; or an accountant
            that has other settings for the earlier steps. Without an accountant the order of the steps is not checked.
        TypeError: if `traces` is not a sequence of parts.

    Example:
        >>> import warnings, torch, leakcore
        >>> from opacus import PrivacyEngine
        >>> warnings.filterwarnings("ignore")  # Opacus's remarks on hooks
        >>> x, y = torch.randn(40, 4), torch.arange(40) % 2
        >>> model = torch.nn.Linear(4, 2)
        >>> model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0,
        ...     max_grad_norm=1.0, data_loader=torch.utils.data.DataLoader(list(zip(x[:20], y[:20])), batch_size=10),
        ... )
        >>> loss, parts = torch.nn.CrossEntropyLoss(), []
        >>> for epoch in range(2):
        ...     with leakcore.record(optimizer, candidates=(x, y), members=torch.arange(40) < 20) as recorder:
        ...         for inputs, targets in loader:
        ...             optimizer.zero_grad()
        ...             loss(model(inputs), targets).backward()
        ...             optimizer.step()
        ...     parts.append(recorder.trace())
        >>> [part.steps for part in parts], leakcore.audit.join(parts).steps
        ([2, 2], 4)
    """
    if isinstance(traces, (Trace, str, Path)) or not isinstance(traces, Sequence):
        raise TypeError(f"`traces` must be a list of the parts of a run, in its order, got {type(traces).__name__}")
    if not traces:
        raise ValueError("`traces` must hold at least one part of a run, got none")
    parts = [read_trace(part, Trace, name=f"traces[{i}]") for i, part in enumerate(traces)]
    whole = parts[0]
    for i, part in enumerate(parts[1:], 1):
        try:
            whole = joined(whole, part)
        except ValueError as error:
            file = f" ({str(traces[i])!r})" if isinstance(traces[i], (str, Path)) else ""
            raise ValueError(f"traces[{i}]{file}: {error}") from None
    return whole


@timed
def from_trace(
    trace: Trace | Recorder | CanaryTrace | CanaryRecorder | str | Path,
    *,
    delta: float = 1e-5,
    claimed_epsilon: float | None = None,
    mechanism: Mechanism | float | None = None,
    steps: int | None = None,
    num_candidates: int = 10,
    coins: bool = False,
    confidence: float = 0.95,
    divisor: Divisor | None = None,
) -> TraceReport | CanaryReport:
    """The report on a training run that `leakcore.record` watched.

    ε, bounds and gate are about the whole run up to the end of the recording; what attacks reached is about the
    recorded steps, and is an estimate. If the other steps are unknown, `passed` is None unless a claim is contradicted.
    Methods and intervals: docs/explanation/reports.md.

    Args:
        trace: a `Trace`, a recorder, or its file. One with canaries goes to `from_canaries`.
        delta: δ in (0, 1).
        claimed_epsilon: ε that the run claims at δ, under the relation of the report's ε. None: the accountant's.
        mechanism: what the whole run was, or q of Poisson sampling. None: as the trace says.
        steps: number of steps of the whole run, where the trace lacks it.
        num_candidates: size of the prior, 2 to 2⁵³. Measuring takes num_candidates − 1 non-members.
        divisor: "constant" or "rows", as for `leakcore.record`; None: as the trace says. Unless it is "constant", ε and
            bounds are for zero-out adjacency.
        coins: True only if a fair coin of its own decided about each candidate, and the recorder was told the
            `members`, or every batch held all rows. Guesses at the coins then prove a lower bound on ε.
        confidence: level of the quoted numbers and the membership test. Coins contradict a claim at 99.9%.

    Returns:
        A `TraceReport`, or a `CanaryReport`.

    Raises:
        ValueError: names the argument, before any work.
        TypeError: for another type.

    Guarantees:
        Deterministic. Upper bounds follow from the schedule alone (Hayes et al. 2023, Theorem 2).

    Example:
        >>> import numpy as np
        >>> from leakcore import audit, dpsgd, mechanisms
        >>> n, scores = 40, np.linspace(-1, 1, 40)
        >>> trace = dpsgd.Trace(
        ...     noise_multiplier=np.ones(50), max_grad_norm=np.ones(50), batch_rows=np.full(50, 100), sample_rate=1.0,
        ...     expected_batch_size=100.0, members=scores > 0, members_given=True, times_seen=np.full(n, 50),
        ...     clipped_share=np.zeros(n), membership_sum=scores, membership_likelihood=scores,
        ...     pair_sum=np.zeros((n, n)), pair_likelihood=np.zeros((n, n)),
        ... )
        >>> report = audit.from_trace(trace, mechanism=mechanisms.FullBatch(1.0, 50))
        >>> report.members, report.epsilon.kind
        (20, 'upper')
    """
    start = time.monotonic()
    how: dict[str, Any] = {
        "delta": delta,
        "claimed_epsilon": claimed_epsilon,
        "mechanism": mechanism,
        "confidence": confidence,
        "divisor": divisor,
    }
    recorded = read_trace(trace, Trace, CanaryTrace)
    if isinstance(recorded, CanaryTrace):
        for name, value in (("steps", steps), ("coins", coins or None)):
            if value is not None:
                raise ValueError(f"`{name}` must be left out for a trace with canaries, which knows it, got {value!r}")
        return from_canaries(recorded, **how)
    request = parse(recorded, steps=steps, num_candidates=num_candidates, coins=coins, **how)
    return TraceReport(
        environment=environment(),
        **request.settings(),
        **recorded_steps(request),
        **upper_bounds(request),
        **attack_rates(request),
        **lower_bounds(request),
        seconds=time.monotonic() - start,
    )
