"""The door to a recording of an Opacus training run: `record`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from torch import nn
from torch.utils.data import DataLoader

from leakcore._base import validate
from leakcore.dpsgd.record.canaries import Canaries
from leakcore.dpsgd.record.canary_recorder import CanaryRecorder
from leakcore.dpsgd.record.recorder import Recorder
from leakcore.dpsgd.trace.trace import Divisor
from leakcore.gradients import Criterion


@overload
def record(
    optimizer: Any,
    *,
    candidates: Any,
    members: Any = None,
    model: nn.Module | None = None,
    criterion: Criterion | None = None,
    sampling: DataLoader[Any] | float | None = None,
    out: str | Path | None = None,
    every: int = 1,
    divisor: Divisor = "rows",
) -> Recorder: ...


@overload
def record(
    optimizer: Any,
    *,
    canaries: Canaries | int,
    sampling: DataLoader[Any],
    out: str | Path | None = None,
    divisor: Divisor = "rows",
) -> CanaryRecorder: ...


def record(
    optimizer: Any,
    *,
    candidates: Any = None,
    canaries: Canaries | int | None = None,
    members: Any = None,
    model: nn.Module | None = None,
    criterion: Criterion | None = None,
    sampling: DataLoader[Any] | float | None = None,
    out: str | Path | None = None,
    every: int = 1,
    divisor: Divisor = "rows",
) -> Recorder | CanaryRecorder:
    """Record an Opacus run while it trains: `with leakcore.record(...) as recorder:` around the loop.

    In every step the candidates' clipped gradients are multiplied with the released sum; only the products are stored.
    Canaries are planted rows, which prove most of ε in one run: audit a copy of your run. More, also on DDP:
    docs/explanation/recording.md.

    Args:
        optimizer: what `make_private` returned (flat or ghost clipping; with canaries flat), or a `FusedDPOptimizer`.
        candidates: n distinct rows: (inputs, targets), a mapping of arrays, or a DataLoader of single rows.
        canaries: `Canaries`, or how many, in place of candidates.
        members: (n,) bool, candidates trained on. None: those in a batch.
        model: None: the module in the loop that holds the parameters.
        criterion: loss of outputs and targets, mean or sum over rows. None: the loop's `torch.nn` loss, or the model's.
        sampling: the DataLoader, which canaries need, or q of Poisson sampling. None: what feeds the steps.
        out: new npz file for the trace, also after an exception.
        every: score one step in this many; needs members.
        divisor: "constant" if divisor, q and steps are fixed; "rows" if they change with the number of rows, as
            `PrivacyEngine`'s do: ε is then for zero-out adjacency.

    Returns:
        A `Recorder`, or a `CanaryRecorder` with canaries: a context manager.

    Raises:
        ValueError: names the argument, by the first step.
        TypeError: for an optimizer that clips otherwise, or another type.

    Guarantees:
        Without canaries the run is unchanged, to the bit. A later failure is logged, and the training continues.

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
        >>> loss, members = torch.nn.CrossEntropyLoss(), torch.arange(40) < 20
        >>> with leakcore.record(optimizer, candidates=(x, y), members=members) as recorder:
        ...     for inputs, targets in loader:
        ...         optimizer.zero_grad()
        ...         loss(model(inputs), targets).backward()
        ...         optimizer.step()
        >>> recorder.steps, recorder.trace().sampling.evidence
        (2, 'UniformWithReplacementSampler(sample_rate=0.5) over 20 rows')
    """
    if canaries is None:
        if candidates is None:
            raise TypeError("`candidates` or `canaries` must be given, got None")
        return Recorder(optimizer, candidates, members, model, criterion, sampling, out, every, divisor)
    others = {"candidates": candidates, "members": members, "model": model, "criterion": criterion}
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be None with canaries, got {type(value).__name__}: record it in another run"
            )
    if every != 1:
        raise ValueError(f"`every` must be 1 with canaries, got {every}: each step takes part in their scores")
    planted = canaries if isinstance(canaries, Canaries) else Canaries(validate.integer(1, canaries=canaries))
    return CanaryRecorder(optimizer, sampling, planted, out, divisor)
