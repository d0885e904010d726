"""Steps without per-sample gradients beside Opacus's with them, over kinds of layers and ways of using them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
from opacus import GradSampleModule, PrivacyEngine
from opacus.grad_sample import GradSampleHooks, GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager

import leakcore
from leakcore.dpsgd import FusedDPOptimizer, _book_keeping, _row_gradients
from tests.dpsgd.opacus_remarks import IGNORED

pytestmark = [
    *IGNORED,
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"),
]

WORDS = 50


class _Text(nn.Module):
    """Words, a layer per word, a mean; `tied`: the last layer's weight is the table, as in language models."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.table, self.middle, self.norm = nn.Embedding(WORDS, 16), nn.Linear(16, 24), nn.LayerNorm(24)
        self.back, self.out = nn.Linear(24, 16), nn.Linear(16, WORDS, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.back(functional.relu(self.norm(self.middle(self.table(x)))))).mean(1)
        return found


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(torch.tanh(self.first(torch.tanh(self.first(x)))))
        return found


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cells, self.out = nn.Embedding(WORDS, 8), DPLSTM(8, 7, batch_first=True), nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.cells(self.table(x))[0][:, -1])
        return found


class _Block(nn.Module):
    """A transformer block. `late`: rows in the second dimension, and biases of the sequence."""

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late = late
        self.table = nn.Embedding(WORDS, 8)
        self.attention = DPMultiheadAttention(8, 2, batch_first=not late, add_bias_kv=late, add_zero_attn=late)
        self.norm, self.up, self.down, self.out = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x.T if self.late else x)
        h = self.norm(h + self.attention(h, h, h)[0])
        h = h + self.down(functional.gelu(self.up(h)))
        found: torch.Tensor = self.out(h).mean(0 if self.late else 1)
        return found


class _Scale(nn.Module):
    """A layer that nobody knows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def _frozen() -> nn.Module:
    made = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))
    made[0].weight.requires_grad = False
    made[2].requires_grad_(False)
    return made


def _shared_with_unknown() -> nn.Module:
    """Opacus's circular padding is left to Opacus, and so is another layer with its weight."""
    made = nn.Sequential(
        nn.Conv1d(3, 3, 3, padding=1, padding_mode="circular"), nn.Tanh(), nn.Conv1d(3, 3, 3, padding=1), nn.Tanh(),
        nn.Flatten(), nn.Linear(36, 4),
    )  # fmt: skip
    made[2].weight = made[0].weight
    return made


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding="same", groups=2, dilation=2),
        nn.InstanceNorm2d(16, affine=True), nn.ReLU(), nn.Conv2d(16, 64, 3), nn.Flatten(), nn.Linear(64 * 16, 5),
    )  # fmt: skip


def _dense(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randn(rows, *shape, dtype=torch.float64)


def _words(rows: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (rows, 9))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3, bias=False)), _dense(6)),
    "an unknown layer": (lambda: nn.Sequential(nn.Linear(6, 6), _Scale(6), nn.Linear(6, 3)), _dense(6)),
    "frozen parameters": (_frozen, _dense(6)),
    "linear over steps": (
        lambda: nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3), nn.Flatten(), nn.Linear(12, 3)),
        _dense(4, 30),
    ),
    "convolutions, group and instance norm": (_convolutions, _dense(3, 12, 12)),
    "Conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 8, 4, padding="same"), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)),
               _dense(3, 12)),
    "Conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5)),
               _dense(2, 6, 6, 6)),
    "RMSNorm": (lambda: nn.Sequential(nn.Linear(6, 9), nn.RMSNorm(9), nn.Linear(9, 3)), _dense(6)),
    "text": (_Text, _words),
    "tied weights": (lambda: _Text(tied=True), _words),
    "a layer used twice": (_Twice, _dense(6)),
    "a weight shared with an unknown layer": (_shared_with_unknown, _dense(3, 12)),
    "LSTM": (_Recurrent, _words),
    "transformer block": (_Block, _words),
    "transformer block, rows second": (lambda: _Block(late=True), _words),
}  # fmt: skip
LEFT_TO_OPACUS = {
    "an unknown layer": 1, "a weight shared with an unknown layer": 2, "transformer block, rows second": 2,
}  # fmt: skip


def _made(kind: type, network: Any, **settings: Any) -> Any:
    given: dict[str, Any] = {"noise_multiplier": 0.0, "max_grad_norm": 0.05, "expected_batch_size": 8, **settings}
    trained = [p for p in network.parameters() if p.requires_grad]
    return kind(torch.optim.SGD(trained, lr=0.1), **given)


def _releases(
    kind: type, module: Any, data: Callable[[int], torch.Tensor], reduction: str, norm: float
) -> torch.Tensor:
    optimizer = _made(kind, module, max_grad_norm=norm, loss_reduction=reduction)
    torch.manual_seed(1)
    found = []
    for rows in (5, 6, 1, 7):
        optimizer.zero_grad()
        outputs = module(data(rows))
        functional.cross_entropy(outputs, torch.arange(rows) % 3, reduction=reduction).backward()
        optimizer.pre_step()
        found += [p.grad.flatten().clone() for p in module.parameters() if p.requires_grad]
        optimizer.original_optimizer.step()
    return torch.cat(found)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", MODELS)
