"""Small private runs for `leakcore.record`: 40 rows; 6 of them and 5 other rows are candidates."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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


Make = Callable[..., torch.optim.Optimizer]


class Run:
    """A private run with its engine and all that its randomness depends on."""

    def __init__(
        self, optimizer: Make = torch.optim.SGD, accountant: str = "rdp", seed: int = 0, **settings: Any
    ) -> None:
        torch.manual_seed(seed)
        x, y = data()
        plain = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.engine = PrivacyEngine(accountant=accountant)
            self.noise = torch.Generator().manual_seed(seed + 1)
            private = self.engine.make_private(
                module=plain, optimizer=optimizer(plain.parameters(), lr=0.1), data_loader=loader,
                noise_generator=self.noise, **{"noise_multiplier": 1.5, "max_grad_norm": 0.4, **settings},
            )  # fmt: skip
        self.module, self.optimizer, self.loader = private[0], private[1], private[-1]
        self.loss: Any = private[2] if len(private) == 4 else nn.CrossEntropyLoss()
        torch.manual_seed(seed + 2)

    def train(self, epochs: int = 1, after: Callable[[], None] = lambda: None, loader: Any = None) -> None:
        for _ in range(epochs):
            for x, y in self.loader if loader is None else loader:
                self.optimizer.zero_grad()
                self.loss(self.module(x), y).backward()
                self.optimizer.step()
                after()

    def record(self, **settings: Any) -> Any:
        arguments = {"candidates": candidates(), "members": np.arange(11) < 6, **settings}
        return leakcore.record(self.optimizer, **arguments)

    def part(self, epochs: int = 1, **settings: Any) -> Any:
        """The recorder of some epochs."""
        with self.record(**settings) as recorder:
            self.train(epochs)
        return recorder

    def save(self, path: Path) -> None:
        """A checkpoint with what a run of the same bits needs: model, optimizer, accountant, generators."""
        torch.save(
            {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict(),
             "accountant": self.engine.accountant.state_dict(), "noise": self.noise.get_state(),
             "torch": torch.get_rng_state()}, path,
        )  # fmt: skip

    def load(self, path: Path, *, accountant: bool = True) -> None:
        saved = torch.load(path, weights_only=True)
        self.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if accountant:
            self.engine.accountant.load_state_dict(saved["accountant"])
        self.noise.set_state(saved["noise"])
        torch.set_rng_state(saved["torch"])


def unrecorded(trace: Trace) -> list[tuple[int, int]]:
    """(recorded steps before, steps) of every stretch outside the trace."""
    return [(s.after, s.steps) for s in trace.unrecorded]


def require_equal(first: Trace, second: Trace) -> None:
    """All that is counted to the bit; sums of scores to the rounding of 64-bit sums in another order."""
    for name, ours in vars(first).items():
        theirs = getattr(second, name)
        if name in ("membership_sum", "membership_likelihood", "pair_sum", "pair_likelihood"):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12, err_msg=name)
        elif isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype, name
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        else:
            assert ours == theirs, name
