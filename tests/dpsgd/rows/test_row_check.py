"""The clipped rows are compared with autograd's: in recorded runs, by the fused optimizer, and on their own."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import leakcore
from leakcore.dpsgd import FusedDPOptimizer

pytest.importorskip("opacus")
from opacus import GradSampleModule, PrivacyEngine
from opacus.grad_sample import GradSampleHooks
from opacus.layers import DPLSTM
from opacus.utils.batch_memory_manager import BatchMemoryManager

from leakcore.dpsgd.rows import row_check
from tests.dpsgd.opacus_models import made
from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.rows.layer_models import EXAMPLES, Then, dense, sequences
from tests.dpsgd.rows.training import ROWS, Y, fused, take_step

pytestmark = IGNORED


class _Turns(nn.Module):
    """From call `late` on one layer sees the rows in another order. random: drops, too."""

    def __init__(self, late: int, random: float = 0.0) -> None:
        super().__init__()
        self.first, self.head, self.drop = nn.Linear(6, 6), nn.Linear(6, 4), nn.Dropout(random)
        self.late, self.calls = late, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        order = torch.arange(len(x)).roll(1) if self.calls >= self.late else torch.arange(len(x))
        output: torch.Tensor = self.head(self.drop(self.first(x[order]).tanh())[order.argsort()])
        return output


@pytest.mark.parametrize("drops", [0.0, 0.3])
@pytest.mark.parametrize(("late", "refused"), [(1, 1), (2, 2), (3, 4), (5, 8)])
def test_a_fault_is_found_at_the_next_step_that_is_checked(late: int, refused: int, drops: float) -> None:
    torch.manual_seed(0)
    module, optimizer = fused(_Turns(late, drops))
    x = torch.randn(ROWS, 6)
    for _ in range(refused - 1):
        take_step(module, optimizer, x)
    with pytest.raises(ValueError, match=r"first\.weight \(Linear\).* are not the rows'"):
        take_step(module, optimizer, x)
    assert module._module.calls == refused


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_narrow_types_rounding_passes_and_another_order_does_not(dtype: torch.dtype) -> None:
    x = torch.randn(ROWS, 6).to(dtype)
    torch.manual_seed(0)
    module, optimizer = fused(_Turns(99).to(dtype))
    for _ in range(4):
        take_step(module, optimizer, x)
    module, optimizer = fused(_Turns(1).to(dtype))
    with pytest.raises(ValueError, match="are not the rows'"):
        take_step(module, optimizer, x)
    module, optimizer = fused(_Turns(99))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        take_step(module, optimizer, x.float())


class _Busy(nn.Module):
    """Draws from every generator, counts, keeps a list, writes into a buffer and caches what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.norm = nn.Linear(6, 6), nn.Linear(6, 4), nn.BatchNorm1d(6, affine=False)
        self.norm.training = False
        self.calls, self.history, self.cache = 0, [0.0], {"last": torch.zeros(0)}
        self.own = torch.Generator().manual_seed(1)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = functional.dropout(self.first(x), 0.3)
        h = h * float(np.random.random()) + random.random()  # noqa: NPY002
        self.history.append(float(h.detach().sum()))
        self.cache["last"] = h.detach()
        self.mean += 1
        output: torch.Tensor = self.head(h.tanh())
        return output


