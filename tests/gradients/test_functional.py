"""Models evaluated at other parameters: tied weights and modules under two names, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import leakcore
from leakcore.attacks import inversion, labels
from leakcore.gradients.functional import evaluate
from leakcore.gradients.layers import layer_gradients
from leakcore.leakage import sensitivity


class _Shared(nn.Module):
    """One module under two names, one weight in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.head = self.last
        self.other.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(torch.tanh(self.other(torch.tanh(self.first(x)))))
        return output


def _made() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return _Shared(), torch.randn(5, 4), torch.arange(5) % 3


def test_other_values_go_wherever_the_tensor_stands_and_come_back_out() -> None:
    model, x, _ = _made()
    before = {name: (p, p.clone()) for name, p in model.named_parameters()}
    expected = _made()[0]
    with torch.no_grad():
        for p in expected.parameters():
            p.mul_(2)
    result = evaluate(model, {name: 2 * p for name, (p, _) in before.items()}, x)
    torch.testing.assert_close(result, expected(x))
    for name, p in model.named_parameters():
        assert p is before[name][0]
        assert torch.equal(p, before[name][1])
    assert model.head.weight is model.last.weight is before["last.weight"][0]
    assert model.other.weight is model.first.weight


@pytest.mark.parametrize(
    "attack",
    [
        lambda m, x, y, g: labels.general(labels.KnownModel(m, x), g, noise=labels.Noise(0)),
        lambda m, x, y, g: labels.last_layer(labels.KnownModel(m, x), g["last.weight"], noise=labels.Noise(0)),
        lambda m, x, y, g: inversion.gradient(m, x, y),
        lambda m, x, y, g: inversion.invert(
            m,
            inversion.ReleasedGradient([*g.values()], batch_size=5),
            (4,),
            optimizer=inversion.LBFGS(iterations=3, restarts=1),
        ),
        lambda m, x, y, g: layer_gradients(m, x, y),
        lambda m, x, y, g: sensitivity(m, x, y),
    ],
)
def test_a_module_under_two_names_is_the_callers_afterwards(attack: Callable[..., Any]) -> None:
    model, x, y = _made()
    before = dict(model.named_parameters())
    functional.cross_entropy(model(x), y).backward()
    outputs = model(x).detach()
    attack(model, x, y, {name: p.grad.clone() for name, p in before.items() if p.grad is not None})
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is p for name, p in before.items())
    assert torch.equal(model(x), outputs)


def test_a_module_under_two_names_trains_on_while_it_is_recorded() -> None:
    pytest.importorskip("opacus")
    from opacus import GradSampleModule

    from leakcore.dpsgd import FusedDPOptimizer

    values = []
    for watched in (False, True):
        model, x, y = _made()
        module = GradSampleModule(model, strict=False)
        optimizer = FusedDPOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.5), module=module, noise_multiplier=0.0, max_grad_norm=1.0,
            expected_batch_size=5,
        )  # fmt: skip

        def loop(module: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
            for _ in range(3):
                optimizer.zero_grad()
                nn.CrossEntropyLoss()(module(x), y).backward()
                optimizer.step()

        if watched:
            with leakcore.record(optimizer, candidates=(x, y)) as recorder:
                loop(module, optimizer, x, y)
            np.testing.assert_array_equal(recorder.trace().times_seen, [3] * 5)
        else:
            loop(module, optimizer, x, y)
        values.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*values, strict=True))
