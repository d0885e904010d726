"""What a loop adds to the criterion's value is noticed and named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import leakcore
from leakcore.dpsgd import FusedDPOptimizer

pytest.importorskip("opacus")
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import candidates, data, private

pytestmark = IGNORED
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
