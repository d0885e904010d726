"""One pass over all candidates gives each row's gradient, and the products, that autograd gives of the row alone."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import leakcore
from leakcore.dpsgd.record import candidate_gradients
from leakcore.dpsgd.record.candidate_gradients import RowsByLayer, UnknownLayerError
from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import MEMBERS, OTHERS, candidates, loop, private
from tests.dpsgd.rows.layer_models import EXAMPLES, Then, dense

pytestmark = IGNORED
_OTHER = (
    "transposed conv", "PReLU", "embedding, sparse", "own parameters", "own sampler", "all steps first", "bag",
    "attention", "DP", "sequence bias, rows second",
)  # fmt: skip
"""Whose layers are of other types, or whose rows nobody can tell from steps."""


def _feed(leaves: list[torch.Tensor]) -> Any:
    return (leaves[0],), {}, leaves[1]


def _alone(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    trained = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for i in range(len(x)):
        loss = functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g).flatten()
                               for p, g in zip(trained, parts, strict=True)]))  # fmt: skip
    return torch.stack(rows)


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if not example.refused])
def test_each_kind_of_layer(name: str) -> None:
    torch.manual_seed(0)
    module = EXAMPLES[name].model().double().eval()
    x, y = EXAMPLES[name].rows(5), torch.arange(5) % 4
    trained = [p for p in module.parameters() if p.requires_grad]
    try:
        quick = RowsByLayer(module, nn.CrossEntropyLoss(), trained)
        rows = quick.gradients([x, y], _feed)
    except (UnknownLayerError, ValueError):
        assert name.startswith(_OTHER), "the layer is of a known type"
        return
    truth = _alone(copy.deepcopy(module), x, y)
    if name.startswith(_OTHER) and not torch.allclose(rows, truth):
        return
    torch.testing.assert_close(rows, truth, rtol=1e-9, atol=1e-12)
    noise, inside, norm = torch.randn(truth.shape[1], dtype=torch.float64), np.array([1, 3]), 0.3
    dots, norms, crossed = quick.products([x, y], _feed, noise, inside, norm)
    clipped = truth * (norm / truth.norm(dim=1, keepdim=True).clamp(min=norm))
    np.testing.assert_allclose(dots, clipped @ noise, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(norms, clipped.norm(dim=1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(crossed, clipped[inside] @ clipped.T, rtol=1e-9, atol=1e-12)


class _InPlace(nn.Module):
    """What follows the layer writes into the layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 3, 2), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(functional.relu_(self.first(x)).flatten(1))
        return out


def test_a_layers_output_may_be_written_into() -> None:
    torch.manual_seed(0)
    module, x, y = _InPlace().double(), torch.randn(6, 1, 3, 3, dtype=torch.float64), torch.arange(6) % 4
    rows = RowsByLayer(module, nn.CrossEntropyLoss(), list(module.parameters())).gradients([x, y], _feed)
    torch.testing.assert_close(rows, _alone(module, x, y))


def test_a_model_that_draws_or_returns_one_loss_is_refused() -> None:
    x, y = dense(6)(5), torch.arange(5) % 4
    noisy = Then(lambda x, a: a(x) + torch.randn_like(x), 6, nn.Linear(6, 6)).double()
    with pytest.raises(UnknownLayerError, match="draws random numbers"):
        RowsByLayer(noisy, nn.CrossEntropyLoss(), list(noisy.parameters())).gradients([x, y], _feed)
    whole = nn.Sequential(nn.Linear(6, 4), nn.Flatten(0)).double()
    with pytest.raises(UnknownLayerError, match="not one value for each row"):
        RowsByLayer(whole, lambda out, _: out.mean(), list(whole.parameters())).gradients([x, y], _feed)


def test_a_run_asks_vmap_again_in_steps_1_2_4_8(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"vmap": [], "by layer": []}

    def heard(kind: str, function: Any) -> Any:
        def call(self: Any, *args: Any) -> Any:
            asked[kind].append(getattr(self, "_step", None))
            return function(self, *args)

        return call

    together = candidate_gradients.CandidateGradients._together
    monkeypatch.setattr(candidate_gradients.CandidateGradients, "_together", heard("vmap", together))
    monkeypatch.setattr(RowsByLayer, "products", heard("by layer", RowsByLayer.products))
    _, steps = _recorded()
    assert (steps, asked["vmap"]) == (10, [0, 1, 3, 7])
    assert len(asked["by layer"]) == 10


