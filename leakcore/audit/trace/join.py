"""Parts of one recorded run, put together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakcore._base.progress import timed
from leakcore.audit.trace.question import read_trace
from leakcore.dpsgd import Trace, joined

if TYPE_CHECKING:
    from leakcore.dpsgd import Recorder


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
    parts = [read_trace(part, f"traces[{i}]") for i, part in enumerate(traces)]
    whole = parts[0]
    for i, part in enumerate(parts[1:], 1):
        try:
            whole = joined(whole, part)
        except ValueError as error:
            file = f" ({str(traces[i])!r})" if isinstance(traces[i], (str, Path)) else ""
            raise ValueError(f"traces[{i}]{file}: {error}") from None
    return whole
