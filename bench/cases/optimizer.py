"""A whole DP-SGD training step under Opacus: its own optimizer, ghost clipping, and our drop-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender

SIGMA, CLIP = 1.0, 1.0


NAMES = {"flat": "Opacus flat", "ghost": "Opacus ghost", "plain": "no privacy"}


def cases(quick: bool) -> list[Case]:
    return [
        _case("MLP of 12 layers, 784–128–…–10", 32 if quick else 512, _mlp, lambda rows: _floats(rows, 784)),
        _case("conv 3–32–64, 10 classes", 8 if quick else 128, _conv, lambda rows: _floats(rows, 3, 32, 32)),
        _case("text, 64 of 10,000 words, 64–128–10", 8 if quick else 128, _text, _words),
    ]


def _floats(rows: int, *shape: int) -> Any:
    return np.random.default_rng(0).standard_normal((rows, *shape), dtype=np.float32)


def _words(rows: int) -> Any:
    return np.random.default_rng(0).integers(0, 10_000, (rows, 64))


def _mlp() -> Any:
    from torch import nn

    layers: list[Any] = [nn.Linear(784, 128), nn.ReLU()]
    for _ in range(10):
        layers += [nn.Linear(128, 128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def _conv() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip


def _text() -> Any:
    from torch import nn

    class Text(nn.Module):
        """The mean over words of a layer on each word's entry of a table."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.hidden, self.out = nn.Embedding(10_000, 64), nn.Linear(64, 128), nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.out(nn.functional.relu(self.hidden(self.table(x))).mean(1))

    return Text()


def _case(name: str, rows: int, network: Callable[[], Any], inputs: Callable[[int], Any]) -> Case:
    def data() -> Any:
        return inputs(rows), np.random.default_rng(1).integers(0, 10, rows)

    def contender(kind: str, secure: bool = False) -> Callable[[Any], Callable[[], Any]]:
        return lambda arrays: _step(kind, network(), arrays, rows, secure)

    needs = ("opacus",)
    contenders = []
    for threads in (1, 2):
        more = "" if threads == 1 else ", 2 threads"
        ours = f"leakcore FusedDPOptimizer{more}"
        contenders.append(Contender(ours, contender("fused"), threads, needs=needs, spins=True))
        if threads == 1 and name.startswith("text"):
            contenders.append(Contender("leakcore, secure mode", contender("fused", secure=True), needs=needs))
        contenders += [
            Contender(f"{NAMES[kind]}{more}", contender(kind), threads, against=ours, needs=needs)
            for kind in NAMES
            if kind != "flat" or threads == 1  # seconds each, of reading memory: threads hardly matter
        ]
    return Case("optimizer", f"{name}, B={rows} float32", data, tuple(contenders), rows, "row", memory=True, seconds=8)


def _step(kind: str, module: Any, arrays: Any, rows: int, secure: bool) -> Callable[[], Any]:
    """One call is forward, backward, step, zero_grad."""
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    from leakcore.dpsgd import FusedDPOptimizer

    x, y = (torch.from_numpy(a) for a in arrays)
    loss: Any = torch.nn.CrossEntropyLoss()
    plain = torch.optim.SGD(module.parameters(), lr=0.01)
    settings: dict[str, Any] = {"noise_multiplier": SIGMA, "max_grad_norm": CLIP, "expected_batch_size": rows}
    optimizer: Any = plain
    if kind in ("fused", "flat"):
        module = GradSampleModule(module)
        private_optimizer = FusedDPOptimizer if kind == "fused" else DPOptimizer
        optimizer = private_optimizer(plain, **settings, **({"secure_mode": True} if secure else {}))
    elif kind == "ghost":
        module = GradSampleModuleFastGradientClipping(module, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(plain, **settings)
        loss = DPLossFastGradientClipping(module, optimizer, loss)

    def run() -> None:
        loss(module(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # at the end: between two calls nothing but the model is in memory

    return run
