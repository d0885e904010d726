"""Parts of one recorded run, put together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakcore.audit.trace.question import read_trace
from leakcore.dpsgd import Trace, joined

if TYPE_CHECKING:
    from leakcore.dpsgd import Recorder


def join(traces: Sequence[Trace | Recorder | str | Path]) -> Trace:
    """One trace of a run that was recorded in parts, as it is after a checkpoint: what one recording of them all gives.

    Scores and log-likelihood ratios are sums over steps and add up, to rounding (64-bit sums in another order); counts
    and schedules are equal to the bit.

    Args:
        traces: the parts in the order of the run, each a `Trace`, a recorder or a file.

    Returns the `Trace`, for `from_trace`. Steps before the first part and between blocks of one recorder stay what they
    are: steps of the run that were not recorded.

    Raises ValueError, which names the part, unless all have the same candidates, members, parameters' shapes, q and
    expected batch size; unless each begins with the step after the last of the one before, at the parameters that this
    left; and unless the accountant of each has the earlier parts' steps as they recorded them. Where no accountant
    counted the steps their order is taken as given, and the parameters are what shows another run.
    """
    if isinstance(traces, (Trace, str, Path)) or not isinstance(traces, Sequence):
        raise TypeError(f"traces is a {type(traces).__name__}: must be a list of the parts of a run, in its order")
    if not traces:
        raise ValueError("traces=[]: must hold at least one part of a run")
    parts = [read_trace(part, f"traces[{i}]") for i, part in enumerate(traces)]
    whole = parts[0]
    for i, part in enumerate(parts[1:], 1):
        try:
            whole = joined(whole, part)
        except ValueError as error:
            file = f" ({str(traces[i])!r})" if isinstance(traces[i], (str, Path)) else ""
            raise ValueError(f"traces[{i}]{file}: {error}") from None
    return whole
