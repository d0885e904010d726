"""Steps without per-sample gradients against Opacus's with them: the same release, over kinds of layers and types."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer

from leakcore.dpsgd import FusedDPOptimizer
from leakcore.dpsgd.fused import row_gradients
from tests.dpsgd.opacus_models import LEFT_TO_OPACUS, MODELS, OwnConv1d, made
from tests.dpsgd.opacus_remarks import IGNORED

pytestmark = [*IGNORED, pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")]


def _releases(
    kind: type, module: Any, data: Callable[[int], torch.Tensor], reduction: str, norm: float
) -> torch.Tensor:
    optimizer = made(kind, module, max_grad_norm=norm, loss_reduction=reduction)
    torch.manual_seed(1)
    values = []
    for rows in (5, 6, 1, 7):
        optimizer.zero_grad()
        outputs = module(data(rows))
        functional.cross_entropy(outputs, torch.arange(rows) % 3, reduction=reduction).backward()
        optimizer.pre_step()
        values += [p.grad.flatten().clone() for p in module.parameters() if p.requires_grad]
        optimizer.original_optimizer.step()
    return torch.cat(values)


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
            result, _ = nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
            last: torch.Tensor = self.out(result.sum(1))
            return last

    torch.manual_seed(0)
    plain, x = Packed().double(), torch.randn(3, 5, 3, dtype=torch.float64)
    result = []
    for kind in (DPOptimizer, FusedDPOptimizer):
        module = GradSampleModule(copy.deepcopy(plain))
        optimizer = made(kind, module)
        functional.cross_entropy(module(x), torch.tensor([0, 1, 0])).backward()
        optimizer.pre_step()
        result.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert float((result[0] - result[1]).abs().max()) < 1e-15
    assert float(result[0].abs().max()) > 1e-3


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
    optimizer = made(FusedDPOptimizer, module, noise_multiplier=1.0)
    with Watch():
        functional.cross_entropy(module(torch.randn(64, 200)), torch.arange(64) % 10).backward()
        optimizer.step()
    assert largest == 200 * 300


def test_no_plain_gradient_of_known_layers_is_computed() -> None:
    module = GradSampleModule(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)))
    optimizer = made(FusedDPOptimizer, module)
    functional.cross_entropy(module(torch.randn(4, 6)), torch.arange(4) % 3).backward()
    assert all(p.grad is None for p in module.parameters())
    optimizer.step()
    assert all(p.grad is not None for p in module.parameters())


def test_rows_are_made_when_asked_for() -> None:
    """`optimizer.grad_samples` are Opacus's, over kept, made and Opacus's own rows."""
    network, data = MODELS["convolutions, group and instance norm"]
    torch.manual_seed(0)
    plain, x = network().double(), data(6)
    values = []
    for kind in (DPOptimizer, FusedDPOptimizer):
        module = GradSampleModule(copy.deepcopy(plain))
        optimizer = made(kind, module)
        functional.cross_entropy(module(x), torch.arange(6) % 3).backward()
        values.append(optimizer.grad_samples)
    for a, b in zip(*values, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_norm_whose_terms_cancel_is_still_right() -> None:
    """‖g‖ is 1e-4 of the sum of its terms' lengths: products of Gram matrices in float32 would be all rounding."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 8, 64, generator=generator)
    delta = torch.randn(5, 8, 64, generator=generator)
    a[:, 4:], delta[:, 4:] = a[:, :4], -delta[:, :4] * (1 + 1e-4)
    use = row_gradients.Outer(a, delta)
    exact = row_gradients.Outer(a.double(), delta.double()).dense(slice(None)).flatten(1).norm(dim=1).square()
    torch.testing.assert_close(use.squared_norms(), exact, rtol=2e-3, atol=0)
    reach = (a.double().norm(dim=2) * delta.double().norm(dim=2)).sum(1).square()
    assert (exact < 1e-7 * reach).all()