def _state(module: _Busy) -> list[Any]:
    return [
        module.calls, list(module.history), module.mean.clone(), module.cache["last"].clone(), module.own.get_state(),
        torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(),  # noqa: NPY002
        [p.grad.clone() for p in module.parameters()], [len(m._forward_hooks) for m in module.modules()],
        [p.detach().clone() for p in module.parameters()], list(vars(module)), module.mean._version,
    ]  # fmt: skip


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def test_a_checked_run_is_the_same_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Four steps, three of them checked, equal four unchecked ones: random state, weights and releases."""
    states = []
    for checked in (True, False):
        if not checked:
            monkeypatch.setattr(row_check.RowCheck, "step", lambda *_, **__: None)
            monkeypatch.setattr(row_check.RowCheck, "start", lambda *_, **__: None)
        torch.manual_seed(0), np.random.seed(0), random.seed(0)  # noqa: NPY002
        busy = _Busy()
        module = GradSampleModule(busy, strict=False)
        optimizer = made(FusedDPOptimizer, module, noise_multiplier=1.0)
        for _ in range(4):
            take_step(module, optimizer, torch.randn(ROWS, 6))
        states.append(_state(busy))
    assert _equal(*states)
    assert not caplog.records
    assert all(not p.grad_sample or len(p.grad_sample) == 1 for p in busy.parameters())


def test_what_cannot_be_repeated_is_said_and_passes(caplog: pytest.LogCaptureFixture) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(6, 4), iter(range(99))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(x) * (1 + next(self.calls))
            return output

    module, optimizer = fused(Counts())
    for _ in range(3):
        take_step(module, optimizer, torch.randn(ROWS, 6))
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1  # once, in two checked steps
    assert "of Counts were not compared with autograd's in step 1: a second call with the same inputs" in said[0]


def test_inputs_changed_in_place_are_said_and_pass(caplog: pytest.LogCaptureFixture) -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(x.mul_(2))
            return output

    module, optimizer = fused(Changes())
    take_step(module, optimizer, torch.randn(ROWS, 6))
    assert "changed in place" in caplog.text


class _Mask(nn.Module):
    """Takes a dictionary and a mask as long as the batch, which is not a row of it; returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, batch: dict[str, torch.Tensor], *, mask: torch.Tensor, scale: float) -> Any:
        h = self.layer(batch["x"]).tanh()  # (rows, steps, 5)
        h = torch.einsum("st,btd->bsd", mask, h) * batch["weight"][:, None, None] * scale
        return self.head(h.sum(1)), h


@pytest.mark.usefixtures("silent")
def test_arguments_by_name_dictionaries_and_what_rows_share() -> None:
    torch.manual_seed(0)
    module, optimizer = fused(_Mask().double())
    batch = {"x": torch.randn(ROWS, ROWS, 5).double(), "weight": torch.rand(ROWS).double()}
    for _ in range(2):
        take_step(module, optimizer, batch, mask=torch.randn(ROWS, ROWS).double(), scale=2.0)


@dataclasses.dataclass
class _Outputs:
    """What a model may return in place of a tensor."""

    loss: torch.Tensor
    logits: torch.Tensor | None
    hidden: torch.Tensor | None = None


class _Loss(nn.Module):
    """Gives a loss. sorts: one layer sees other rows. more: what it is made of, too."""

    def __init__(self, reduction: str, sorts: bool = False, more: bool = False, drops: float = 0.0) -> None:
        super().__init__()
        self.layer, self.head, self.reduction, self.sorts = nn.Linear(6, 6), nn.Linear(6, 4), reduction, sorts
        self.more, self.drop = more, nn.Dropout(drops)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> _Outputs:
        order = x[:, 0].argsort() if self.sorts else torch.arange(len(x))
        hidden = self.drop(self.layer(x[order]).tanh()[order.argsort()])
        outputs = self.head(hidden)
        loss = functional.cross_entropy(outputs, labels, reduction=self.reduction)
        return _Outputs(loss, outputs, hidden) if self.more else _Outputs(loss, None)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sorts", [False, True])
@pytest.mark.parametrize(("more", "drops"), [(False, 0.0), (True, 0.0), (True, 0.4)])
def test_a_loss_within_the_model(reduction: str, sorts: bool, more: bool, drops: float) -> None:
    torch.manual_seed(0)
    module = GradSampleModule(_Loss(reduction, sorts, more, drops).double(), loss_reduction=reduction)
    optimizer = made(FusedDPOptimizer, module, loss_reduction=reduction)
    module(torch.randn(ROWS, 6).double(), Y).loss.backward()
    if sorts:
        with pytest.raises(ValueError, match=r"layer\.weight \(Linear\).* are not the rows'"):
            optimizer.step()
    else:
        optimizer.step()


