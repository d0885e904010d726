"""Norms of ∂gradient/∂input of LeNet at one image, against torch's chunked Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.case import Case, Contender

PARAMETERS, PIXELS = 62_006, 3072
"""LeNet with ten classes, a CIFAR image."""
COLUMNS, ROWS = 192, 64
"""What jacfwd and jacrev are timed on, of all columns and rows: each is a loop over equal blocks, so its time is
extrapolated to all."""
_CHUNK = 64


def cases(quick: bool) -> list[Case]:
    return [_case(quick)]


def _case(quick: bool) -> Case:
    def data() -> Any:
        import torch

        from leakcore import models

        torch.manual_seed(0)
        return models.lenet(10), torch.rand(1, 3, 32, 32), torch.tensor([3])

    def ours(probes: int | None = None, **keywords: Any) -> Callable[[Any], Callable[[], Any]]:
        def build(arrays: Any) -> Callable[[], Any]:
            from leakcore import leakage

            budget = leakage.JacobianBudget(probes=probes)
            return lambda: leakage.sensitivity(arrays[0], arrays[1], arrays[2], budget=budget, **keywords).value

        return build

    contenders = [
        Contender("leakcore, F", ours(norms="F", probes=16, seed=0))
        if quick
        else Contender("leakcore, all three norms", ours())
    ]
    if not quick:
        contenders += [
            Contender("leakcore, Hutchinson, 16 directions", ours(norms="F", probes=16, seed=0)),
            Contender(
                f"torch jacfwd, {COLUMNS} of {PIXELS} columns, extrapolated", _forward, share=COLUMNS / PIXELS,
                against="leakcore, all three norms",
            ),
            Contender(
                f"torch jacrev, {ROWS} of {PARAMETERS} rows, extrapolated", _reverse, share=ROWS / PARAMETERS,
                against="leakcore, all three norms",
            ),
        ]  # fmt: skip
    return Case("sensitivity", "LeNet, one CIFAR image", data, tuple(contenders), 1.0, "image", memory=True, seconds=20)


def _gradient(arrays: Any) -> Callable[[Any], Any]:
    import torch

    model, _, y = arrays
    own = {k: p.detach() for k, p in model.named_parameters()}

    def loss(parameters: Any, z: Any) -> Any:
        return torch.nn.functional.cross_entropy(torch.func.functional_call(model, parameters, (z,)), y)

    def flat(z: Any) -> Any:
        return torch.cat([g.flatten() for g in torch.func.grad(loss)(own, z).values()])

    return flat


def _forward(arrays: Any) -> Callable[[], Any]:
    import torch

    flat, x = _gradient(arrays), arrays[1]

    def some(part: Any) -> Any:
        return flat(torch.cat([part, x.flatten()[COLUMNS:]]).view_as(x))

    # jacfwd has no chunks of its own: the input is cut into blocks by hand.
    blocks = x.flatten()[:COLUMNS].split(_CHUNK)

    def run() -> Any:
        out = 0.0
        for i, block in enumerate(blocks):

            def at(part: Any, i: int = i) -> Any:
                pieces = [*blocks[:i], part, *blocks[i + 1 :]]
                return some(torch.cat(pieces))

            out += float(torch.func.jacfwd(at)(block).double().square().sum())
        return out

    return run


def _reverse(arrays: Any) -> Callable[[], Any]:
    import torch

    flat, x = _gradient(arrays), arrays[1]
    rows = torch.func.jacrev(lambda z: flat(z)[456 : 456 + ROWS], chunk_size=_CHUNK)
    return lambda: float(rows(x).double().square().sum())
