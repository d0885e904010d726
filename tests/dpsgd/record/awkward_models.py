"""Ordinary models that torch's vmap cannot take, or that leave something behind: rows of 5 numbers, 3 classes."""

from __future__ import annotations

import collections
import functools
import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.first(x)
        return out

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.hidden(x).tanh())


class Item(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        h = super().hidden(x)
        return h if h.abs().max().item() < 1e6 else h.clamp(-1, 1)


class NaNGuard(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        h = super().hidden(x)
        if h.isnan().any():
            raise FloatingPointError
        return h


class Workspace(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(len(x), 4)
        out[:, :] = super().hidden(x)
        return out


class MaskWrite(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        h = super().hidden(x).clone()
        h[h < 0] = 0.1
        return h


class Selected(Base):
    """Rows that are not all zero, picked and put back."""

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        some = torch.nonzero(x.abs().sum(1) > 0)[:, 0]
        return x.new_zeros(len(x), 4).index_copy(0, some, super().hidden(x[some]))


class Loop(Base):
    """As many turns as the row's first number says: rows of one batch take turns by a mask."""

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        h, turns = super().hidden(x), (x[:, :1].abs() * 2).long() + 1
        for k in range(int(turns.max())):
            h = torch.where(turns > k, h.sin(), h)
        return h


class ThroughNumpy(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(torch.from_numpy(np.sign(x.detach().numpy()) * np.sqrt(np.abs(x.detach().numpy()))))


class Noisy(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x + 0.1 * torch.randn_like(x))


class AlwaysDropout(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().hidden(x), 0.3)


class OtherGenerators(Base):
    """NumPy's and Python's own, and generators that the model holds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)
        self.numpy, self.python = np.random.default_rng(6), random.Random(7)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        numbers = np.random.random(), random.random(), self.numpy.random(), self.python.random()  # noqa: NPY002
        scale = 1 + 0.1 * sum(numbers)
        return super().hidden(x) * scale + torch.rand(4, generator=self.generator)


class Counter(Base):
    """A buffer that every forward pass writes, and that the next reads."""

    def __init__(self) -> None:
        super().__init__()
        self.running = nn.Module()
        self.running.register_buffer("passes", torch.zeros(()))
        self.running.register_buffer("mean", torch.zeros(4))

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        h = super().hidden(x)
        self.running.passes += 1
        self.running.mean.data.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h - self.running.mean + 0.01 * self.running.passes


class Cache(Base):
    """Attributes, lists and dictionaries that a forward pass leaves for the next, some in an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None
        self.calls = 0
        self.log: list[Any] = []
        self.recent: Any = collections.deque(maxlen=2)
        self.by_size: dict[int, Any] = {}
        self.helper = Helper()

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        h = super().hidden(x)
        self.calls += 1
        self.log.append(float(h.detach().abs().sum()))
        self.recent.append(h.detach())
        if len(x) not in self.by_size:
            self.by_size[len(x)] = torch.full((len(x), 4), 1.5)
        shift = 0.001 * (self.calls + self.helper.shift() + (0 if self.last is None else self.last.mean()))
        self.last = h.detach()
        return h * self.by_size[len(x)] + shift


_BY_SIZE: dict[int, Any] = {}


@functools.lru_cache
def _positions(columns: int) -> torch.Tensor:
    return torch.arange(columns) / 10


class GlobalCache(Base):
    """What a module's variables, a class and a memoised function keep for the next pass."""

    shared: ClassVar[list[float]] = []

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        h = super().hidden(x)
        _BY_SIZE.setdefault(len(x), torch.zeros(4) + 0.5)
        self.shared.append(0.0)
        return h + _BY_SIZE[len(x)] + _positions(h.shape[-1]) + 0.001 * len(self.shared)


class Hooked(Base):
    """Hooks of the user's own are part of what a model computes, and may keep what they see."""

    def __init__(self) -> None:
        super().__init__()
        calls: list[Any] = []
        self.first.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
        self.first.register_forward_hook(lambda _, inputs, output: output + 0.01 * len(calls))
        self.first.register_forward_hook(lambda _, inputs, output: calls.append(output.detach()))
        self.seen = calls


class Helper:
    def __init__(self) -> None:
        self.count, self.memory = 0, torch.zeros(3)

    def shift(self) -> float:
        self.count += 1
        self.memory[self.count % 3] += 0.01
        return 0.01 * self.count + float(self.memory.sum())


class Checkpointed(Base):
    reentrant = False

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(super().hidden, x, use_reentrant=self.reentrant)
        return out


class CheckpointedReentrant(Checkpointed):
    reentrant = True

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x.detach().clone().requires_grad_())


class InPlace(Base):
    """Into its input, and into activations."""

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return super().hidden(x).clone().mul_(2).relu_()


class Frozen(Base):
    """A recurrent trunk that is not trained."""

    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.trunk = kind(1, 5, batch_first=True)
        for p in self.trunk.parameters():
            p.requires_grad_(False)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(self.trunk(x[..., None])[0][:, -1])


class FrozenGRU(Frozen):
    def __init__(self) -> None:
        super().__init__(nn.GRU)


class Round(torch.autograd.Function):
    """Straight through; says nothing of vmap."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round(decimals=1)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class OwnFunction(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Round.apply(super().hidden(x))  # type: ignore[no-untyped-call]
        return out


class Squeezed(Base):
    """Drops the dimension of a batch of one row, which the loss then does not take."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(x).tanh()[:, None]).squeeze()


class ManyRows(Base):
    """Takes no single row."""

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x) > 1
        return super().hidden(x)


class MaxNorm(Base):
    """An embedding that shortens its own weights as they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 5, max_norm=1.0)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(self.embedding((x.abs() * 3).long().clamp(max=8)).mean(1))


class Changed(Base):
    """Writes into a parameter, as a constraint on weights does."""

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        self.first.weight.data.clamp_(-0.2, 0.2)
        return super().hidden(x)


class Dictionary(Base):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.hidden(x).tanh()
        return {"hidden": h, "logits": self.head(h)}


class Pair(Base):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.hidden(x).tanh()
        return [self.head(h), (h,)]


def _of_dictionary(outputs: Any) -> torch.Tensor:
    out: torch.Tensor = outputs["logits"]
    return out


def _of_pair(outputs: Any) -> torch.Tensor:
    out: torch.Tensor = outputs[0]
    return out


def _itself(outputs: Any) -> torch.Tensor:
    out: torch.Tensor = outputs
    return out


_ONE_TENSOR: list[type[Base]] = [
    Item, NaNGuard, Workspace, MaskWrite, Selected, Loop, ThroughNumpy, Noisy, AlwaysDropout, OtherGenerators, Counter,
    Cache, GlobalCache, Hooked, Checkpointed, CheckpointedReentrant, InPlace, Frozen, FrozenGRU, OwnFunction, Squeezed,
    ManyRows, Changed,
]  # fmt: skip
MODELS: dict[type[Base], Callable[[Any], torch.Tensor]] = {
    **dict.fromkeys(_ONE_TENSOR, _itself), Dictionary: _of_dictionary, Pair: _of_pair
}  # fmt: skip
"""Each with what its loop gives the loss."""
REFUSED: dict[type[Base], Callable[[Any], torch.Tensor]] = {MaxNorm: _itself}
"""In training, because it changes without noise what a batch looks up; its rows' gradients are known all the same."""
