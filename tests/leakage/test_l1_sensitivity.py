"""Measured ℓ1-sensitivity: against every pair by hand, with little memory, and below the derived bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from leakcore import leakage
from leakcore.bounds import laplace


def _mlp() -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return model


def _data(n: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator, dtype=torch.float64), torch.arange(n) % 3


def _by_hand(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = []
    for i in range(len(x)):
        loss = torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        rows.append(torch.cat([g.ravel() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


@pytest.mark.parametrize("memory", [1, 4 * 38 * 8 * 4, 2**28])
def test_the_worst_pair_of_all(memory: int) -> None:
    """Blocks of one, of four, and all at once: every pair is covered whatever fits."""
    model, (x, y) = _mlp(), _data()
    g = _by_hand(model, x, y)
    distances = torch.cdist(g, g, p=1)
    measured = leakage.l1_sensitivity(model, x, y, adjacency="replace", memory=memory)
    assert measured.value == pytest.approx(float(distances.max()), rel=1e-12)
    assert float(distances[measured.worst]) == pytest.approx(measured.value, rel=1e-12)
    assert (measured.kind, measured.adjacency, measured.num_parameters) == ("lower", "replace", g.shape[1])
    np.testing.assert_allclose(measured.norms, g.abs().sum(1), rtol=1e-12)
    assert measured.gradient_norm == pytest.approx(float(g.sum(0).norm()), rel=1e-12)
    sizes = [p.numel() for p in model.parameters()]
    for part, layer in zip(g.split(sizes, dim=1), measured.layers.values(), strict=True):
        assert layer == pytest.approx(float(torch.cdist(part, part, p=1).max()), rel=1e-12)


def test_add_remove_and_means() -> None:
    model, (x, y) = _mlp(), _data()
    norms = _by_hand(model, x, y).abs().sum(1)
    measured = leakage.l1_sensitivity(model, x, y)
    assert measured.adjacency == "add-remove"
    assert measured.value == pytest.approx(float(norms.max()), rel=1e-12)
    assert measured.worst == (int(norms.argmax()),)
    mean = leakage.l1_sensitivity(model, x, y, adjacency="add-remove", batch_size=4)
    assert mean.value == pytest.approx(measured.value / 4, rel=1e-12)
    assert mean.signal_to_noise(1.0) == pytest.approx(measured.signal_to_noise(1.0), rel=1e-12)
    assert measured.signal_to_noise(2.0) == pytest.approx(2 * measured.signal_to_noise(1.0), rel=1e-12)


class _TwoLayers(torch.nn.Module):
    def __init__(self, w: np.ndarray, a: np.ndarray) -> None:
        super().__init__()
        self.hidden = torch.nn.Parameter(torch.from_numpy(w))
        self.output = torch.nn.Parameter(torch.from_numpy(a))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.hidden.T) @ self.output


def _square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs - targets) ** 2).sum()


@pytest.mark.parametrize(("m", "d"), [(10, 3), (200, 3), (20, 60)])
def test_the_derived_bound_is_above_and_not_far_above(m: int, d: int) -> None:
    rng = np.random.default_rng(m + d)
    w, a = rng.standard_normal((m, d)), np.full(m, 1 / m)
    # Directions of large and small output: the likely worst, and random ones.
    x = np.concatenate([rng.standard_normal((30, d)), np.linalg.svd(w)[2][:3], [w.sum(axis=0)]])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    both = torch.from_numpy(np.concatenate([x, x, -x, -x]))
    y = torch.from_numpy(np.tile(np.repeat([1.0, -1.0], len(x)), 2))
    measured = leakage.l1_sensitivity(_TwoLayers(w, a), both, y, loss=_square, adjacency="replace")
    bound = laplace.two_layer(w, a, adjacency="replace")
    assert 0.05 * bound.value < measured.value <= bound.value
    assert measured.layers["output"] <= bound.output_part
    assert measured.layers["hidden"] <= bound.hidden_part


def test_it_does_not_justify_noise() -> None:
    measured = leakage.l1_sensitivity(_mlp(), *_data())
    with pytest.raises(ValueError, match="kind 'lower'"):
        laplace.noise_scale(measured, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"inputs": torch.zeros(1, 4).double(), "targets": torch.zeros(1).long(), "adjacency": "replace"},
            "at least 2",
        ),
        ({"inputs": torch.zeros(9, 4)}, r"`inputs` must be torch.float64 on cpu,.*, got torch.float32 on cpu"),
        ({"targets": torch.zeros(2).long()}, r"`targets` must hold one target for each of 9 inputs, got shape \(2,\)"),
        ({"adjacency": "swap"}, "`adjacency` must be 'add-remove' or 'replace', got 'swap'"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"memory": 0}, "`memory` must be at least 1, got 0"),
        ({"model": torch.nn.Sequential(torch.nn.Dropout(), _mlp())}, r"layer 0 \(Dropout\)"),
        (
            {"inputs": torch.full((9, 4), float("inf")).double()},
            r"`inputs\[0\]` must be finite, got a NaN or an infinity",
        ),
        (
            {"loss": lambda outputs, targets: outputs.sum() * math.inf},
            r"`inputs\[0\]` must have a finite gradient, got norm nan",
        ),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    x, y = _data()
    with pytest.raises(ValueError, match=message):
        leakage.l1_sensitivity(**{"model": _mlp(), "loss": None, "inputs": x, "targets": y, **change})
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module, got int"):
        leakage.l1_sensitivity(3, x, y)  # type: ignore[arg-type]
