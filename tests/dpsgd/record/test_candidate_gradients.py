"""Candidates' gradients are autograd's, by every route and for models of every kind."""

from __future__ import annotations

import copy
import logging
import random
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import leakcore
from leakcore.dpsgd import FusedDPOptimizer, Trace
from leakcore.gradients.module_state import State

pytest.importorskip("opacus")
from opacus import PrivacyEngine
from opacus.layers import DPGRU, DPLSTM, DPRNN

from leakcore.dpsgd.record import candidate_gradients
from leakcore.dpsgd.record.candidate_gradients import CandidateGradients, Route, RowsByLayer, UnknownLayerError
from leakcore.dpsgd.record.candidates import CallForm, read_candidates
from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record import awkward_models
from tests.dpsgd.record.awkward_models import MODELS, REFUSED, Base
from tests.dpsgd.record.recorded_runs import MEMBERS, OTHERS, candidates, data, loop, private
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


def _private(module: nn.Module, **settings: Any) -> Any:
    x, y = data()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
    return PrivacyEngine(accountant="rdp").make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.5), data_loader=loader,
        noise_generator=torch.Generator().manual_seed(3), **{"noise_multiplier": 1.0, "max_grad_norm": 0.4, **settings},
    )  # fmt: skip


def _seed() -> None:
    """Every generator, and what models keep in their module."""
    awkward_models._BY_SIZE.clear()
    awkward_models.GlobalCache.shared.clear()
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)


def _state(module: nn.Module) -> list[Any]:
    """All that a run leaves: parameters, buffers, and the next number of each generator."""
    own = module._module
    state = [*(p.detach().clone() for p in own.parameters()), *(b.clone() for b in own.buffers())]
    state += [torch.rand(()), np.random.random(), random.random()]  # noqa: NPY002
    for name in ("last", "calls", "log", "recent", "shared", "seen"):
        state.append(getattr(own, name, None))
    state.append([awkward_models._BY_SIZE[key] for key in sorted(awkward_models._BY_SIZE)])
    if hasattr(own, "helper"):
        state += [own.helper.count, own.helper.memory, len(own.by_size)]
    if hasattr(own, "generator"):
        state += [torch.rand((), generator=own.generator), own.numpy.random(), own.python.random()]
    return state


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if hasattr(a, "__len__"):
        return len(a) == len(b) and all(_same(c, d) for c, d in zip(a, b, strict=True))
    return bool(a == b)


def _gradients(optimizer: Any, module: nn.Module, loss: Any, x: Any, y: Any, route: Route) -> CandidateGradients:
    rows = read_candidates((x, y))
    return CandidateGradients(optimizer, module, loss, CallForm(rows, module, (x,), {}), 1 << 20, route, 4)