@pytest.mark.usefixtures("silent")
def test_rows_second_in_a_model_whose_outputs_tell_nothing() -> None:
    """All zero, at any step of any row: what was told of the layers decides which dimension is the rows'."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))
    nn.init.zeros_(plain[2].weight), nn.init.zeros_(plain[2].bias)
    module, optimizer = fused(plain, batch_first=False)
    for steps in (3, ROWS, 9):
        optimizer.zero_grad()
        functional.cross_entropy(module(torch.randn(steps, ROWS, 6)).mean(0), Y).backward()
        optimizer.step()


def test_a_loss_within_the_model_that_mixes_rows() -> None:
    """A mean over the targets that count divides a row's gradient by what the others have of them."""
    module, optimizer = fused(_Loss("mean"))
    module(torch.randn(ROWS, 6), torch.tensor([0, 1, -100, -100, 2, 3])).loss.backward()
    with pytest.raises(ValueError, match="the model's loss is neither the mean nor the sum of its rows'"):
        optimizer.step()


class _OfPacked(nn.Module):
    """Takes a packed sequence and gives one."""

    def __init__(self, sorts: bool) -> None:
        super().__init__()
        self.cells, self.head, self.sorts = DPLSTM(3, 4, batch_first=True), nn.Linear(4, 4), sorts

    def forward(self, x: Any) -> Any:
        if self.sorts:
            x = type(x)(x.data, x.batch_sizes)
        return self.head(pad_packed_sequence(self.cells(x)[0], batch_first=True)[0].sum(1)), x


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("sorts", [False, True])
def test_a_packed_sequence_as_input(sorts: bool) -> None:
    torch.manual_seed(1)
    x = sequences()(ROWS)
    packed = pack_padded_sequence(x[..., :3], x[:, 0, 3].long(), batch_first=True, enforce_sorted=False)
    module, optimizer = fused(_OfPacked(sorts).double())
    if sorts:  # outputs in an order that nobody knows of
        with pytest.raises(ValueError, match=r"another output when the row is alone|are not the rows'"):
            take_step(module, optimizer, packed)
    else:
        take_step(module, optimizer, packed)


