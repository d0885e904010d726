"""Sensitivity: a full autograd Jacobian, a closed form, Hutchinson, memory, refusals; ℓ1 against every pair by hand."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import leakage, models
from leakcore.bounds import laplace


def _jacobians(model, loss, x, y):
    """layer -> (numbers of parameters, numbers of inputs) by plain autograd, one output at a time."""
    out = {}
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own:

            def gradient(z, own=own):
                value = loss(model(z), y)
                parts = torch.autograd.grad(value, own, create_graph=True)
                return torch.cat([p.reshape(-1) for p in parts])

            out[name] = torch.autograd.functional.jacobian(gradient, x).reshape(-1, x.numel())
    return out


def _small():
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3)
    ).double()


@pytest.mark.full
@pytest.mark.parametrize("memory", [1, 2**28])
def test_norms_against_the_jacobian(memory):
    model, x, y = _small(), torch.rand(3, 2, 6, 6, dtype=torch.float64), torch.tensor([0, 2, 1])
    measured = leakage.sensitivity(model, x, y, budget=leakage.JacobianBudget(memory=memory))
    assert measured.layers == ("0", "4", "6")
    for i in range(3):
        full = _jacobians(model, nn.functional.cross_entropy, x[i : i + 1], y[i : i + 1])
        for at, jacobian in enumerate(full.values()):
            size = jacobian.abs()
            wanted = {"F": jacobian.square().sum().sqrt(), "1": size.sum(0).max(), "inf": size.sum(1).max()}
            for norm, value in wanted.items():
                assert measured.per_sample[norm][i, at] == pytest.approx(float(value), rel=1e-8, abs=1e-12)
    np.testing.assert_allclose(measured.value, measured.per_sample["F"].mean(0))
    np.testing.assert_allclose(
        measured.standard_errors["1"], measured.per_sample["1"].std(0, ddof=1) / math.sqrt(3), rtol=1e-12
    )
    assert (measured.parameters == [57, 65, 18]).all()


def test_linear_network():
    # ℓ = ½(w·x + b − y)²: g = (r·x, r), r = w·x + b − y, so ∂g/∂x = (r·I + x wᵀ, wᵀ).
    model = nn.Linear(4, 1).double()
    x, y = torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=torch.float64), torch.tensor([[0.7]], dtype=torch.float64)
    measured = leakage.sensitivity(model, x, y, loss=lambda out, target: 0.5 * (out - target).square().sum())
    w = model.weight.detach()
    r = model(x) - y
    jacobian = torch.cat([r.detach() * torch.eye(4) + x.T @ w, w])
    assert measured.layers == ("Linear",)
    assert measured.means["F"][0] == pytest.approx(float(jacobian.norm()), rel=1e-12)
    assert measured.means["1"][0] == pytest.approx(float(jacobian.abs().sum(0).max()), rel=1e-12)
    assert measured.means["inf"][0] == pytest.approx(float(jacobian.abs().sum(1).max()), rel=1e-12)
    assert np.isnan(measured.standard_errors["F"]).all()
    np.testing.assert_allclose(measured.per_parameter(), measured.means["F"] / math.sqrt(5))


def test_hutchinson():
    # 40 estimates of one sample's F-norm, each of 30 directions. Their mean errs by their spread over √40: within four
    # of those for each of three layers (p ≈ 2e-4); and the stated error is that spread within a factor of 1.6.
    model, x, y = _small(), torch.rand(1, 2, 6, 6, dtype=torch.float64), torch.tensor([1])
    exact = leakage.sensitivity(model, x, y).value
    runs = [leakage.sensitivity(model, x, y, budget=leakage.JacobianBudget(probes=30), seed=s) for s in range(40)]
    values = np.stack([r.value for r in runs])
    spread = values.std(axis=0, ddof=1)
    assert (np.abs(values.mean(axis=0) - exact) < 4 * spread / math.sqrt(40) + 0.01 * exact).all()
    stated = np.mean([r.standard_errors["F"] for r in runs], axis=0)
    assert ((spread / 1.6 < stated) & (stated < 1.6 * spread)).all()
    assert runs[0].probes == 30
    assert (
        runs[0].value.tolist()
        == leakage.sensitivity(model, x, y, budget=leakage.JacobianBudget(probes=30), seed=0).value.tolist()
    )


def test_frozen_and_shared_parameters():
    model = _small()
    model[0].requires_grad_(False)
    x, y = torch.rand(1, 2, 6, 6, dtype=torch.float64), torch.tensor([1])
    assert leakage.sensitivity(model, x, y).layers == ("4", "6")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    leakage.sensitivity(model, x, y, norms=("F",))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", ["lenet", "alexnet", "vgg9"])
def test_the_papers_networks(name):
    torch.manual_seed(0)
    model = getattr(models, name)(7)
    shape = {"lenet": 5, "alexnet": 8, "vgg9": 9}[name]
    measured = leakage.sensitivity(
        model, torch.rand(1, 3, 32, 32), torch.tensor([3]), budget=leakage.JacobianBudget(probes=2), seed=0
    )
    assert len(measured.layers) == shape
    assert (measured.value > 0).all()


def test_text_network():
    model = models.textclf(2, shape=(5, 40))
    measured = leakage.sensitivity(model, torch.rand(2, 5, 40), torch.tensor([0, 1]), norms="F")
    assert len(measured.layers) == 4


def test_progress():
    calls = []
    model, x, y = _small(), torch.rand(2, 2, 6, 6, dtype=torch.float64), torch.tensor([0, 1])
    leakage.sensitivity(model, x, y, progress=lambda *a: calls.append(a))
    assert calls == [(1, 2), (2, 2)]


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g


class _Wrapper(nn.Module):
    def forward(self, x):
        return _Opaque.apply(x)


def test_not_differentiable():
    x, y = torch.rand(1, 4), torch.tensor([1])
    with pytest.raises(ValueError, match=r"layer 1 \(BatchNorm1d\) mixes samples: call model.eval\(\)"):
        leakage.sensitivity(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), x, y)
    with pytest.raises(ValueError, match=r"layer 1 \(Dropout\) is random"):
        leakage.sensitivity(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), x, y)
    with pytest.raises(ValueError, match=r"layer 1 \(Linear\)"):
        leakage.sensitivity(nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2)), x, y)
    with pytest.raises(ValueError, match=r"`model` must be one that torch.func can differentiate, but"):
        leakage.sensitivity(nn.Sequential(nn.Linear(4, 3), _Wrapper()), x, y)


def test_bad_input():
    model, x, y = _small(), torch.rand(2, 2, 6, 6, dtype=torch.float64), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="`norms` must be 'F', '1' or 'inf', got '2'"):
        leakage.sensitivity(model, x, y, norms=("2",))
    with pytest.raises(ValueError, match="`norms` must be 'F' alone with probes"):
        leakage.sensitivity(model, x, y, norms=("1",), budget=leakage.JacobianBudget(probes=4), seed=0)
    with pytest.raises(ValueError, match="`seed` is required"):
        leakage.sensitivity(model, x, y, budget=leakage.JacobianBudget(probes=4))
    with pytest.raises(ValueError, match=r"`inputs` must be torch.float64 on cpu,.*, got torch.float32 on cpu"):
        leakage.sensitivity(model, x.float(), y)
    with pytest.raises(ValueError, match=r"`targets` must hold one target for each of 2 inputs, got shape \(1,\)"):
        leakage.sensitivity(model, x, y[:1])
    with pytest.raises(
        ValueError, match=r"`inputs` must be floating of shape.*, got torch.float64 of shape \(0, 2, 6, 6\)"
    ):
        leakage.sensitivity(model, x[:0], y[:0])
    with pytest.raises(ValueError, match="`model` must have parameters that require grad, or there is no gradient"):
        leakage.sensitivity(nn.ReLU(), x, y)
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module, got int"):
        leakage.sensitivity(3, x, y)
    for measure in (leakage.sensitivity, leakage.l1_sensitivity):
        with pytest.raises(ValueError, match=r"`targets\[1\]` must be a class of the model, in \[0, 2\], got 3"):
            measure(model, x, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"`seed` must be in \[0, 18446744073709551615\], got -1"):
        leakage.sensitivity(model, x, y, budget=leakage.JacobianBudget(probes=4), seed=-1)
    with pytest.raises(TypeError, match="`progress` must be callable or None, got 1"):
        leakage.sensitivity(model, x, y, progress=1)


def test_one_output():
    """Cross-entropy of one class would be 0, and its gradient, whatever the model."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    x, y = torch.rand(3, 4, dtype=torch.float64), torch.tensor([0, 1, 1])

    def logistic(out, target):
        return nn.functional.binary_cross_entropy_with_logits(out[:, 0], target.to(out.dtype))

    for measure in (leakage.sensitivity, leakage.l1_sensitivity):
        np.testing.assert_allclose(measure(model, x, y).value, measure(model, x, y, loss=logistic).value)
        assert np.all(np.asarray(measure(model, x, y).value) > 0)
        with pytest.raises(ValueError, match=r"`targets\[0\]` must be a class of the model, in \[0, 1\], got 2"):
            measure(model, x, y + 2)


