"""A module for Opacus, its fused optimizer, and one step of them."""

from __future__ import annotations

from typing import Any

import torch
from opacus import GradSampleModule
from torch import nn
from torch.nn import functional

from leakcore.dpsgd import FusedDPOptimizer
from tests.dpsgd.opacus_models import made

ROWS = 6
Y = torch.arange(ROWS) % 4


def take_step(module: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    optimizer.zero_grad()
    outputs = module(*args, **kwargs)
    functional.cross_entropy(outputs[0] if isinstance(outputs, tuple) else outputs, Y).backward()
    optimizer.step()


def fused(plain: nn.Module, **settings: Any) -> tuple[Any, Any]:
    module = GradSampleModule(plain, **settings)
    return module, made(FusedDPOptimizer, module)