@pytest.mark.usefixtures("silent")
def test_indices_and_offsets_as_inputs() -> None:
    """Rows are bags: neither argument has one entry a row."""

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.EmbeddingBag(20, 6, mode="mean"), nn.Linear(6, 4)

        def forward(self, text: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.head(self.table(text, offsets))
            return output

    torch.manual_seed(0)
    module, optimizer = fused(Text().double())
    for length in (17, ROWS):
        take_step(module, optimizer, torch.randint(0, 20, (length,)), torch.tensor([0, 1, 1, 3, 4, 4]))


@pytest.mark.usefixtures("silent")
def test_parts_of_a_model_called_by_the_loop() -> None:
    torch.manual_seed(0)
    for wrong in (False, True):
        plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        module, optimizer = fused(plain)
        made(FusedDPOptimizer, module)
        optimizer._attach(module)
        x = torch.randn(ROWS, 6).double()
        order = x[:, 0].argsort() if wrong else torch.arange(ROWS)
        functional.cross_entropy(plain[2](plain[1](plain[0](x[order]))[order.argsort()]), Y).backward()
        optimizer.step()  # what is done between the calls is not the model's: rows of each call agree
        assert optimizer._check._said == ""


@pytest.mark.parametrize("named", [True, False])
def test_hooks_without_a_wrapper_are_checked_from_the_first_step(named: bool) -> None:
    plain = _Turns(1)
    hooks = GradSampleHooks(plain)
    optimizer = made(FusedDPOptimizer, plain, module=hooks if named else None)
    with pytest.raises(ValueError, match="are not the rows'"):
        take_step(plain, optimizer, torch.randn(ROWS, 6))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint(reentrant: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Both kinds: the rows are compared, and are right."""

    class Saves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = checkpoint(lambda h: h.tanh().square(), self.first(x), use_reentrant=reentrant)
            output: torch.Tensor = self.head(h)
            return output

    module, optimizer = fused(Saves())
    for _ in range(2):
        take_step(module, optimizer, torch.randn(ROWS, 6))
    assert not caplog.records
    assert optimizer._check._steps == 2


@pytest.mark.usefixtures("silent")
def test_batches_of_one_row_and_none_and_squeezed_outputs() -> None:
    class Squeezes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(x).squeeze()
            return output

    module, optimizer = fused(Squeezes().double())
    for rows in (0, 1, 2, 3, 7, 1):
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(
            module(torch.randn(rows, 6).double()).view(-1), torch.ones(rows).double(), reduction="sum"
        ).backward()
        optimizer.step()


@pytest.mark.usefixtures("silent")
def test_batches_in_parts() -> None:
    x = torch.randn(40, 6)
    plain = _Turns(3)
    module, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=plain, optimizer=torch.optim.SGD(plain.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.arange(40) % 4), batch_size=20),
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    optimizer = FusedDPOptimizer.replace(optimizer)
    refused = pytest.raises(ValueError, match="are not the rows'")
    with refused, BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as parts:
        for a, b in parts:
            optimizer.zero_grad()
            functional.cross_entropy(module(a), b).backward()
            optimizer.step()
    assert plain.calls == 4


_WAYS: dict[str, tuple[str, str]] = {
    "DPLSTM, sorted within": ("hooks", "are not the rows'"),
    "one layer in another order": ("ghost", "are not the rows'"),
    "mean of the batch": ("functorch", "depends on the other rows"),
    "all steps first, as many": ("hooks", "are not the rows'|rows went in"),
    "DPGRU, unsorted": ("hooks", r"DPGRU has a packed sequence .* FusedDPOptimizer\.replace"),
    "bag, sum, ragged, []": ("hooks", "record does not take EmbeddingBag"),
    "embedding, norm": ("hooks", "max_norm=1.0, which shortens"),
    "wrong sampler": ("hooks", "are not the rows'"),
}


def _recorded(plain: nn.Module, rows: Callable[[int], torch.Tensor], mode: str) -> leakcore.Trace:
    x, y = rows(60), torch.arange(60) % 4
    settings = {} if mode != "ghost" else {"criterion": nn.CrossEntropyLoss()}
    parts = PrivacyEngine(accountant="rdp").make_private(
        module=plain, optimizer=torch.optim.SGD(plain.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode=mode, **settings,
    )  # fmt: skip
    module, optimizer, *loss, loader = parts
    criterion = loss[0] if loss else nn.CrossEntropyLoss()
    members = torch.ones(10, dtype=torch.bool)
    with leakcore.record(optimizer, candidates=(x[:10], y[:10]), members=members) as recorder:
        for a, b in loader:
            optimizer.zero_grad()
            criterion(module(a), b).backward()
            optimizer.step()
    return recorder.trace()


@pytest.mark.parametrize("name", _WAYS)
def test_recording_refuses_what_opacus_gets_wrong(name: str) -> None:
    """In the first step, whichever way Opacus makes rows, or norms."""
    mode, refused = _WAYS[name]
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=refused):
        _recorded(EXAMPLES[name].model().double(), EXAMPLES[name].rows, mode)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("mode", ["hooks", "ghost", "functorch", "ew"])
def test_recording_takes_what_opacus_gets_right(mode: str) -> None:
    torch.manual_seed(0)
    plain = Then(lambda x, a, drop: drop(a(x)), 6, nn.Linear(6, 6), nn.Dropout(0.2)).double()
    assert len(_recorded(plain, dense(6), mode).batch_rows) == 3


class _Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.not_yet, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.first(x).tanh())
        return output


def test_a_layer_that_is_never_called_is_named() -> None:
    module, optimizer = fused(_Grows())
    with pytest.raises(ValueError, match=r"no row has a gradient of not_yet\.weight, not_yet\.bias"):
        take_step(module, optimizer, torch.randn(ROWS, 6))
    for mode in ("hooks", "ghost"):
        with pytest.raises(ValueError, match=r"no row has a gradient of not_yet\.weight, not_yet\.bias"):
            _recorded(_Grows(), lambda n: torch.randn(n, 6), mode)


def test_errors_of_the_loop_stay_what_they_are_while_it_is_recorded() -> None:
    class Fails(_Grows):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("of the loop")

    with pytest.raises(KeyError, match="of the loop"):
        _recorded(Fails(), lambda n: torch.randn(n, 6), "hooks")


def test_it_stands_in_no_state_and_no_copy() -> None:
    """A module is copied between checked steps, and the copy knows nothing of leakcore."""
    module, optimizer = fused(_Grows())
    module._module.not_yet.requires_grad_(False)
    optimizer = made(FusedDPOptimizer, module)
    for _ in range(2):
        take_step(module, optimizer, torch.randn(ROWS, 6))
    for network in copy.deepcopy(module.to_standard_module()).modules():
        hooks = [*network._forward_hooks.values(), *network._forward_pre_hooks.values()]
        assert not any(type(hook).__module__.startswith("leakcore") for hook in hooks)


def test_a_penalty_on_activations_is_not_a_fault_of_the_layers(caplog: pytest.LogCaptureFixture) -> None:
    """The rows are right, and the gradient that comes back to the outputs is not all of them."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = self.first(x).tanh()
            output: torch.Tensor = self.head(self.hidden)
            return output

    module, optimizer = fused(Keeps())
    for _ in range(2):
        optimizer.zero_grad()
        outputs = module(torch.randn(ROWS, 6))
        (functional.cross_entropy(outputs, Y) + module._module.hidden.square().mean()).backward()
        optimizer.step()
    assert "also goes back to its layers around its outputs" in caplog.text


NUM_ROWS, NORM = 5, 0.05


def _released(plain: nn.Module, x: torch.Tensor, y: torch.Tensor, batch_first: bool = True) -> torch.Tensor:
    """The sum of clipped gradients, without noise."""
    module = GradSampleModule(copy.deepcopy(plain), loss_reduction="sum", batch_first=batch_first)
    optimizer = made(FusedDPOptimizer, module, max_grad_norm=NORM, loss_reduction="sum")
    functional.cross_entropy(module(x), y, reduction="sum").backward()
    optimizer.pre_step()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.requires_grad])