def test_four_steps_release_what_opacus_releases(name: str, reduction: str) -> None:
    """float64: the largest difference over the table is 2e-17 where the releases reach 0.04."""
    network, data = MODELS[name]
    torch.manual_seed(0)
    plain = network().double()
    for norm in (0.05, 1e3):
        releases = []
        for kind in (DPOptimizer, FusedDPOptimizer):
            module = GradSampleModule(
                copy.deepcopy(plain), loss_reduction=reduction, batch_first=not getattr(plain, "late", False)
            )
            releases.append(_releases(kind, module, data, reduction, norm))
        left = sum(bool(m._forward_hooks) for m in module.modules())
        assert left == LEFT_TO_OPACUS.get(name, 0)
        assert float(releases[0].abs().max()) > 1e-4
        assert float((releases[0] - releases[1]).abs().max()) < 1e-13 * max(1.0, float(releases[0].abs().max()))


@pytest.mark.parametrize("name", ["convolutions, group and instance norm", "text", "transformer block"])
def test_in_float32_the_difference_is_rounding(name: str) -> None:
    network, data = MODELS[name]
    torch.manual_seed(0)
    plain = network()
    releases = []
    for kind in (DPOptimizer, FusedDPOptimizer):
        module = GradSampleModule(copy.deepcopy(plain))
        releases.append(
            _releases(kind, module, lambda n: x.float() if (x := data(n)).dtype.is_floating_point else x, "mean", 0.05)
        )
    assert float((releases[0] - releases[1]).abs().max()) < 2e-5 * float(releases[0].abs().max())


def test_packed_sequences_of_different_lengths() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.out = DPLSTM(3, 4, batch_first=True, bidirectional=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2], batch_first=True)
            found, _ = nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
            last: torch.Tensor = self.out(found.sum(1))
            return last

    torch.manual_seed(0)
    plain, x = Packed().double(), torch.randn(3, 5, 3, dtype=torch.float64)
    found = []
    for kind in (DPOptimizer, FusedDPOptimizer):
        module = GradSampleModule(copy.deepcopy(plain))
        optimizer = _made(kind, module)
        functional.cross_entropy(module(x), torch.tensor([0, 1, 0])).backward()
        optimizer.pre_step()
        found.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert float((found[0] - found[1]).abs().max()) < 1e-15
    assert float(found[0].abs().max()) > 1e-3


def test_nothing_of_the_batch_times_the_model_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor with rows × parameters of the large layer exists at any operation of the step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.numel())
            return out

    module = GradSampleModule(nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 10)))
    optimizer = _made(FusedDPOptimizer, module, noise_multiplier=1.0)
    with Watch():
        functional.cross_entropy(module(torch.randn(64, 200)), torch.arange(64) % 10).backward()
        optimizer.step()
    assert largest == 200 * 300


def test_no_plain_gradient_of_known_layers_is_computed() -> None:
    module = GradSampleModule(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)))
    optimizer = _made(FusedDPOptimizer, module)
    functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3).backward()
    assert all(p.grad is None for p in module.parameters())
    optimizer.step()
    assert all(p.grad is not None for p in module.parameters())


def test_rows_are_made_when_asked_for() -> None:
    """`optimizer.grad_samples` are Opacus's, over kept, made and Opacus's own rows."""
    network, data = MODELS["convolutions, group and instance norm"]
    torch.manual_seed(0)
    plain, x = network().double(), data(6)
    found = []
    for kind in (DPOptimizer, FusedDPOptimizer):
        module = GradSampleModule(copy.deepcopy(plain))
        optimizer = _made(kind, module)
        functional.cross_entropy(module(x), torch.arange(6) % 3).backward()
        found.append(optimizer.grad_samples)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_norm_whose_terms_cancel_is_still_right() -> None:
    """‖g‖ is 1e-4 of the sum of its terms' lengths: products of Gram matrices in float32 would be all rounding."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 8, 64, generator=generator)
    delta = torch.randn(5, 8, 64, generator=generator)
    a[:, 4:], delta[:, 4:] = a[:, :4], -delta[:, :4] * (1 + 1e-4)
    use = _row_gradients.Outer(a, delta)
    exact = _row_gradients.Outer(a.double(), delta.double()).dense(slice(None)).flatten(1).norm(dim=1).square()
    torch.testing.assert_close(use.squared_norms(), exact, rtol=2e-3, atol=0)
    reach = (a.double().norm(dim=2) * delta.double().norm(dim=2)).sum(1).square()
    assert (exact < 1e-7 * reach).all()


def test_activations_changed_in_place() -> None:
    """After a known layer they may be, where Opacus's hooks refuse; what a layer was given may not."""
    x, y = torch.randn(4, 6), torch.arange(4) % 3
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    found = []
    for inplace in (False, True):
        module = GradSampleModule(copy.deepcopy(plain))
        module._module[1].inplace = inplace
        optimizer = _made(FusedDPOptimizer, module)
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        found.append([p.grad for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    layer = GradSampleModule(nn.Linear(6, 3))
    optimizer = _made(FusedDPOptimizer, layer)
    changed = x.clone()
    loss = functional.cross_entropy(layer(changed), y)
    changed.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_a_second_backward_through_one_forward_is_refused() -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = _made(FusedDPOptimizer, module)
    loss = functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3)
    loss.backward(retain_graph=True)
    with pytest.raises(ValueError, match="second backward pass"):
        loss.backward()
    optimizer.step()


def test_a_forward_pass_that_is_not_followed_by_a_backward_is_forgotten() -> None:
    module = GradSampleModule(_Twice())
    optimizer = _made(FusedDPOptimizer, module)
    for _ in range(3):
        module(torch.randn(4, 6))
    gc.collect()
    functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3).backward()
    assert optimizer.accumulated_iterations == 1
    optimizer.step()


