"""The door to an audit by canaries of an Opacus training run: `record_canaries`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leakcore.dpsgd.opacus.canaries.canary_recorder import CanaryRecorder


def record_canaries(
    optimizer: Any, loader: Any, *, count: int = 5000, seed: int = 0, out: str | Path | None = None
) -> CanaryRecorder:
    """Train with canaries, whose gradients lie on coordinates of their own, and record what an attacker sees of them.

    Use it as a context manager around the unchanged loop. A fair coin decides for each canary whether it is in the
    data. If so, a copy of one of your rows joins the loader's data set, the sampler draws it like any row, and before
    the optimizer clips, a long gradient on a coordinate of the canary's own replaces the copy's. `audit.from_canaries`
    proves ε from it. Sampler, clipping, accumulation and noise are audited; how layers compute per-sample gradients is
    not. The canaries are trained on, so audit a copy of your run. Details: docs/explanation/recording.md.

    Args:
        optimizer: Opacus's `DPOptimizer` with flat clipping, as `make_private` returned it.
        loader: the DataLoader of Poisson samples that `make_private` returned and the loop iterates over, also by a
            `BatchMemoryManager`.
        count: canaries. About half of them are in the data. The parameters need as many coordinates; up to four times
            as many others are watched as controls, which sharpen the proof.
        seed: of the coins and the coordinates.
        out: npz file for the trace, written at the end, also after an exception. An existing file is refused.

    Returns:
        A `CanaryRecorder`, a context manager.

    Raises:
        ValueError: names the argument, before training or in the first step.
        TypeError: for an optimizer that clips otherwise, or an argument of another type.

    Guarantees:
        After the block, optimizer and loader are as before. A later failure ends the recording, is logged, and leaves
        the training alone.

    Example:
        >>> import warnings, torch, leakcore
        >>> from opacus import PrivacyEngine
        >>> warnings.filterwarnings("ignore")  # Opacus's remarks on hooks
        >>> x, y = torch.randn(40, 4), torch.arange(40) % 2
        >>> model = torch.nn.Linear(4, 2)
        >>> model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0,
        ...     max_grad_norm=1.0, data_loader=torch.utils.data.DataLoader(list(zip(x, y)), batch_size=10),
        ... )
        >>> with leakcore.record_canaries(optimizer, loader, count=8) as recorder:
        ...     for inputs, targets in loader:
        ...         optimizer.zero_grad()
        ...         torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        ...         optimizer.step()
        >>> recorder.trace().steps, recorder.trace().canaries
        (4, 8)
    """
    return CanaryRecorder(optimizer, loader, count, seed, out)
