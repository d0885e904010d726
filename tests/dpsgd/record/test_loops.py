"""Loops that `leakcore.record` watches: batches of no rows, two at a time, several backward passes a step."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leakcore
from leakcore.dpsgd import FusedDPOptimizer

pytest.importorskip("opacus")
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import candidates, data, loop, private, recorded

pytestmark = IGNORED


def test_a_batch_that_poisson_sampling_leaves_empty_is_a_step() -> None:
    x, y = data()
    module, optimizer, _ = private()
    with leakcore.record(optimizer, candidates=candidates()) as recorder:
        for rows in (slice(0, 5), slice(0, 0), slice(4, 9)):
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(module(x[rows]), y[rows]).backward()
            optimizer.step()
    trace = recorder.trace()
    np.testing.assert_array_equal(trace.batch_rows, [5, 0, 5])
    np.testing.assert_array_equal(trace.times_seen[:6], [1, 1, 1, 1, 2, 1])
    assert np.isfinite(trace.membership_likelihood).all()


def test_two_runs_recorded_at_a_time_are_those_recorded_alone() -> None:
    loss = nn.CrossEntropyLoss()
    alone = recorded(loss)
    module, optimizer, loader = private()
    other, its_optimizer, _ = private()
    x, y = data()
    with (
        leakcore.record(optimizer, candidates=candidates()) as recorder,
        leakcore.record(its_optimizer, candidates=candidates()) as its_recorder,
    ):

        def both(outputs: torch.Tensor, targets: torch.Tensor) -> Any:
            with torch.random.fork_rng():
                its_optimizer.zero_grad()
                nn.CrossEntropyLoss()(other(x[:7]), y[:7]).backward()
                its_optimizer.step()
            return loss(outputs, targets)

        loop(module, optimizer, loader, both)
    np.testing.assert_array_equal(recorder.trace().pair_sum, alone.pair_sum)
    np.testing.assert_array_equal(its_recorder.trace().batch_rows, [7] * 10)


def _accumulating(every: int, **arguments: Any) -> Any:
    module, optimizer, loader = private(poisson_sampling=False)
    with leakcore.record(optimizer, candidates=candidates(), **arguments) as recorder:
        for k, (x, y) in enumerate([*loader, *loader]):
            nn.CrossEntropyLoss()(module(x), y).backward()
            if k % every == every - 1:
                optimizer.step()
                optimizer.zero_grad()
    return recorder.trace()


def test_batches_that_together_are_all_rows_are_a_full_batch() -> None:
    trace = _accumulating(5)
    assert trace.sample_rate == 1.0
    np.testing.assert_array_equal(trace.batch_rows, [40, 40])


def test_accumulated_batches_that_are_not_a_poisson_sample_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"accumulates 2 batches, each sampled at q = 0\.2: together they are neither a Poisson"
    ):
        _accumulating(2)
    assert _accumulating(2, sampling=0.4).sample_rate == 0.4, "where the caller says so"


def test_rows_that_no_loss_goes_back_from_are_not_of_the_batch() -> None:
    """Such as a look at others in training mode, whose graph must be let go (Opacus's own optimizer refuses it)."""
    x, y = data()
    module, optimizer, _ = private()
    optimizer = FusedDPOptimizer.replace(optimizer)
    loss = nn.CrossEntropyLoss()
    with leakcore.record(optimizer, candidates=candidates()) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            module(x[3:9])
            loss(module(x[:2]), y[:2]).backward()
            module(x[3:9])
            optimizer.step()
    trace = recorder.trace()
    np.testing.assert_array_equal(trace.batch_rows, [2, 2])
    np.testing.assert_array_equal(trace.times_seen[:6], [2, 2, 0, 0, 0, 0])


class _Outer(nn.Module):
    """Its inputs are not a tensor, and the module in it holds all parameters, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 3))

    def forward(self, inputs: Any) -> torch.Tensor:
        output: torch.Tensor = self.inner(inputs["x"] if isinstance(inputs, dict) else inputs)
        return output * 3


def test_the_model_is_the_outermost_module_whatever_its_inputs() -> None:
    x, y = data()
    values = []
    for wrap in (lambda rows: {"x": rows}, lambda rows: rows):
        torch.manual_seed(0)
        module = GradSampleModule(_Outer())
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=1.0,
            expected_batch_size=10,
        )  # fmt: skip
        with leakcore.record(optimizer, candidates=candidates(), members=torch.arange(11) < 6) as recorder:
            nn.CrossEntropyLoss()(module(wrap(x[:10])), y[:10]).backward()
            optimizer.step()
        assert recorder._model is module
        values.append(recorder.trace().clipped_share)
    np.testing.assert_array_equal(*values)


def _convolution(**settings: Any) -> Any:
    return nn.Sequential(nn.Conv2d(2, 4, 3, **settings), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Opacus, of whole numbers under functorch
@pytest.mark.parametrize(
    ("module", "shape", "layout", "message"),
    [
        (_convolution(padding=1, padding_mode="reflect"), (2, 6, 6), torch.contiguous_format, "padding_mode='reflect'"),
        (_convolution(padding=1), (2, 6, 6), torch.channels_last, "not contiguous, such as channels_last"),
        (_convolution(), (2, 6, 6), torch.channels_last, "not contiguous, such as channels_last"),
        (_convolution(padding=1), (2, 6, 6), torch.contiguous_format, None),
        (nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3)), (5,), None, "padding_idx=0"),
    ],
)
def test_layers_whose_rows_opacus_gets_wrong_are_refused(module: Any, shape: Any, layout: Any, message: Any) -> None:
    """Checked by Opacus's own per-sample gradients; by functorch they are right, and so are FusedDPOptimizer's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 9, (8, *shape), generator=generator)
    if layout is not None:
        x = x.float().contiguous(memory_format=layout)
    y, loss = torch.arange(8) % 3, nn.CrossEntropyLoss()
    module(x)
    alone = [torch.autograd.grad(loss(module(x[i : i + 1]), y[i : i + 1]), [*module.parameters()]) for i in range(8)]
    for kind in ("hooks", "functorch", "fused"):
        wrapped = GradSampleModule(copy.deepcopy(module), force_functorch=kind == "functorch")
        optimizer: Any = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=1.0,
            expected_batch_size=8,
        )  # fmt: skip
        if kind == "fused":
            optimizer = FusedDPOptimizer.replace(optimizer, module=wrapped)
        refused = message is not None and kind == "hooks"
        with (
            pytest.raises(ValueError, match=message) if refused else contextlib.nullcontext(),
            leakcore.record(optimizer, candidates=(x, y)) as recorder,
        ):
            loss(wrapped(x), y).backward()
            if kind != "fused":
                rows = zip(*alone, strict=True)
                both = zip(rows, optimizer.grad_samples, strict=True)
                assert any(bool(((torch.stack(r) - g).abs() > 0.01).any()) for r, g in both) == refused
            optimizer.step()
        assert recorder.steps == (0 if refused else 1)


def test_an_optimizer_that_steps_after_another_of_the_same_model_is_refused() -> None:
    x, y = data()
    for first in (0, 1):
        torch.manual_seed(0)
        layers = [nn.Linear(5, 4), nn.Linear(4, 3)]
        module = GradSampleModule(nn.Sequential(*layers))
        optimizers = [
            DPOptimizer(
                torch.optim.SGD(layer.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=1.0,
                expected_batch_size=40,
            )
            for layer in layers
        ]  # fmt: skip
        with (
            pytest.raises(ValueError, match=r"were changed between .* and this step")
            if first
            else contextlib.nullcontext(),
            leakcore.record(optimizers[1 - first], candidates=candidates(), sampling=1.0) as recorder,
        ):
            nn.CrossEntropyLoss()(module(x), y).backward()
            for optimizer in optimizers[::-1]:
                optimizer.step()
        assert recorder.steps == 1 - first
