"""FusedDPOptimizer against Opacus's own: the same step for the same noise, the same behaviour around it."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from opacus.utils.batch_memory_manager import wrap_data_loader

from leakcore.dpsgd import FusedDPOptimizer, secure_normal
from leakcore.gradients import row_by_row
from tests.dpsgd.opacus_remarks import IGNORED

pytestmark = IGNORED


def _network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)
    ).to(dtype)


def _batch(rows: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 1, 8, 8, generator=generator, dtype=dtype), torch.arange(rows) % 3


def _made(kind: type, module: nn.Module, **settings: Any) -> Any:
    arguments: dict[str, Any] = {"noise_multiplier": 0.0, "max_grad_norm": 0.5, "expected_batch_size": 8, **settings}
    return kind(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), **arguments)


def _train(optimizer: Any, module: nn.Module, dtype: torch.dtype, steps: int = 4) -> list[np.ndarray]:
    for step in range(steps):
        optimizer.zero_grad()
        x, y = _batch(5 + step, dtype, step)
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return [p.detach().numpy().copy() for p in module.parameters()]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_without_noise_training_is_opacus(dtype: torch.dtype, close: float) -> None:
    values = []
    for kind in (DPOptimizer, FusedDPOptimizer):
        module = GradSampleModule(copy.deepcopy(_network(dtype)))
        values.append(_train(_made(kind, module), module, dtype))
    assert all(np.abs(a - b).max() < close for a, b in zip(*values, strict=True))


def test_the_same_noise_gives_the_same_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opacus's normals put in the place of ours."""
    from opacus.optimizers import optimizer as opacus_optimizer

    generator = torch.Generator().manual_seed(3)
    drawn: list[torch.Tensor] = []
    plain = opacus_optimizer._generate_noise

    def keep(*args: Any, **kwargs: Any) -> torch.Tensor:
        noise = plain(*args, **kwargs)
        drawn.append(noise / kwargs["std"])
        return noise

    monkeypatch.setattr(opacus_optimizer, "_generate_noise", keep)
    released = []
    for kind in (DPOptimizer, FusedDPOptimizer):
        module = GradSampleModule(copy.deepcopy(_network(torch.float64)))
        optimizer = _made(kind, module, noise_multiplier=1.3, generator=generator)
        if kind is FusedDPOptimizer:
            monkeypatch.setattr(optimizer, "_normals", lambda: lambda index, p: drawn[index].clone())
        x, y = _batch(7, torch.float64)
        functional.cross_entropy(module(x), y).backward()
        optimizer.pre_step()
        released.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert float((released[0] - released[1]).abs().max()) < 1e-14
    assert float(released[0].abs().max()) > 0.1


def test_skipped_steps_accumulate_and_add_noise_once() -> None:
    whole, parts = (GradSampleModule(copy.deepcopy(_network(torch.float64)), loss_reduction="sum") for _ in range(2))
    x, y = _batch(9, torch.float64)
    one, two = (
        _made(
            FusedDPOptimizer, m, loss_reduction="sum", noise_multiplier=1.0, generator=torch.Generator().manual_seed(5)
        )
        for m in (whole, parts)
    )
    functional.cross_entropy(whole(x), y, reduction="sum").backward()
    one.step()
    for rows in (slice(0, 4), slice(4, 9)):
        two.signal_skip_step(do_skip=rows.stop != 9)
        two.zero_grad()
        functional.cross_entropy(parts(x[rows]), y[rows], reduction="sum").backward()
        two.step()
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_several_backward_passes_of_one_step_count_as_one_batch() -> None:
    module = GradSampleModule(_network(torch.float64))
    optimizer = _made(FusedDPOptimizer, module)
    reference = GradSampleModule(copy.deepcopy(_network(torch.float64)))
    expected = _made(DPOptimizer, reference)
    for m, o in ((module, optimizer), (reference, expected)):
        for seed in (0, 1):
            x, y = _batch(4, torch.float64, seed)
            functional.cross_entropy(m(x), y).backward()
        assert o.accumulated_iterations == 2
        o.pre_step()
    for p, q in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-12)


def test_gradients_used_twice_are_refused_as_opacus_does() -> None:
    module = GradSampleModule(_network())
    optimizer = _made(FusedDPOptimizer, module)
    x, y = _batch(4, torch.float32)
    functional.cross_entropy(module(x), y).backward()
    optimizer.step()
    with pytest.raises(ValueError, match="haven't been cleared"):
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="not initialized"):
        optimizer.step()


def test_an_empty_poisson_batch_is_noise_alone() -> None:
    module = GradSampleModule(_network())
    optimizer = _made(FusedDPOptimizer, module, noise_multiplier=2.0)
    for p in module.parameters():
        p.grad_sample = torch.zeros((0, *p.shape))
    optimizer.pre_step()
    values = torch.cat([p.grad.flatten() for p in module.parameters()]).double() * 8
    assert stats.kstest(values.numpy(), "norm", args=(0, 2.0 * 0.5)).pvalue > 0.001


