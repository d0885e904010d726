"""Which loss a recorded loop is said to minimise."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.loss import _Loss

import leakcore

pytest.importorskip("opacus")
from opacus.utils.batch_memory_manager import BatchMemoryManager

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
