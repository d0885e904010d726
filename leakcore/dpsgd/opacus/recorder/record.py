"""The door to a recording of an Opacus training run: `record`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from leakcore.dpsgd.opacus.recorder.recorder import MEMORY, Recorder
from leakcore.gradients import Criterion


def record(
    optimizer: Any,
    *,
    candidates: Any,
    members: Any = None,
    model: nn.Module | None = None,
    criterion: Criterion | None = None,
    sampling: DataLoader[Any] | float | None = None,
    out: str | Path | None = None,
    memory: int = MEMORY,
) -> Recorder:
    """Record an Opacus run while it trains: `with leakcore.record(...) as recorder:` around the loop.

    In every step, after Opacus has clipped, summed and noised, the candidates' gradients at the present parameters are
    computed, clipped and multiplied with the released sum; only the products are stored (see `Trace`). Details:
    docs/explanation/recording.md.

    Args:
        optimizer: what `make_private` returned (flat or ghost clipping), or a `FusedDPOptimizer`.
        candidates: n distinct rows, some trained on and some not: (inputs, targets), a mapping of arrays, or a
            DataLoader that gives one row at a time.
        members: (n,) bool, which candidates are trained on. None: those that turn up in a batch; if inputs are
            transformed before the model, `members` is needed.
        model: None: the module called in the loop that holds the parameters.
        criterion: loss of outputs and targets, mean or sum over rows. None: the `torch.nn` loss that the loop uses,
            or the loss that the model returns. A loss that mixes rows is refused.
        sampling: the DataLoader, or q of Poisson sampling. None: what feeds the steps.
        out: npz file for the trace, written every 100 steps and at the end, also after an exception. An existing file
            is refused.
        memory: bytes for gradients of candidates at a time; more are computed in parts.

    Returns:
        A `Recorder`, a context manager.

    Raises:
        ValueError: names the argument, at the latest in the first step.
        TypeError: for an optimizer that clips otherwise, or an argument of another type.

    Guarantees:
        The run is unchanged, to the bit. A later failure is logged, the step is left out, and the training continues.

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
    return Recorder(optimizer, candidates, members, model, criterion, sampling, out, memory)
