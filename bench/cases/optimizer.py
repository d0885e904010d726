"""A whole DP-SGD training step under Opacus: its own optimizer, ghost clipping, and our drop-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender

SIGMA, CLIP = 1.0, 1.0


def cases(quick: bool) -> list[Case]:
    return [
        _case("MLP 784–256–256–10", 32 if quick else 512, _mlp, (784,)),
        _case("conv 3–32–64, 10 classes", 8 if quick else 128, _conv, (3, 32, 32)),
    ]


def _mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def _conv() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip


def _case(name: str, rows: int, network: Callable[[], Any], shape: tuple[int, ...]) -> Case:
    def data() -> Any:
        rng = np.random.default_rng(0)
        return rng.standard_normal((rows, *shape), dtype=np.float32), rng.integers(0, 10, rows)

    def contender(kind: str, secure: bool = False) -> Callable[[Any], Callable[[], Any]]:
        return lambda arrays: _step(kind, network(), arrays, rows, secure)

    needs = ("opacus",)
    return Case(
        "optimizer",
        f"{name}, B={rows} float32",
        data,
        (
            Contender("leakcore FusedDPOptimizer", contender("fused"), needs=needs),
            Contender("leakcore, 2 threads", contender("fused"), 2, needs=needs),
            Contender("leakcore, secure mode", contender("fused", secure=True), needs=needs),
            Contender("Opacus flat", contender("flat"), needs=needs),
            Contender("Opacus flat, 2 threads", contender("flat"), 2, beside="leakcore, 2 threads", needs=needs),
            Contender("Opacus ghost", contender("ghost"), needs=needs),
            Contender("no privacy", contender("plain"), needs=needs),
        ),
        rows,
        "row",
        memory=True,
        seconds=12,
    )


def _step(kind: str, module: Any, arrays: Any, rows: int, secure: bool) -> Callable[[], Any]:
    """One call is zero_grad, forward, backward, step."""
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    from leakcore.dpsgd import FusedDPOptimizer

    x, y = (torch.from_numpy(a) for a in arrays)
    loss: Any = torch.nn.CrossEntropyLoss()
    plain = torch.optim.SGD(module.parameters(), lr=0.01)
    given: dict[str, Any] = {"noise_multiplier": SIGMA, "max_grad_norm": CLIP, "expected_batch_size": rows}
    optimizer: Any = plain
    if kind in ("fused", "flat"):
        module = GradSampleModule(module)
        made = FusedDPOptimizer if kind == "fused" else DPOptimizer
        optimizer = made(plain, **given, **({"secure_mode": True} if secure else {}))
    elif kind == "ghost":
        module = GradSampleModuleFastGradientClipping(module, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(plain, **given)
        loss = DPLossFastGradientClipping(module, optimizer, loss)

    def run() -> None:
        optimizer.zero_grad()
        loss(module(x), y).backward()
        optimizer.step()

    return run
