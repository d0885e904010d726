"""Small private runs for `leakcore.record`: 40 rows; 6 of them and 5 other rows are candidates."""

from __future__ import annotations

from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn

import leakcore
from leakcore.dpsgd import Trace

MEMBERS, OTHERS = 6, 5


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(40, 5, generator=generator), torch.arange(40) % 3


def candidates() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = data()
    generator = torch.Generator().manual_seed(8)
    other = torch.randn(OTHERS, 5, generator=generator)
    return torch.cat([x[:MEMBERS], other]), torch.cat([y[:MEMBERS], torch.arange(OTHERS) % 3])


def private(**settings: Any) -> Any:
    torch.manual_seed(0)
    x, y = data()
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 3))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    arguments: dict[str, Any] = {"noise_multiplier": 1.5, "max_grad_norm": 0.4, **settings}
    return PrivacyEngine(accountant="rdp").make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.5), data_loader=loader,
        noise_generator=torch.Generator().manual_seed(3), **arguments,
    )  # fmt: skip


def loop(module: Any, optimizer: Any, loader: Any, loss: Any, epochs: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(1)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(module(x), y).backward()
            optimizer.step()
    return [p.detach().clone() for p in module.parameters()]


def recorded(loss: Any, **settings: Any) -> Trace:
    arguments = {"candidates": candidates(), **settings}
    module, optimizer, loader = private()
    with leakcore.record(optimizer, **arguments) as recorder:
        loop(module, optimizer, loader, loss)
    return recorder.trace()
