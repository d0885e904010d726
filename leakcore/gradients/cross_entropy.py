"""Cross-entropy, the default loss, and the targets that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def mean_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy over rows.

    Args:
        outputs: (rows, classes) logits, or (rows, 1), the logit of label 1.
        targets: classes (int64), or probabilities shaped like the outputs.

    Raises:
        ValueError: if the outputs have no axis of classes, because cross-entropy would then take the rows for it.
    """
    if outputs.ndim < 2:
        raise ValueError(
            "`loss` must be given for outputs of another shape than (rows, classes) or (rows, 1), got None and "
            f"{tuple(outputs.shape)}"
        )
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        wanted = targets.to(outputs.dtype).reshape(outputs.shape)
        return nn.functional.binary_cross_entropy_with_logits(outputs, wanted)
    return nn.functional.cross_entropy(outputs, targets)


def require_classes(targets: torch.Tensor, outputs: Any, name: str) -> None:
    """Require that class numbers (n,) are classes of the model, whose outputs for some rows are (..., K).

    Targets of another kind, which `mean_cross_entropy` accepts as well, and outputs of another shape pass.

    Raises:
        ValueError: for a class that the model does not have.
    """
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        return
    if targets.is_floating_point() or targets.ndim != 1 or not len(targets):
        return
    last = max(outputs.shape[1], 2) - 1
    wrong = (targets < 0) | (targets > last)
    if bool(wrong.any()):
        at = int(wrong.int().argmax())
        raise ValueError(f"`{name}[{at}]` must be a class of the model, in [0, {last}], got {int(targets[at])}")


def criterion(loss: Any) -> Callable[[Any, Any], Any]:
    """The loss, or cross-entropy if it is None; TypeError if it is not callable."""
    if loss is None:
        return mean_cross_entropy
    if not callable(loss):
        raise TypeError(f"`loss` must be a function of outputs and targets or None, got {type(loss).__name__}")
    return loss  # type: ignore[no-any-return]


def as_classes(loss: Any, targets: torch.Tensor) -> torch.Tensor:
    """Targets as cross-entropy needs them if the loss is None: class numbers in 64 bits, or probabilities."""
    if loss is not None:
        return targets
    if targets.ndim == 1 and (targets.is_floating_point() or targets.dtype == torch.bool):
        raise ValueError(f"`targets` must be class numbers, integers, for cross-entropy, got {targets.dtype}")
    return targets if targets.is_floating_point() else targets.long()


def targets_of(loss: Any, targets: torch.Tensor, outputs: Any) -> torch.Tensor:
    """`as_classes`, and ValueError for a class that the model, with these outputs (or None), does not have."""
    wanted = as_classes(loss, targets)
    if loss is None:
        require_classes(wanted, outputs, "targets")
    return wanted