@pytest.mark.parametrize("mode", ["hooks", "fused"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_run_is_the_same_with_and_without_record(kind: type[Base], mode: str) -> None:
    states = []
    for recording in (False, True):
        torch.manual_seed(0)
        module, optimizer, loader = _private(kind())
        optimizer = FusedDPOptimizer.replace(optimizer) if mode == "fused" else optimizer
        recorder = leakcore.record(optimizer, candidates=candidates())
        _seed()
        if recording:
            recorder.__enter__()
        for _ in range(2):
            for x, y in loader:
                if len(x) > 1:
                    optimizer.zero_grad()
                    nn.CrossEntropyLoss()(MODELS[kind](module(x)), y).backward()
                    optimizer.step()
        if recording:
            recorder.__exit__(None, None, None)
        states.append(_state(module))
    assert all(_same(a, b) for a, b in zip(*states, strict=True))
    trace = recorder.trace()
    assert trace.steps >= 3
    assert trace.times_seen[:MEMBERS].sum() >= 5
    assert trace.times_seen[MEMBERS:].sum() == 0


def _optimizer(module: nn.Module) -> Any:
    parameters = [p for p in module.parameters() if p.requires_grad]
    return types.SimpleNamespace(params=parameters, loss_reduction="mean", max_grad_norm=1.0)


def _by_autograd(module: nn.Module, loss: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A model of its own for each row, in evaluation mode. Of two equal rows where it takes no single one."""
    rows = []
    logs = [(log, len(log)) for log in (awkward_models.GlobalCache.shared, getattr(module, "seen", []))]
    for i in range(len(x)):
        alone = copy.deepcopy(module).eval()
        State.seed(4, i)
        times = 2 if type(module).__name__ in ("Squeezed", "ManyRows") else 1
        loss(alone(x[i : i + 1].repeat(times, 1)), y[i : i + 1].repeat(times)).backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in alone.parameters() if p.requires_grad]
        rows.append(torch.cat([g.flatten() for g in grads]))
        for log, length in logs:
            del log[length:]
        awkward_models._BY_SIZE.pop(times, None)
    return torch.stack(rows)


@pytest.mark.full(keep=13)
@pytest.mark.parametrize("kind", [*MODELS, *REFUSED])
def test_gradients_match_each_row_alone(kind: type[Base]) -> None:
    """By the route that is chosen, one by one, and in parts of two: the same."""
    torch.manual_seed(0)
    module = kind().double()
    x, y = candidates()
    x = x.double()

    def loss(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy({**MODELS, **REFUSED}[kind](outputs), targets)

    _seed()
    module(x.clone())
    expected = _by_autograd(module, loss, x, y)
    before = copy.deepcopy(module.state_dict())
    for one_by_one in (False, True):
        optimizer = _optimizer(module)
        gradients = _gradients(optimizer, module, loss, x, y, Route(one_by_one))
        rows = gradients._gradients(np.arange(len(x)))
        torch.testing.assert_close(rows, expected, rtol=1e-9, atol=1e-12)
        parts = [gradients._gradients(np.array(some)) for some in ([3, 1], [0, 2])]
        torch.testing.assert_close(torch.cat(parts), expected[[3, 1, 0, 2]], rtol=1e-9, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values(), strict=True))
    assert all(p.grad is None for p in module.parameters())


class _Packed(nn.Module):
    """Rows of several lengths, as the first number of each says."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.recurrent, self.head = kind(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = (x[:, 0].abs() * 3).long().clamp(1, 5)
        packed = nn.utils.rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        logits: torch.Tensor = self.head(out.sum(1))
        return logits


class _Trimmed(nn.Module):
    """Words, cut at the longest row of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x.abs() * 3).long().clamp(max=8)
        words = words[:, : max(1, int((words != 0).sum(1).max()))]
        logits: torch.Tensor = self.head((self.words(words) * (words != 0).unsqueeze(-1)).sum(1))
        return logits


@pytest.mark.parametrize("make", [
    lambda: _Packed(DPLSTM), lambda: _Packed(DPGRU), lambda: _Packed(DPRNN), lambda: _Packed(nn.LSTM), _Trimmed,
])  # fmt: skip
def test_rows_of_several_lengths_go_one_by_one(make: Any) -> None:
    torch.manual_seed(0)
    module, (x, y), route = make().double(), candidates(), Route()
    gradients = _gradients(_optimizer(module), module, nn.CrossEntropyLoss(), x.double(), y, route)
    rows = gradients._gradients(np.arange(len(x)))
    torch.testing.assert_close(rows, _by_autograd(module, nn.CrossEntropyLoss(), x.double(), y), rtol=1e-9, atol=1e-12)
    assert route.one_by_one


def test_a_model_that_vmap_takes_goes_all_at_once(caplog: pytest.LogCaptureFixture) -> None:
    module, (x, y) = Base().double(), candidates()
    route = Route()
    gradients = _gradients(_optimizer(module), module, nn.CrossEntropyLoss(), x.double(), y, route)
    rows = gradients._gradients(np.arange(len(x)))
    assert (route.one_by_one, route.checked) == (False, True)
    torch.testing.assert_close(rows, _by_autograd(module, nn.CrossEntropyLoss(), x.double(), y))
    assert not caplog.records


def test_the_route_is_said_once_with_its_cost(caplog: pytest.LogCaptureFixture) -> None:
    module, optimizer, loader = _private(next(iter(MODELS))())
    with caplog.at_level(logging.WARNING, "leakcore"), leakcore.record(optimizer, candidates=candidates()):
        for x, y in [*loader, *loader]:
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(module(x), y).backward()
            optimizer.step()
    (said,) = [r.getMessage() for r in caplog.records]
    assert "one by one, which takes about" in said
    assert "for 11 candidates" in said


class _Later(Base):
    """Its control flow depends on data only from the third pass on, as a schedule's may."""

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        h = super().hidden(x)
        return h.clamp(-9, 9) if getattr(self, "late", False) and h.abs().max().item() > 9 else h


def test_a_model_that_vmap_takes_no_longer_is_recorded_on() -> None:
    module, optimizer, loader = _private(_Later())
    with leakcore.record(optimizer, candidates=candidates()) as recorder:
        for k, (x, y) in enumerate([*loader, *loader]):
            module._module.late = k > 1
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(module(x), y).backward()
            optimizer.step()
            assert recorder._route.one_by_one == (k > 2), "vmap is asked in steps 1, 2 and 4"
    assert recorder.trace().steps == 4


class _TrainsOnly(Base):
    """Cannot be evaluated by itself at all."""

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            raise NotImplementedError("no evaluation mode")
        return super().hidden(x)


class _FailsLater(Base):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and getattr(self, "late", False):
            raise RuntimeError("no longer")
        return super().hidden(x)


@pytest.mark.parametrize(("kind", "step"), [(_TrainsOnly, 1), (_FailsLater, 3)])
def test_a_recording_that_fails_says_so_at_once_and_lets_the_loop_go_on(
    kind: type[Base], step: int, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """With the parameters of a run that is not recorded. It is said once, and once more when it is given up."""
    states = []
    for recording in (False, True):
        torch.manual_seed(0)
        module, optimizer, loader = _private(kind())
        recorder = leakcore.record(optimizer, candidates=candidates(), out=tmp_path / "trace.npz")
        _seed()
        if recording:
            recorder.__enter__()
        for k, (x, y) in enumerate([*loader, *loader, *loader]):
            module._module.late = k > 1
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(module(x), y).backward()
            optimizer.step()
            if recording:
                said = [r.getMessage() for r in caplog.records if "not recorded" in r.getMessage()]
                assert len(said) == (k + 1 >= step) + (k + 1 >= step + 2)
        if recording:
            recorder.__exit__(None, None, None)
        states.append(_state(module))
    assert all(_same(a, b) for a, b in zip(*states, strict=True))
    assert f"step {step}: model: candidate 0 alone fails with" in said[0]
    assert "it and what comes after it are not recorded" in said[1]
    if step == 1:
        with pytest.raises(ValueError, match=r"no step was recorded: step \d: model: candidate 0 alone fails with"):
            recorder.trace()
        assert "no trace was written to" in caplog.records[-1].getMessage()
        assert not (tmp_path / "trace.npz").exists()
    else:
        trace = Trace.load(tmp_path / "trace.npz")
        assert trace.steps == recorder.trace().steps == step - 1
        assert sum(stretch.steps for stretch in trace.unrecorded) == 6 - trace.steps, "which is said of the whole run"


def test_rows_that_turn_out_wrong_end_the_recording_and_its_trace_but_not_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a later step than the first: what was recorded before may be wrong as well."""

    class Turned(Base):
        def hidden(self, x: torch.Tensor) -> torch.Tensor:
            order = torch.arange(len(x)).roll(int(getattr(self, "late", False)))
            return super().hidden(x[order])[order.argsort()]

    module, optimizer, loader = _private(Turned())
    with leakcore.record(optimizer, candidates=candidates()) as recorder:
        for k, (x, y) in enumerate([*loader, *loader]):
            module._module.late = k > 0
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(module(x), y).backward()
            optimizer.step()
    assert any("are not the rows'" in r.getMessage() for r in caplog.records)
    with pytest.raises(ValueError, match="are not the rows'"):
        recorder.trace()


def test_hooks_on_parameters_are_of_the_loop_alone() -> None:
    """They neither change the candidates' gradients nor are called for them."""
    module, calls = Base().double(), []
    for p in module.parameters():
        p.register_hook(lambda g: calls.append(1) or g * 0)
        p.register_post_accumulate_grad_hook(lambda p: calls.append(2))
    x, y = candidates()
    gradients = _gradients(_optimizer(module), module, nn.CrossEntropyLoss(), x.double(), y, Route(one_by_one=True))
    plain = Base().double()
    plain.load_state_dict(module.state_dict())
    rows = gradients._gradients(np.arange(len(x)))
    torch.testing.assert_close(rows, _by_autograd(plain, nn.CrossEntropyLoss(), x.double(), y))
    assert not calls
    functional.cross_entropy(module(x.double()), y).backward()
    assert sorted(calls) == [1] * 4 + [2] * 4
