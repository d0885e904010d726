"""Models over kinds of layers and ways of using them, for steps that are compared with Opacus's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn import functional

WORDS = 50


class _Text(nn.Module):
    """Words, a layer per word, a mean; `tied`: the last layer's weight is the table, as in language models."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.table, self.middle, self.norm = nn.Embedding(WORDS, 16), nn.Linear(16, 24), nn.LayerNorm(24)
        self.back, self.out = nn.Linear(24, 16), nn.Linear(16, WORDS, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.out(self.back(functional.relu(self.norm(self.middle(self.table(x)))))).mean(1)
        return output


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.out(torch.tanh(self.first(torch.tanh(self.first(x)))))
        return output


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cells, self.out = nn.Embedding(WORDS, 8), DPLSTM(8, 7, batch_first=True), nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.out(self.cells(self.table(x))[0][:, -1])
        return output


class _Block(nn.Module):
    """A transformer block. `late`: rows in the second dimension, and biases of the sequence."""

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late = late
        self.table = nn.Embedding(WORDS, 8)
        self.attention = DPMultiheadAttention(8, 2, batch_first=not late, add_bias_kv=late, add_zero_attn=late)
        self.norm, self.up, self.down, self.out = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x.T if self.late else x)
        h = self.norm(h + self.attention(h, h, h)[0])
        h = h + self.down(functional.gelu(self.up(h)))
        output: torch.Tensor = self.out(h).mean(0 if self.late else 1)
        return output


class Scale(nn.Module):
    """A layer that nobody knows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class OwnConv1d(nn.Conv1d):
    """A layer that could do anything."""


def _frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))
    network[0].weight.requires_grad = False
    network[2].requires_grad_(False)
    return network


def _shared_with_unknown() -> nn.Module:
    """A heir of a known layer is left to Opacus, and so is another layer with its weight."""
    network = nn.Sequential(
        OwnConv1d(3, 3, 3, padding=1), nn.Tanh(), nn.Conv1d(3, 3, 3, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(36, 4),
    )  # fmt: skip
    network[2].weight = network[0].weight
    return network


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding="same", groups=2, dilation=2),
        nn.InstanceNorm2d(16, affine=True), nn.ReLU(), nn.Conv2d(16, 64, 3), nn.Flatten(), nn.Linear(64 * 16, 5),
    )  # fmt: skip


def _dense(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randn(rows, *shape, dtype=torch.float64)


def _words(rows: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (rows, 9))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3, bias=False)), _dense(6)),
    "an unknown layer": (lambda: nn.Sequential(nn.Linear(6, 6), Scale(6), nn.Linear(6, 3)), _dense(6)),
    "frozen parameters": (_frozen, _dense(6)),
    "linear over steps": (
        lambda: nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3), nn.Flatten(), nn.Linear(12, 3)),
        _dense(4, 30),
    ),
    "convolutions, group and instance norm": (_convolutions, _dense(3, 12, 12)),
    "Conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 8, 4, padding="same"), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)),
               _dense(3, 12)),
    "Conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5)),
               _dense(2, 6, 6, 6)),
    "RMSNorm": (lambda: nn.Sequential(nn.Linear(6, 9), nn.RMSNorm(9), nn.Linear(9, 3)), _dense(6)),
    "text": (_Text, _words),
    "tied weights": (lambda: _Text(tied=True), _words),
    "a layer used twice": (Twice, _dense(6)),
    "a weight shared with an unknown layer": (_shared_with_unknown, _dense(3, 12)),
    "LSTM": (_Recurrent, _words),
    "transformer block": (_Block, _words),
    "transformer block, rows second": (lambda: _Block(late=True), _words),
}  # fmt: skip
LEFT_TO_OPACUS = {
    "an unknown layer": 1, "a weight shared with an unknown layer": 2,
}  # fmt: skip


def made(kind: type, network: Any, **settings: Any) -> Any:
    arguments: dict[str, Any] = {"noise_multiplier": 0.0, "max_grad_norm": 0.05, "expected_batch_size": 8, **settings}
    trained = [p for p in network.parameters() if p.requires_grad]
    return kind(torch.optim.SGD(trained, lr=0.1), **arguments)
