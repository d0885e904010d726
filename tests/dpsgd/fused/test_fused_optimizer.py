"""FusedDPOptimizer against Opacus's own: the same step for the same noise, the same behaviour around it."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
from opacus import GradSampleModule, PrivacyEngine
from opacus.grad_sample import GradSampleHooks, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager

import leakcore
from leakcore.dpsgd import FusedDPOptimizer, secure_normal
from leakcore.dpsgd.fused import activation_hooks
from leakcore.dpsgd.fused.fused_optimizer import DistributedFusedDPOptimizer
from leakcore.gradients import row_by_row
from tests.dpsgd.opacus_models import Scale, Twice, made
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


@pytest.mark.parametrize("processes", [False, True])
def test_an_interrupted_part_voids_its_batch(processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while rows are clipped: a loop that goes on would add some of them twice."""
    kind = DistributedFusedDPOptimizer if processes else FusedDPOptimizer
    module = GradSampleModule(_network(torch.float64), loss_reduction="sum")
    if processes:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        optimizer = _made(kind, module, loss_reduction="sum")
    finally:
        if processes:
            torch.distributed.destroy_process_group()
    x, y = _batch(6, torch.float64)

    def step(rows: slice, *, last: bool) -> None:
        optimizer.signal_skip_step(not last)
        optimizer.zero_grad()
        functional.cross_entropy(module(x[rows]), y[rows], reduction="sum").backward()
        optimizer.pre_step()

    def interrupted(self: Any, rows: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    step(slice(0, 2), last=False)
    with monkeypatch.context() as patch:
        patch.setattr(activation_hooks.LazyRowGradients, "weighted_sum", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(slice(2, 4), last=False)
    with pytest.raises(ValueError, match="one was refused: nothing of it is released"):
        step(slice(2, 4), last=True)
    step(slice(4, 6), last=True)
    next_batch = [p.grad.clone() for p in module.parameters()]
    step(slice(4, 6), last=True)
    for a, p in zip(next_batch, module.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=0, atol=0)


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


@pytest.mark.full
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


@pytest.mark.full
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


def test_activations_changed_in_place() -> None:
    """After a known layer they may be, where Opacus's hooks refuse; what a layer was given may not."""
    x, y = torch.randn(4, 6), torch.arange(4) % 3
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    values = []
    for inplace in (False, True):
        module = GradSampleModule(copy.deepcopy(plain))
        module._module[1].inplace = inplace
        optimizer = made(FusedDPOptimizer, module)
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        values.append([p.grad for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*values, strict=True))
    layer = GradSampleModule(nn.Linear(6, 3))
    optimizer = made(FusedDPOptimizer, layer)
    changed = x.clone()
    loss = functional.cross_entropy(layer(changed), y)
    changed.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_a_second_backward_through_one_forward_is_refused() -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = made(FusedDPOptimizer, module)
    loss = functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3)
    loss.backward(retain_graph=True)
    with pytest.raises(ValueError, match="second backward pass"):
        loss.backward()
    optimizer.step()


def test_a_forward_pass_that_is_not_followed_by_a_backward_is_forgotten() -> None:
    module = GradSampleModule(Twice())
    optimizer = made(FusedDPOptimizer, module)
    for _ in range(3):
        module(torch.randn(4, 6))
    gc.collect()
    functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3).backward()
    assert optimizer.accumulated_iterations == 1
    optimizer.step()


def test_a_batch_whose_backward_pass_failed_is_not_in_the_next_step() -> None:
    """A layer is used twice, and one use has arrived when the error comes; the loop catches it and goes on."""
    generator = torch.Generator().manual_seed(0)
    failed, x = torch.randn(2, 4, 6, generator=generator)
    y = torch.arange(4) % 3
    values = []
    for fails in (False, True):
        torch.manual_seed(0)
        first, second = nn.Linear(6, 6), nn.Linear(6, 3)
        module = GradSampleModule(nn.Sequential(first, nn.Tanh(), first, second), strict=False)
        optimizer = made(FusedDPOptimizer, module)
        if fails:

            def fail(*_: Any) -> None:
                raise MemoryError("out of memory")

            handle = module._module[1].register_full_backward_hook(fail)
            with pytest.raises(MemoryError):
                functional.cross_entropy(module(failed), y).backward()
            handle.remove()
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        values.append([p.grad for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*values, strict=True))


def test_rows_of_a_step_are_let_go_and_may_not_be_used_again() -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = made(FusedDPOptimizer, module)
    functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3).backward()
    optimizer.step()
    with pytest.raises(ValueError, match="no longer exist"):
        _ = optimizer.grad_samples
    with pytest.raises(ValueError, match="haven't been cleared"):
        optimizer.step()
    module.zero_grad()
    assert all(p.grad_sample is None for p in module.parameters())


def test_poisson_sampling_forbids_a_second_batch_as_opacus_does() -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    module.forbid_grad_accumulation()
    made(FusedDPOptimizer, module, module=module)
    x, y = torch.randn(4, 6), torch.arange(4) % 3
    functional.cross_entropy(module(x), y).backward()
    with pytest.raises(ValueError, match="not compatible with grad accumulation"):
        functional.cross_entropy(module(x), y).backward()


