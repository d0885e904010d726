"""The user's module, behind Opacus's hooks and data-parallel wrappers."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def behind_hooks(model: Any) -> Any:
    """The module that Opacus's hooks were attached to."""
    return getattr(model, "_module", model)


def behind_wrappers(model: Any) -> Any:
    """The module without the wrappers around it. DistributedDataParallel's forward would wait for other processes."""
    module = behind_hooks(model)
    return module.module if is_parallel(module) else module


def is_parallel(model: Any) -> bool:
    """Whether the processes of a run train this module together, by torch's or Opacus's DistributedDataParallel."""
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    module = behind_hooks(model)
    return isinstance(module, nn.Module) and isinstance(
        module, (DistributedDataParallel, DifferentiallyPrivateDistributedDataParallel)
    )
