"""The loss of the loop is recognised, or refused by name."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.loss import _Loss

import leakcore
from leakcore.dpsgd import FusedDPOptimizer

pytest.importorskip("opacus")
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import candidates, data, loop, private, recorded

pytestmark = IGNORED


class _Focal:
    """(1 − e^(−l))²·l of the cross-entropy l. A class of its own, no module."""

    def __init__(self) -> None:
        self.inner = nn.CrossEntropyLoss(reduction="none")

    def __call__(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        entropy = self.inner(outputs, y)
        return ((1 - torch.exp(-entropy)) ** 2 * entropy).mean()


class _FocalModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.call = _Focal()
        self.inner = self.call.inner

    def forward(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.call(outputs, y)


class _Sum(nn.Module):
    """A loss of torch with something added: its output and gradient look whole."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss()

    def forward(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(outputs, y) + outputs.square().mean()
        return output


class _OwnLoss(_Loss):
    """A loss made of a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss()

    def forward(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.inner(outputs, y) * 2


def _two(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.CrossEntropyLoss()(outputs, y) + nn.MSELoss()(outputs, torch.zeros_like(outputs))


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (_Focal(), "CrossEntropyLoss is only a part of the loss, or its rows have weights"),
        (_FocalModule(), "CrossEntropyLoss is called inside _FocalModule, whose loss may be another"),
        (_Sum(), "CrossEntropyLoss is called inside _Sum"),
        (_two, "CrossEntropyLoss and another MSELoss are in one step"),
    ],
)
def test_a_loss_that_may_not_be_the_criterion_is_refused_in_the_first_step(loss: Any, message: str) -> None:
    module, optimizer, loader = private()
    recorder = leakcore.record(optimizer, candidates=candidates())
    with pytest.raises(ValueError, match=f"criterion: {message}.*pass criterion="), recorder:
        loop(module, optimizer, loader, loss)
    assert recorder.steps == 0
    assert recorded(loss, criterion=loss).steps == 10


def test_a_curve_of_a_mean_is_refused() -> None:
    """Its slope changes with the batch, so that it mixes rows."""

    def squared(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.CrossEntropyLoss()(outputs, y) ** 2

    with pytest.raises(ValueError, match="goes back from another function of it"):
        recorded(squared)
    with pytest.raises(ValueError, match="neither the mean nor the sum"):
        recorded(squared, criterion=squared)


@pytest.mark.parametrize(
    ("transform", "loss"),
    [
        (lambda outputs: outputs.log_softmax(1), nn.NLLLoss()),
        (lambda outputs: outputs / 5, nn.CrossEntropyLoss()),
        (lambda outputs: outputs[:, [2, 1, 0]], nn.CrossEntropyLoss()),
    ],
)
def test_what_stands_between_the_model_and_its_loss_must_be_named(transform: Any, loss: Any) -> None:
    def whole(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = loss(transform(outputs), y)
        return output

    with pytest.raises(ValueError, match=r"receives something derived from the model's outputs .* pass criterion="):
        recorded(whole)

    def in_one(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return whole(outputs.clone(), y)

    assert recorded(in_one, criterion=in_one).steps == 10


def test_outputs_that_only_change_shape_are_the_models() -> None:
    """(B, 1) → (B,), which this loss takes alike."""
    squared = nn.MSELoss()

    def squeezed(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = squared(outputs.flatten(), functional.one_hot(y, 3).flatten().to(outputs.dtype))
        return output

    x, y = candidates()
    targets = functional.one_hot(y, 3).float()
    output = recorded(squeezed, candidates=(x, targets)).pair_sum
    np.testing.assert_allclose(output, recorded(squeezed, candidates=(x, targets), criterion=squared).pair_sum)


def test_an_inner_loss_under_ghost_clipping_is_refused() -> None:
    """There every loss gives a value per row."""
    module, optimizer, loss, loader = private(grad_sample_mode="ghost", criterion=_FocalRows())
    with (
        pytest.raises(ValueError, match="criterion: CrossEntropyLoss is only a part of the loss"),
        leakcore.record(optimizer, candidates=candidates()),
    ):
        loop(module, optimizer, loader, loss)


class _FocalRows(_Focal):
    reduction = "mean"

    def __call__(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        entropy = self.inner(outputs, y)
        return (1 - torch.exp(-entropy)) ** 2 * entropy


def test_metrics_are_not_a_criterion() -> None:
    """Losses of detached outputs, and such as nothing goes back from, before and after the one that trains."""
    entropy = nn.CrossEntropyLoss(label_smoothing=0.1)

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        onehot = functional.one_hot(y, 3).float()
        nn.MSELoss()(outputs.detach(), onehot)
        nn.L1Loss()(outputs, onehot)
        trained: torch.Tensor = entropy(outputs, y)
        nn.CrossEntropyLoss(reduction="none")(outputs, y)
        return trained

    result = recorded(loss)
    np.testing.assert_array_equal(result.pair_sum, recorded(loss, criterion=entropy).pair_sum)


_WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


def _column(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(B, 1) against (B,): torch warns, and compares every output with every target."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result: torch.Tensor = nn.MSELoss()(outputs[:, :1], y.to(outputs.dtype))
        return result


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (nn.CrossEntropyLoss(weight=_WEIGHTS), False),
        (nn.CrossEntropyLoss(ignore_index=1), False),
        (nn.CrossEntropyLoss(weight=_WEIGHTS), True),
        (nn.CrossEntropyLoss(ignore_index=1), True),
        (_column, True),
    ],
)
def test_a_loss_that_mixes_rows_is_refused_in_the_first_step(loss: Any, named: bool) -> None:
    module, optimizer, loader = private()
    recorder = leakcore.record(optimizer, candidates=candidates(), criterion=loss if named else None)
    with (
        pytest.raises(ValueError, match=r"criterion: .* nor the sum of what it is for each: a row's gradient"),
        recorder,
    ):
        loop(module, optimizer, loader, loss)
    assert recorder.steps == 0


def test_a_loss_reduced_otherwise_than_opacus_was_told_is_refused() -> None:
    total = nn.CrossEntropyLoss(reduction="sum")
    message = r"criterion: the loop calls backward\(\) on the sum of CrossEntropyLoss over rows.*loss_reduction='mean'"
    with pytest.raises(ValueError, match=message):
        recorded(total)
    module, optimizer, loader = private(loss_reduction="sum")
    with leakcore.record(optimizer, candidates=candidates()) as recorder:
        loop(module, optimizer, loader, total)
    assert recorder.steps == 10


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, y: nn.CrossEntropyLoss(weight=torch.full((3,), 2.0))(outputs, y),
        lambda outputs, y: nn.CrossEntropyLoss(weight=_WEIGHTS, reduction="none")(outputs, y).mean(),
        _OwnLoss(),
    ],
)
def test_a_loss_that_is_new_or_reduced_outside_or_part_of_another_is_recognised(loss: Any) -> None:
    """The first by physical batches: several of them are in a step."""
    traces = []
    for criterion in (None, loss):
        module, optimizer, loader = private()
        with (
            leakcore.record(optimizer, candidates=candidates(), criterion=criterion) as recorder,
            BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts,
        ):
            loop(module, optimizer, parts, loss)
        traces.append(recorder.trace().pair_sum)
    np.testing.assert_allclose(*traces, rtol=0, atol=1e-6)


def test_a_forward_pass_that_fails_leaves_the_next_loss_alone() -> None:
    """As where a loop catches an error, and goes on."""
    entropy = nn.CrossEntropyLoss()
    other = nn.Linear(2, 2)

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError):
            other(outputs)
        result: torch.Tensor = entropy(outputs, y)
        return result

    assert recorded(loss).steps == 10


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_candidate_whose_target_the_loop_changes_is_refused(mode: str) -> None:
    """Soft targets that the loop smooths: gradients with the candidates' own would be others."""
    x = data()[0]
    soft = torch.softmax(x[:, :3].double(), dim=1)

    def run(targets: torch.Tensor) -> Any:
        module, optimizer, *more = private(grad_sample_mode=mode, criterion=nn.CrossEntropyLoss())
        criterion = more[0] if mode == "ghost" else nn.CrossEntropyLoss()
        with leakcore.record(optimizer, candidates=(x[4:12], targets)) as recorder:
            for rows in (slice(0, 8), slice(8, 16)):
                optimizer.zero_grad()
                criterion(module(x[rows]), (0.9 * soft[rows] + 0.1 / 3).float()).backward()
                optimizer.step()
        return recorder.trace()

    with pytest.raises(ValueError, match=r"candidates: the target of row 0 is \[.*\], and the loop passes the loss \["):
        run(soft[4:12].float())
    np.testing.assert_array_equal(run((0.9 * soft[4:12] + 0.1 / 3).float()).times_seen, 1)


_ENTROPY = nn.CrossEntropyLoss()


def _penalty(module: nn.Module) -> torch.Tensor:
    return 0.01 * sum((p.square().sum() for p in module.parameters()), torch.zeros(()))


def _added(module: Any, loss: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    (loss(module(x), y) + _penalty(module)).backward()


def _apart(module: Any, loss: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    loss(module(x), y).backward()
    _penalty(module).backward()


def _two_roots(module: Any, loss: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    torch.autograd.backward([loss(module(x), y), _penalty(module)])


def _alone(module: Any, loss: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    (loss(module(x), y) + 3).backward()


def _run(backward: Callable[..., None], mode: str = "hooks", **arguments: Any) -> tuple[Any, list[torch.Tensor]]:
    if mode == "ghost":
        module, optimizer, loss, loader = private(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())
    else:
        module, optimizer, loader = private(grad_sample_mode="functorch" if mode == "functorch" else "hooks")
        loss = _ENTROPY
    optimizer = FusedDPOptimizer.replace(optimizer) if mode == "fused" else optimizer
    torch.manual_seed(1)
    with leakcore.record(optimizer, candidates=candidates(), **arguments) as recorder:
        for x, y in loader:
            optimizer.zero_grad()
            backward(module, loss, x, y)
            optimizer.step()
    return recorder.trace(), [p.detach().clone() for p in module.parameters()]


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(
    ("backward", "mode", "named"),
    [
        (_added, "hooks", False), (_added, "functorch", False), (_added, "fused", False), (_added, "hooks", True),
        (_apart, "hooks", False), (_apart, "fused", True), (_two_roots, "hooks", False), (_two_roots, "fused", False),
    ],
)  # fmt: skip
def test_a_penalty_on_parameters_is_named_and_is_in_no_release(
    backward: Any, mode: str, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The run and its trace are bit for bit those without it."""
    criterion = functional.cross_entropy if named else None
    trace, parameters = _run(backward, mode, criterion=criterion)
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "a penalty on the parameters themselves (a regulariser)" in said
    assert "weight_decay=" in said
    caplog.clear()
    other, expected = _run(_alone, mode, criterion=criterion)
    assert not caplog.records
    assert all(torch.equal(a, b) for a, b in zip(parameters, expected, strict=True))
    assert (trace.pair_sum == other.pair_sum).all()


def test_a_penalty_under_ghost_clipping_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"a penalty on the parameters themselves\. Ghost clipping adds its gradient once"
    ):
        _run(_added, "ghost")
    assert _run(_alone, "ghost")[0].steps == 5
    assert _run(_apart, "ghost")[0].steps == 5, "its gradient is added once, whatever the rows"


def test_ghost_clipping_with_a_penalty_is_not_clipped() -> None:
    """Why: one row moves the sum by more than max_grad_norm, here 1e-3."""
    x, y = data()

    def released(rows: int, penalised: bool) -> torch.Tensor:
        torch.manual_seed(0)
        module = GradSampleModuleFastGradientClipping(
            nn.Linear(5, 3), loss_reduction="sum", max_grad_norm=1e-3, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=1e-3,
            expected_batch_size=1, loss_reduction="sum",
        )  # fmt: skip
        loss = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss(reduction="sum"), "sum")
        value = loss(module(x[:rows]), y[:rows])
        (value + 1000 * _penalty(module) if penalised else value).backward()
        optimizer.pre_step()
        return torch.cat([p.grad.flatten() for p in module.parameters()])

    for penalised in (False, True):
        moved = float((released(8, penalised) - released(7, penalised)).norm())
        assert (moved > 1.1e-3) == penalised


class _Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.activations = self.first(x).tanh()
        out: torch.Tensor = self.head(self.activations)
        return out


def _activations(module: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = module._module.activations.square().mean()
    return out


def _by_itself(module: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = module._module.first(x).square().mean()
    return out


@pytest.mark.parametrize("criterion", [None, functional.cross_entropy])
@pytest.mark.parametrize(
    ("term", "how"), [(_activations, "a penalty on activations"), (_by_itself, "Linear called by itself")]
)
def test_a_term_around_the_outputs_is_refused(term: Any, how: str, criterion: Any) -> None:
    x, y = data()
    torch.manual_seed(0)
    module = GradSampleModule(_Kept())
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8
    )
    message = (
        rf"goes back to the model's layers around its outputs \({how}\): let the model also return what the term needs"
    )
    with leakcore.record(optimizer, candidates=candidates(), criterion=criterion) as recorder:
        (_ENTROPY(module(x[:8]), y[:8]) + term(module, x[:8])).backward()
        with pytest.raises(ValueError, match=message):
            optimizer.step()
    assert recorder.steps == 0


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (
            lambda loss, out, y: loss(out, y) + 0.1 * out.square().mean(),
            "adds a term that also goes back to the model's outputs",
        ),
        (lambda loss, out, y: loss(out, y) + loss(out, (y + 1) % 3), "is called 2 times for one backward pass"),
        (lambda loss, out, y: (loss(out, y) + loss(out, (y + 1) % 3)) / 2, "is called 2 times for one backward pass"),
        (lambda loss, out, y: loss(out, y) + nn.MSELoss()(out, torch.zeros_like(out)), "and another MSELoss"),
    ],
)
@pytest.mark.parametrize("mode", ["hooks", "fused", "ghost", "named"])
def test_more_than_the_criterion_is_refused(whole: Any, message: str, mode: str) -> None:
    """Where the criterion is the module that the loop calls, too."""

    def backward(module: Any, loss: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        whole(loss, module(x), y).backward()

    named = mode == "named"
    if named and "MSELoss" in message:
        message = "adds a term that also goes back to the model's outputs"
    with pytest.raises(ValueError, match=f"criterion: CrossEntropyLoss .*{message}"):
        _run(backward, "hooks" if named else mode, criterion=_ENTROPY if named else None)


@pytest.mark.parametrize("named", [True, False])
def test_a_multiplied_loss_is_recorded(named: bool) -> None:
    """The candidates' gradients equal the loop's: a 64th as long, and none is clipped."""

    def backward(module: Any, loss: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        (loss(module(x), y) / 64).backward()

    assert _run(_alone)[0].clipped_share.min() > 0
    criterion = (lambda outputs, y: functional.cross_entropy(outputs, y) / 64) if named else None
    trace = _run(backward, criterion=criterion)[0]
    assert trace.clipped_share.max() == 0


def test_the_mean_over_all_values_of_rows_is_the_loops() -> None:
    """Three values a row, and the loop takes their mean: a row's gradient is a third of the sum's."""
    x, y = candidates()
    targets = functional.one_hot(y, 3).float()
    traces = []
    for reduction, criterion in (("none", None), ("mean", None), ("none", lambda o, t: (o - t).square().mean())):
        module, optimizer, _ = private(max_grad_norm=100.0)
        with leakcore.record(optimizer, candidates=(x, targets), criterion=criterion) as recorder:
            nn.MSELoss(reduction=reduction)(module(x[:6]), targets[:6]).mean().backward()
            optimizer.step()
        traces.append(torch.from_numpy(recorder.trace().pair_sum))
    for trace in traces[1:]:
        torch.testing.assert_close(trace, traces[0], rtol=1e-5, atol=1e-7)


def test_torch_is_left_as_it_was() -> None:
    before = torch.autograd.backward
    _run(_alone)
    assert torch.autograd.backward is before