def test_evaluation_and_disabled_hooks_leave_layers_alone() -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    made(FusedDPOptimizer, module, module=module)
    x, y = torch.randn(4, 6), torch.arange(4) % 3
    module.eval()
    functional.cross_entropy(module(x), y).backward()
    assert module._module.weight.grad_sample is None
    assert module._module.weight.grad is not None
    module.train()
    module.disable_hooks()
    functional.cross_entropy(module(x), y).backward()
    assert module._module.weight.grad_sample is None


def test_opacus_takes_its_hooks_off_and_ours_with_them() -> None:
    plain = nn.Sequential(nn.Linear(6, 5), Scale(5), nn.Linear(5, 3))
    module = GradSampleModule(plain)
    assert activation_hooks.attach(module, list(plain.parameters())) == 2
    assert activation_hooks.attach(module, list(plain.parameters())) == 2
    back = module.to_standard_module()
    assert back is plain
    assert all("forward" not in m.__dict__ and not m._forward_hooks for m in plain.modules())
    plain(torch.randn(2, 6)).sum().backward()
    assert all(p.grad is not None for p in plain.parameters())


def test_layers_of_another_optimizer_keep_opacus_hooks() -> None:
    module = GradSampleModule(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)))
    first, second = module._module
    ours = FusedDPOptimizer(
        torch.optim.SGD(first.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=4
    )
    functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3).backward()
    assert isinstance(second.weight.grad_sample, torch.Tensor)
    assert isinstance(first.weight.grad_sample, list)
    ours.step()


def test_hooks_without_a_wrapper() -> None:
    plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    hooks = GradSampleHooks(plain)
    for module in (None, hooks, plain):
        optimizer = made(FusedDPOptimizer, plain, module=module)
        functional.cross_entropy(plain(torch.randn(4, 6)), torch.arange(4) % 3).backward()
        assert plain[0].weight.grad is None or not plain[0].weight.grad.any()
        optimizer.step()
        optimizer.zero_grad()


def test_modules_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(TypeError, match=r"`module` must have the hooks of Opacus's.*, got a Sequential without"):
        made(FusedDPOptimizer, plain := nn.Sequential(nn.Linear(6, 3)), module=plain)
    ghost = GradSampleModuleFastGradientClipping(nn.Linear(6, 3))
    with pytest.raises(TypeError, match="ghost clipping"):
        made(FusedDPOptimizer, ghost, module=ghost)
    with pytest.raises(TypeError, match=r"`max_grad_norm` must be one norm, since.*, got a list"):
        made(FusedDPOptimizer, nn.Linear(6, 3), max_grad_norm=[1.0, 1.0])


def test_states_travel_with_the_optimizer() -> None:
    x, y = torch.randn(4, 6), torch.arange(4) % 3

    def trained(state: dict[str, Any] | None, weights: dict[str, Any] | None, steps: int) -> tuple[Any, Any]:
        torch.manual_seed(0)
        module = GradSampleModule(nn.Linear(6, 3))
        optimizer = FusedDPOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), noise_multiplier=0.0, max_grad_norm=0.1,
            expected_batch_size=4,
        )  # fmt: skip
        if state and weights:
            optimizer.load_state_dict(state)
            module.load_state_dict(weights)
        for _ in range(steps):
            optimizer.zero_grad()
            functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        return copy.deepcopy(optimizer.state_dict()), copy.deepcopy(module.state_dict())

    whole, half = trained(None, None, 4), trained(None, None, 2)
    rest = trained(*half, 2)
    for name, value in whole[1].items():
        torch.testing.assert_close(rest[1][name], value, rtol=0, atol=0)


@pytest.mark.parametrize("manager", [False, True])
def test_two_lines_under_the_privacy_engine(manager: bool) -> None:
    """make_private, replaced, recorded: the same ε and with no noise the same model as Opacus's, batch by batch."""
    x, y = torch.randn(64, 6, dtype=torch.float64), torch.arange(64) % 3
    models, spent = [], []
    for fused in (False, True):
        torch.manual_seed(0)
        module: Any = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()
        engine = PrivacyEngine(accountant="rdp")
        loader: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
        module, optimizer, loader = engine.make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=loader,
            noise_multiplier=1e-9, max_grad_norm=1.0,
        )  # fmt: skip
        if fused:
            optimizer = FusedDPOptimizer.replace(optimizer)
        torch.manual_seed(1)
        if manager:
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=5, optimizer=optimizer) as loader:
                _epochs(module, optimizer, loader)
        else:
            with leakcore.record(optimizer, candidates=(x[:8], y[:8]), criterion=functional.cross_entropy) as trace:
                _epochs(module, optimizer, loader)
            models.append(torch.from_numpy(trace.trace().membership_sum))
        models.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
        spent.append(engine.accountant.history)
    assert spent[0] == spent[1]
    half = len(models) // 2
    for a, b in zip(models[:half], models[half:], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def _epochs(module: Any, optimizer: Any, loader: Any) -> None:
    seed = torch.Generator().manual_seed(5)
    for inputs, targets in loader:
        optimizer.generator = seed  # noise from elsewhere than the sampler's generator
        optimizer.zero_grad()
        functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
