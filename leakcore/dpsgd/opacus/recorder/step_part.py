"""What each process of a run has of one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leakcore.dpsgd.opacus.recorder.sampling.sampling_of_steps import Release


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StepPart:
    """One process's part of a step.

    Attributes:
        settings: σ, C, q and the number of accumulated batches.
        parameters: a digest of the parameters, in the first step.
        inside: the candidates in its batch.
        rows: of its batch.
        confirmed: candidates that came with their own targets.
        contradicted: candidates that came with other targets, and these.
        release: from which draws its rows came.
    """

    settings: tuple[float, float, float | None, int]
    parameters: str
    inside: np.ndarray
    rows: int
    confirmed: set[int]
    contradicted: dict[int, Any]
    release: Release


def require_alike(parts: Sequence[StepPart]) -> None:
    """ValueError unless all processes made the same step of the same model."""
    first = parts[0]
    for rank, part in enumerate(parts):
        if part.parameters != first.parameters:
            raise ValueError(
                f"model: its parameters on rank {rank} differ from those on rank 0: wrap the module in Opacus's "
                "DifferentiallyPrivateDistributedDataParallel, which sends them to all, before make_private"
            )
        if part.settings != first.settings:
            raise ValueError(
                "optimizer: (noise_multiplier, max_grad_norm, sample rate, accumulated batches) must be the same in "
                f"every process, got {first.settings} on rank 0 and {part.settings} on rank {rank}"
            )


def inside_of(parts: Sequence[StepPart]) -> np.ndarray:
    """The candidates in the batch of the step, ascending."""
    return np.unique(np.concatenate([part.inside for part in parts]))


def noise_of(optimizer: Any) -> torch.Tensor:
    """The noise of the release, (D,), which Opacus's distributed optimizers add in the first process only."""
    unit = 1.0
    if optimizer.loss_reduction == "mean":
        unit = float(optimizer.expected_batch_size) * int(optimizer.accumulated_iterations)
    release = torch.cat([p.grad.flatten() for p in optimizer.params]) * unit
    return release - torch.cat([p.summed_grad.flatten() for p in optimizer.params])