def test_running_statistics():
    model = nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), nn.Linear(4, 3)
    )
    x, y = torch.rand(3, 4), torch.tensor([0, 1, 2])
    before = model[1].running_mean.clone()
    with pytest.raises(ValueError, match=r"layer 1 \(InstanceNorm1d\) changes its running statistics: call model.eval"):
        leakage.sensitivity(model, x, y)
    leakage.sensitivity(model.eval(), x, y)
    assert torch.equal(model[1].running_mean, before)


def test_integer_dtypes_of_classes():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3).double(), torch.rand(3, 4, dtype=torch.float64)
    wanted = leakage.sensitivity(model, x, torch.tensor([0, 1, 2]))
    for dtype in (torch.uint8, torch.int32):
        measured = leakage.sensitivity(model, x, torch.tensor([0, 1, 2], dtype=dtype))
        np.testing.assert_array_equal(measured.value, wanted.value)
        assert leakage.l1_sensitivity(model, x, torch.tensor([0, 1, 2], dtype=dtype))


_SCRIPT = """
import sys
from pathlib import Path
import torch
from leakcore import leakage, models

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))

kind, budget, probes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
model, x, y = getattr(models, kind)(10), torch.rand(1, 3, 32, 32), torch.tensor([3])
once = leakage.JacobianBudget(probes=2, memory=1)
leakage.sensitivity(model, x, y, budget=once, seed=0)  # what the libraries load at first use
Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
base = status("VmRSS")
leakage.sensitivity(model, x, y, budget=leakage.JacobianBudget(probes=probes, memory=budget), seed=0)
print(status("VmHWM") - base)
"""


def _rise(kind: str, budget: int, probes: int) -> int:
    # The chunk's size does not depend on what is made of its columns, so directions stand for them here.
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, kind, str(budget), str(probes)],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the high-water mark cannot be reset")
@pytest.mark.parametrize(
    ("kind", "mebibytes"), [("lenet", 64), *(pytest.param("vgg9", m, marks=pytest.mark.slow) for m in (64, 256))]
)
def test_memory_budget(kind: str, mebibytes: int) -> None:
    budget = mebibytes * 2**20
    assert _rise(kind, budget, 80) <= budget
    # And it is used: a budget that only one column could fill would make the work slow.
    assert _rise(kind, 4 * budget, 80) > budget / 4


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
def test_worst_pair(memory: int) -> None:
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
def test_derived_bound(m: int, d: int) -> None:
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
def test_bad_input_of_l1(change: dict[str, Any], message: str) -> None:
    x, y = _data()
    with pytest.raises(ValueError, match=message):
        leakage.l1_sensitivity(**{"model": _mlp(), "loss": None, "inputs": x, "targets": y, **change})
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module, got int"):
        leakage.l1_sensitivity(3, x, y)  # type: ignore[arg-type]