def test_noise_follows_the_generator_and_differs_between_steps_and_parameters() -> None:
    def one(seed: int) -> list[torch.Tensor]:
        module = GradSampleModule(_network())
        optimizer = _made(FusedDPOptimizer, module, noise_multiplier=1.0, generator=torch.Generator().manual_seed(seed))
        return [
            draw(i, p)
            for draw in (optimizer._normals(), optimizer._normals())
            for i, p in enumerate(module.parameters())
        ]

    first, again, other = one(1), one(1), one(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    half = len(first) // 2
    assert not torch.equal(first[0], first[half])
    assert not torch.equal(first[0].flatten()[:3], first[1].flatten()[:3])


def test_secure_normals_are_normal_and_never_repeat() -> None:
    """p > 1e-4 each; operating-system entropy has no seed, so this fails once in 3,000 runs."""
    values = secure_normal(200_001)
    assert values.shape == (200_001,)
    assert stats.kstest(values, "norm").pvalue > 1e-4
    assert abs(stats.pearsonr(values[:-1], values[1:]).statistic) < 4 / np.sqrt(200_000)
    assert abs((values**4).mean() - 3) < 4 * np.sqrt(96 / 200_000)
    assert not np.intersect1d(values, secure_normal(1000)).size


def test_secure_mode_does_not_listen_to_the_generator() -> None:
    module = GradSampleModule(_network())
    optimizer = _made(
        FusedDPOptimizer, module, noise_multiplier=1.0, secure_mode=True, generator=torch.Generator().manual_seed(0)
    )
    p = next(module.parameters())
    first, second = (optimizer._normals()(0, p) for _ in range(2))
    assert not torch.equal(first, second)
    assert first.dtype == torch.float32


@pytest.mark.parametrize("manager", [False, True])
def test_under_the_privacy_engine_it_trains_and_is_accounted_the_same(manager: bool) -> None:
    """make_private, replaced; with Opacus's BatchMemoryManager splitting batches into physical ones of 4."""
    x, y = _batch(64, torch.float32)
    spent = []
    for fused in (False, True):
        module = _network()
        engine = PrivacyEngine(accountant="rdp")
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
        module, optimizer, loader = engine.make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=loader,
            noise_multiplier=1.0, max_grad_norm=1.0, noise_generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        if fused:
            optimizer = FusedDPOptimizer.replace(optimizer)
        if manager:
            loader = wrap_data_loader(data_loader=loader, max_batch_size=4, optimizer=optimizer)
        before = [p.detach().clone() for p in module.parameters()]
        for inputs, targets in loader:
            optimizer.zero_grad()
            functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()
        assert all(not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
        spent.append(engine.accountant.history)
    assert spent[0] == spent[1]


def test_mixed_precision_gradients_are_read_together() -> None:
    module = GradSampleModule(_network())
    optimizer = _made(FusedDPOptimizer, module, loss_reduction="sum")
    for i, p in enumerate(module.parameters()):
        p.grad_sample = torch.ones((2, *p.shape), dtype=torch.bfloat16 if i % 2 else torch.float32)
    optimizer.pre_step()
    total = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in module.parameters()))
    assert float(total) == pytest.approx(2 * 0.5, rel=1e-5)
    assert all(p.grad.dtype == torch.float32 for p in module.parameters())


def test_non_finite_gradients_are_named() -> None:
    module = GradSampleModule(_network())
    optimizer = _made(FusedDPOptimizer, module)
    for p in module.parameters():
        p.grad_sample = torch.zeros((3, *p.shape))
    next(module.parameters()).grad_sample[1] = float("nan")
    with pytest.raises(ValueError, match="row 1"):
        optimizer.step()


def test_only_flat_clipping_can_be_replaced() -> None:
    module = GradSampleModule(_network())
    per_layer = DPPerLayerOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=[1.0] * 6,
        expected_batch_size=4,
    )  # fmt: skip
    with pytest.raises(TypeError, match=r"`optimizer` must be Opacus's DPOptimizer.*, got DPPerLayerOptimizer"):
        FusedDPOptimizer.replace(per_layer)


@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_noise_is_never_left_out_in_silence(name: str, value: float) -> None:
    module = _network()
    with pytest.raises(ValueError, match=f"`{name}` must be at least 0, got {value}"):
        _made(FusedDPOptimizer, module, **{name: value})
    optimizer = _made(FusedDPOptimizer, module, noise_multiplier=1.0)
    x, y = _batch(5, torch.float32)
    functional.cross_entropy(module(x), y).backward()
    setattr(optimizer, name, value)  # as a schedule would
    with pytest.raises(ValueError, match=f"`{name}` must be at least 0, got {value}"):
        optimizer.step()


def _listening() -> int:
    """How many listen to backward passes; one that is gone counts until the next pass."""
    torch.ones(1, requires_grad=True).sum().backward()
    return len(row_by_row._listeners)


def _hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


def test_an_optimizer_that_is_gone_leaves_nothing_on_a_model_that_stays() -> None:
    """After three steps its rows were to be compared in the fourth, which never came."""
    gc.collect()
    plain = _network()
    before, hooks = _listening(), _hooks(plain)
    module = GradSampleModule(plain)
    optimizer = _made(FusedDPOptimizer, module)
    _train(optimizer, module, torch.float32, steps=3)
    assert _listening() == before + 1
    assert _hooks(plain) > hooks
    module.remove_hooks()
    del optimizer, module
    gc.collect()
    assert _listening() == before
    assert _hooks(plain) == hooks


def test_a_model_and_an_optimizer_that_are_gone_leave_nothing() -> None:
    gc.collect()
    before = _listening()
    module = GradSampleModule(_network())
    optimizer = _made(FusedDPOptimizer, module)
    _train(optimizer, module, torch.float32, steps=1)
    assert _listening() == before + 1
    known = weakref.ref(module)
    del optimizer, module
    gc.collect()
    assert known() is None
    assert _listening() == before