class _Padded(nn.Module):
    """`tied`: the table is the last layer's weight as well, whose padding row gets a gradient."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 6, padding_idx=0), nn.Linear(6, 9, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.out(torch.tanh(self.table(x)).mean(1))
        return output


def _ring(size: int, mode: str) -> Callable[[], nn.Module]:
    """Convolutions of `size` dimensions with uneven padding, stride and groups."""
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[size - 1]
    return lambda: nn.Sequential(
        kind(2, 4, 3, 2, padding=1, padding_mode=mode), nn.Tanh(),
        kind(4, 4, 2, padding="same", groups=2, padding_mode=mode), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


_PADDED: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "padding row": (lambda: _Padded(tied=False), lambda rows: torch.randint(0, 9, (rows, 7)) % 5),
    "padding row of a tied table": (lambda: _Padded(tied=True), lambda rows: torch.randint(0, 9, (rows, 7)) % 5),
    "reflect, 1d": (_ring(1, "reflect"), lambda rows: torch.randn(rows, 2, 6, dtype=torch.float64)),
    "reflect, 2d": (_ring(2, "reflect"), lambda rows: torch.randn(rows, 2, 6, 5, dtype=torch.float64)),
    "replicate, 3d": (_ring(3, "replicate"), lambda rows: torch.randn(rows, 2, 5, 4, 6, dtype=torch.float64)),
    "circular, 2d": (_ring(2, "circular"), lambda rows: torch.randn(rows, 2, 6, 5, dtype=torch.float64)),
}


@pytest.mark.parametrize("norm", [0.05, 1e3])
@pytest.mark.parametrize("name", _PADDED)
def test_padding_is_clipped_as_autograd_sees_it(name: str, norm: float) -> None:
    """Σ_i g_i·min(1, C/(‖g_i‖ + 1e-6)) with g_i by autograd, one sample at a time; Opacus's rows are others."""
    network, data = _PADDED[name]
    torch.manual_seed(0)
    plain, x, y = network().double(), data(6), torch.arange(6) % 3
    expected = 0.0
    plain(x)  # a lazy layer has its size from here
    for i in range(6):
        plain.zero_grad()
        functional.cross_entropy(plain(x[i : i + 1]), y[i : i + 1]).backward()
        g = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
        expected = expected + g * min(1.0, norm / (float(g.norm()) + 1e-6))
    module = GradSampleModule(plain, loss_reduction="sum")
    optimizer = made(FusedDPOptimizer, module, max_grad_norm=norm, loss_reduction="sum")
    optimizer.zero_grad()
    functional.cross_entropy(module(x), y, reduction="sum").backward()
    rows = torch.cat([g.flatten(1) for g in optimizer.grad_samples], dim=1)
    optimizer.pre_step()
    total = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-14)
    factors = (norm / (rows.norm(dim=1) + 1e-6)).clamp(max=1)
    torch.testing.assert_close(factors @ rows, expected, rtol=1e-10, atol=1e-14)


class _TwoBranches(nn.Module):
    """Its first layer's weight is another's too, which is left to Opacus, and so is the first layer."""

    def __init__(self, first: Any, other: Any) -> None:
        super().__init__()
        self.first, self.other = first, other
        other.weight = first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.first(x).flatten(1) + self.other(x).flatten(1)
        return output


class _OwnEmbedding(nn.Embedding):
    """A layer that nobody knows."""


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        (
            lambda: _TwoBranches(nn.Conv1d(3, 3, 3, padding=1, padding_mode="reflect"), OwnConv1d(3, 3, 3, padding=1)),
            "padding_mode='reflect'",
        ),
        (lambda: _TwoBranches(nn.Embedding(5, 4, padding_idx=1), _OwnEmbedding(5, 4)), "padding_idx=1"),
        (lambda: nn.Embedding(5, 4, scale_grad_by_freq=True), "scale_grad_by_freq=True"),
    ],
)
def test_a_layer_whose_rows_opacus_gets_wrong_is_refused(model: Callable[[], nn.Module], setting: str) -> None:
    module = GradSampleModule(model())
    with pytest.raises(ValueError, match=f"has {setting}, for which Opacus's per-sample gradients are wrong"):
        made(FusedDPOptimizer, module, module=module)
    for p in module.parameters():
        p.requires_grad = False
    made(FusedDPOptimizer, nn.Linear(2, 2), module=module)


@pytest.mark.parametrize("rows", [0, 3])
def test_an_empty_batch_is_noise_alone(rows: int) -> None:
    """As a Poisson sampler makes them, through a real forward and backward pass."""
    module = GradSampleModule(nn.Sequential(nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(80, 5)))
    optimizer = made(FusedDPOptimizer, module, noise_multiplier=0.0)
    functional.cross_entropy(module(torch.randn(rows, 3, 12)), torch.arange(rows) % 3, reduction="sum").backward()
    optimizer.step()
    total = sum(float(p.grad.abs().sum()) for p in module.parameters())
    assert (total == 0) == (rows == 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    """A whole model in them, and float32 parameters under autocast: clipped norms stay within rounding of C."""
    x, y = torch.randn(8, 6) * 100, torch.arange(8) % 3
    for whole in (True, False):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
        module = GradSampleModule(plain.to(dtype) if whole else plain)
        optimizer = made(FusedDPOptimizer, module, loss_reduction="sum", max_grad_norm=0.5)
        with torch.autocast("cpu", dtype=dtype, enabled=not whole):
            loss = functional.cross_entropy(module(x.to(dtype) if whole else x).float(), y)
        loss.backward()
        optimizer.pre_step()
        total = torch.cat([p.grad.flatten().double() for p in module.parameters()])
        assert all(p.grad.dtype == p.dtype for p in module.parameters())
        assert 0.5 < float(total.norm()) < 8 * 0.5