def test_rows_of_a_step_are_let_go_and_may_not_be_used_again() -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    optimizer = _made(FusedDPOptimizer, module)
    functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3).backward()
    optimizer.step()
    with pytest.raises(ValueError, match="are gone"):
        _ = optimizer.grad_samples
    with pytest.raises(ValueError, match="haven't been cleared"):
        optimizer.step()
    module.zero_grad()
    assert all(p.grad_sample is None for p in module.parameters())


def test_poisson_sampling_forbids_a_second_batch_as_opacus_does() -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    module.forbid_grad_accumulation()
    _made(FusedDPOptimizer, module, module=module)
    x, y = torch.randn(4, 6), torch.arange(4) % 3
    functional.cross_entropy(module(x), y).backward()
    with pytest.raises(ValueError, match="not compatible with grad accumulation"):
        functional.cross_entropy(module(x), y).backward()


@pytest.mark.parametrize("rows", [0, 3])
def test_an_empty_batch_is_noise_alone(rows: int) -> None:
    """As a Poisson sampler makes them, through a real forward and backward pass."""
    module = GradSampleModule(nn.Sequential(nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(80, 5)))
    optimizer = _made(FusedDPOptimizer, module, noise_multiplier=0.0)
    functional.cross_entropy(module(torch.randn(rows, 3, 12)), torch.arange(rows) % 3, reduction="sum").backward()
    optimizer.step()
    total = sum(float(p.grad.abs().sum()) for p in module.parameters())
    assert (total == 0) == (rows == 0)


def test_evaluation_and_disabled_hooks_leave_layers_alone() -> None:
    module = GradSampleModule(nn.Linear(6, 3))
    _made(FusedDPOptimizer, module, module=module)
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
    plain = nn.Sequential(nn.Linear(6, 5), _Scale(5), nn.Linear(5, 3))
    module = GradSampleModule(plain)
    assert _book_keeping.attach(module, list(plain.parameters())) == 2
    assert _book_keeping.attach(module, list(plain.parameters())) == 2
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
        optimizer = _made(FusedDPOptimizer, plain, module=module)
        functional.cross_entropy(plain(torch.randn(4, 6)), torch.arange(4) % 3).backward()
        assert plain[0].weight.grad is None or not plain[0].weight.grad.any()
        optimizer.step()
        optimizer.zero_grad()


def test_modules_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(TypeError, match="Sequential without the hooks"):
        _made(FusedDPOptimizer, plain := nn.Sequential(nn.Linear(6, 3)), module=plain)
    ghost = GradSampleModuleFastGradientClipping(nn.Linear(6, 3))
    with pytest.raises(TypeError, match="ghost clipping"):
        _made(FusedDPOptimizer, ghost, module=ghost)
    with pytest.raises(TypeError, match="max_grad_norm is a list"):
        _made(FusedDPOptimizer, nn.Linear(6, 3), max_grad_norm=[1.0, 1.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    """A whole model in them, and float32 parameters under autocast: clipped norms stay within rounding of C."""
    x, y = torch.randn(8, 6) * 100, torch.arange(8) % 3
    for whole in (True, False):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
        module = GradSampleModule(plain.to(dtype) if whole else plain)
        optimizer = _made(FusedDPOptimizer, module, loss_reduction="sum", max_grad_norm=0.5)
        with torch.autocast("cpu", dtype=dtype, enabled=not whole):
            loss = functional.cross_entropy(module(x.to(dtype) if whole else x).float(), y)
        loss.backward()
        optimizer.pre_step()
        total = torch.cat([p.grad.flatten().double() for p in module.parameters()])
        assert all(p.grad.dtype == p.dtype for p in module.parameters())
        assert 0.5 < float(total.norm()) < 8 * 0.5


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