def _of_row(plain: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One row's gradient by autograd, clipped."""
    trained = [p for p in plain.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(functional.cross_entropy(plain(x), y), trained)
    whole = torch.cat([(g.to_dense() if g.is_sparse else g).flatten() for g in gradients])
    return whole * min(1.0, NORM / (float(whole.norm()) + 1e-6))


@pytest.mark.full(keep=9)
@pytest.mark.parametrize("name", EXAMPLES)
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm(name: str) -> None:
    """Within 1e-6 of C; and the sum is that of autograd's rows to 1e-10. Or the first step refuses, by name."""
    example = EXAMPLES[name]
    torch.manual_seed(5)
    plain, x = example.model().double(), example.rows(NUM_ROWS)
    y = torch.arange(NUM_ROWS) % 4
    if example.refused:
        with pytest.raises(ValueError, match=example.refused):
            _released(plain, x, y, example.batch_first)
        return
    whole = _released(plain, x, y, example.batch_first)
    expected = sum(_of_row(plain, x[i : i + 1], y[i : i + 1]) for i in range(NUM_ROWS))
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-10 * float(torch.as_tensor(expected).norm()))
    assert float(whole.norm()) > 0.1 * NORM
    for i in range(NUM_ROWS):
        rest = torch.arange(NUM_ROWS) != i
        moved = float((whole - _released(plain, x[rest], y[rest], example.batch_first)).norm())
        assert moved <= NORM * (1 + 1e-6)