@pytest.mark.parametrize("count", [1, 64, 65, 130, 500])
def test_after_the_first_step_vmap_is_asked_about_few_candidates_and_in_time_about_all(count: int) -> None:
    def asked(check: int) -> np.ndarray:
        """In step 2^check; the first step is number 0."""
        gradients: Any = SimpleNamespace(_candidates=range(count), _step=2**check - 1)
        return candidate_gradients.CandidateGradients._asked(gradients)

    checks = [asked(check) for check in range(1, 12)]
    assert all(0 < len(numbers) <= 64 for numbers in checks)
    assert set(np.concatenate(checks)) == set(range(count))


def test_a_row_that_goes_wrong_by_layer_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, _ = _recorded()
    right, calls = RowsByLayer.gradients, []

    def wrong_later(self: Any, *args: Any) -> torch.Tensor:
        rows = right(self, *args)
        calls.append(len(rows))
        return rows * 1.01 if len(calls) > 1 else rows

    products = RowsByLayer.products

    def until_then(self: Any, *args: Any) -> Any:
        assert len(calls) == 1, "used after it was refused"
        return products(self, *args)

    monkeypatch.setattr(RowsByLayer, "gradients", wrong_later)
    monkeypatch.setattr(RowsByLayer, "products", until_then)
    recorder, _ = _recorded()
    np.testing.assert_allclose(recorder.trace().pair_sum, truth.trace().pair_sum, rtol=0, atol=1e-4)


def _recorded(**settings: Any) -> tuple[Any, int]:
    module, optimizer, loader = private()
    with leakcore.record(optimizer, candidates=candidates(), **settings) as recorder:
        loop(module, optimizer, loader, nn.CrossEntropyLoss())
    return recorder, recorder.steps


def test_a_wrong_row_by_layer_is_noticed_and_never_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    truth, _ = _recorded()
    right = RowsByLayer.gradients

    def one_is_wrong(self: Any, *args: Any) -> torch.Tensor:
        rows = right(self, *args)
        rows[3] *= 1.01
        return rows

    monkeypatch.setattr(RowsByLayer, "gradients", one_is_wrong)
    monkeypatch.setattr(RowsByLayer, "products", lambda *_: pytest.fail("it was refused"))
    with caplog.at_level(logging.WARNING, "leakcore"):
        recorder, _ = _recorded()
    np.testing.assert_allclose(recorder.trace().pair_sum, truth.trace().pair_sum, rtol=0, atol=1e-4)
    assert not caplog.records


def test_every_second_step_gives_the_scores_of_these_steps() -> None:
    members = torch.arange(MEMBERS + OTHERS) < MEMBERS
    sums = [np.zeros(MEMBERS + OTHERS)]
    module, optimizer, loader = private()
    with leakcore.record(optimizer, candidates=candidates(), members=members) as recorder:
        torch.manual_seed(1)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                nn.CrossEntropyLoss()(module(x), y).backward()
                optimizer.step()
                sums.append(recorder.trace().membership_likelihood)
    module, optimizer, loader = private()
    with leakcore.record(optimizer, candidates=candidates(), members=members, every=2) as half:
        loop(module, optimizer, loader, nn.CrossEntropyLoss())
    trace = half.trace()
    np.testing.assert_allclose(trace.membership_likelihood, sum(np.diff(sums, axis=0)[::2]), rtol=0, atol=2e-4)
    assert (trace.steps, trace.run_steps, trace.complete) == (5, 10, True)
    report = leakcore.audit.from_trace(trace, delta=1e-5)
    assert report.passed is not False


def test_every_is_refused_where_it_hides_who_is_a_member() -> None:
    _, optimizer, loader = private()
    with pytest.raises(ValueError, match="`every` must be 1 without `members`, got 2"):
        leakcore.record(optimizer, candidates=candidates(), every=2)
    with pytest.raises(ValueError, match="`every` must be 1 with canaries, got 2"):
        leakcore.record(optimizer, canaries=5, sampling=loader, every=2)
    with pytest.raises(ValueError, match="`every` must be at least 1, got 0"):
        leakcore.record(optimizer, candidates=candidates(), every=0)
