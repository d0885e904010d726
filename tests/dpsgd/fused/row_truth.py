"""What a step must have released: each row's gradient by plain autograd in float64, one at a time, clipped, summed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Loss = Callable[[nn.Module, Any], torch.Tensor]
"""The mean loss of rows: of one row, that row's own."""


def some(batch: Any, rows: slice) -> Any:
    """These rows of a batch: a tensor, or tuples and dictionaries of tensors."""
    if isinstance(batch, dict):
        return {name: some(values, rows) for name, values in batch.items()}
    if isinstance(batch, tuple):
        return tuple(some(values, rows) for values in batch)
    return batch[rows]


def wide(batch: Any) -> Any:
    """Its floating numbers in float64."""
    if isinstance(batch, dict):
        return {name: wide(values) for name, values in batch.items()}
    if isinstance(batch, tuple):
        return tuple(wide(values) for values in batch)
    return batch.double() if batch.dtype.is_floating_point else batch


def clipped_rows(model: nn.Module, loss: Loss, batch: Any, rows: int, max_grad_norm: float) -> torch.Tensor:
    """(rows, parameters that are trained), float64: g_i·min(1, C/(‖g_i‖ + 1e-6))."""
    plain, batch = copy.deepcopy(model).double(), wide(batch)
    trained = [p for p in plain.parameters() if p.requires_grad]
    values = []
    for i in range(rows):
        parts = torch.autograd.grad(loss(plain, some(batch, slice(i, i + 1))), trained, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, parts, strict=True)]
        g = torch.cat([part.flatten() for part in flat])
        values.append(g * min(1.0, max_grad_norm / (float(g.norm()) + 1e-6)))
    size = sum(p.numel() for p in trained)
    return torch.stack(values) if rows else torch.zeros(0, size, dtype=torch.float64)


def error_of(release: torch.Tensor, rows: torch.Tensor) -> float:
    """‖release − Σ_i rows_i‖ as a share of Σ_i ‖rows_i‖."""
    return float((release.double() - rows.sum(0)).norm() / rows.norm(dim=1).sum())
