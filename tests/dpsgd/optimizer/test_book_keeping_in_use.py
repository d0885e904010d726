"""Book-keeping around a step: passes that are repeated or forgotten, hooks that come and go, states that travel."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
from opacus import GradSampleModule, PrivacyEngine
from opacus.grad_sample import GradSampleHooks, GradSampleModuleFastGradientClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager

import leakcore
from leakcore.dpsgd import FusedDPOptimizer
from leakcore.dpsgd.fused import activation_hooks
from tests.dpsgd.opacus_models import Scale, Twice, made
from tests.dpsgd.opacus_remarks import IGNORED

pytestmark = IGNORED


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
