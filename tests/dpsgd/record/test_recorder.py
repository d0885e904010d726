"""A recorded run: what the trace holds, loops of every kind, and that the run is as without leakcore."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import leakcore
from leakcore import dpsgd
from leakcore.dpsgd import FusedDPOptimizer, Trace

pytest.importorskip("opacus")
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer, FSDPOptimizerFastGradientClipping
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import MEMBERS, candidates, data, loop, private, recorded

pytestmark = IGNORED


def test_scores_match_a_literal_computation() -> None:
    """Every state, release and batch kept; each candidate's gradient by autograd, one at a time."""
    module, optimizer, loader = private()
    steps: list[Any] = []
    account = optimizer.step_hook

    def keep(o: Any) -> None:
        account(o)
        release = torch.cat([p.grad.flatten() for p in o.params]).double() * o.expected_batch_size
        total = torch.cat([p.summed_grad.flatten() for p in o.params]).double()
        steps.append((copy.deepcopy(module._module.state_dict()), release - total, batches.pop()))

    batches: list[torch.Tensor] = []
    optimizer.attach_step_hook(keep)

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, y)

    handle = module.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0].clone()))
    with leakcore.record(optimizer, candidates=candidates(), criterion=loss, sampling=0.2) as recorder:
        loop(module, optimizer, loader, loss)
    handle.remove()
    trace = recorder.trace()
    x, y = candidates()
    n = len(x)
    expected = [np.zeros(n), np.zeros(n), np.zeros((n, n)), np.zeros((n, n))]
    plain = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Identity(), nn.Linear(4, 3)).double()
    for state, noise, batch in steps:
        plain.load_state_dict(state)
        rows = []
        for i in range(n):
            plain.zero_grad()
            functional.cross_entropy(plain(x[i : i + 1].double()), y[i : i + 1]).backward()
            g = torch.cat([p.grad.flatten() for p in plain.parameters()])
            rows.append(g * min(1.0, 0.4 / float(g.norm())))
        c = torch.stack(rows)
        inside = [i for i in range(n) if any(torch.equal(row, x[i]) for row in batch)]
        alone = torch.stack([noise + (c[i] if i in inside else 0) for i in range(n)])
        together = noise + c[inside].sum(0)

        def ratio(target: torch.Tensor, c: torch.Tensor = c) -> np.ndarray:
            exponent = (2 * (target @ c.T) - (c**2).sum(1)) / (2 * (1.5 * 0.4) ** 2)
            return torch.log(0.8 + 0.2 * torch.exp(exponent)).numpy()

        expected[0] += (c @ together).numpy() / 0.16
        expected[1] += ratio(together)
        expected[2] += (alone @ c.T).numpy() / 0.16
        expected[3] += ratio(alone)
    result = (trace.membership_sum, trace.membership_likelihood, trace.pair_sum, trace.pair_likelihood)
    for a, b in zip(result, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-4)  # float32 parameters and gradients, 10 steps
    assert trace.steps == len(steps) == 10
    assert trace.members[:MEMBERS].sum() == (trace.times_seen > 0).sum()
    assert not trace.members[MEMBERS:].any()
    np.testing.assert_array_equal(trace.batch_rows, [len(batch) for *_, batch in steps])


@pytest.mark.full
def test_the_run_is_not_changed_and_the_rate_comes_from_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsgd.Recorder, "memory", 1)
    loss = nn.CrossEntropyLoss()
    plain = loop(*private(), loss)
    module, optimizer, loader = private()
    account = optimizer.step_hook
    with leakcore.record(optimizer, candidates=candidates()) as recorder:
        watched = loop(module, optimizer, loader, loss)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert optimizer.step_hook is account
    assert recorder.trace().sample_rate == pytest.approx(0.2)
    assert all(m.training for m in module.modules())
    assert all(len(m._forward_hooks) + len(m._backward_hooks) > 0 for m in module._module if list(m.parameters()))


@pytest.mark.full
def test_memory_changes_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    for memory in (1, 1 << 20):
        monkeypatch.setattr(dpsgd.Recorder, "memory", memory)
        module, optimizer, loader = private()
        with leakcore.record(optimizer, candidates=candidates()) as recorder:
            loop(module, optimizer, loader, nn.CrossEntropyLoss())
        traces.append(recorder.trace())
    np.testing.assert_allclose(traces[0].pair_sum, traces[1].pair_sum, rtol=0, atol=1e-4)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("mode", ["memory manager", "ghost", "fused"])
def test_opacus_other_ways_of_stepping(mode: str) -> None:
    """Physical batches of 3; ghost clipping; our own optimizer: schedule, membership and noise are seen in each."""
    if mode == "ghost":
        loss = nn.CrossEntropyLoss()
        module, optimizer, loss, loader = private(grad_sample_mode="ghost", criterion=loss)
    else:
        (module, optimizer, loader), loss = private(), nn.CrossEntropyLoss()
    if mode == "fused":
        optimizer = leakcore.dpsgd.FusedDPOptimizer.replace(optimizer)
    with leakcore.record(optimizer, candidates=candidates(), sampling=0.2) as recorder:
        if mode == "memory manager":
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts:
                loop(module, optimizer, parts, loss, epochs=4)
        else:
            loop(module, optimizer, loader, loss, epochs=4)
    trace = recorder.trace()
    assert trace.steps == 20
    assert 4 < trace.batch_rows.mean() < 12
    assert trace.times_seen[:MEMBERS].min() >= 1
    assert trace.times_seen[MEMBERS:].max() == 0
    noise = (trace.pair_sum[MEMBERS] / np.sqrt(20)) / 1.5  # all candidates long: ⟨c, noise⟩/C² ~ N(0, σ²) per step
    assert np.abs(noise).max() < 4.5


def test_a_trace_survives_an_exception_and_the_file(tmp_path: Path) -> None:
    module, optimizer, loader = private()
    path = tmp_path / "trace.npz"
    recorder = leakcore.record(optimizer, candidates=candidates(), out=path, members=np.arange(11) < 6)

    def interrupted() -> None:
        with recorder:
            loop(module, optimizer, loader, nn.CrossEntropyLoss(), epochs=1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    loaded, original = Trace.load(path), recorder.trace()
    assert loaded.steps == 5
    assert loaded.members_given
    assert loaded.sample_rate == original.sample_rate
    for name in ("pair_sum", "pair_likelihood", "members", "noise_multiplier"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(original, name))


def test_files_that_are_not_a_trace_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(ValueError, match="cannot be read as a trace"):
        Trace.load(text)
    other = tmp_path / "other.npz"
    np.savez(other, a=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz: cannot be read as a trace of leakcore \(holds no entry 'facts'"):
        Trace.load(other)
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, facts=np.array({"a": 1}, dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="trace of leakcore"):
        Trace.load(pickled)
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "none.npz")


def test_what_is_missing_is_named_in_the_first_step() -> None:
    module, optimizer, loader = private()

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, y)

    with (
        pytest.raises(ValueError, match="criterion: no loss of"),
        leakcore.record(optimizer, candidates=candidates()) as recorder,
    ):
        loop(module, optimizer, loader, loss)
    with pytest.raises(ValueError, match="no step was recorded"):
        recorder.trace()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"candidates": torch.zeros(3, 5)}, TypeError, "must be a pair"),
        ({"candidates": (torch.zeros(3, 5), torch.zeros(2))}, ValueError, "as many inputs as targets"),
        (
            {"candidates": (torch.zeros(3, 5), ["a", "b", "c"])},
            TypeError,
            r"`candidates\[1\]` must be a tensor or an array of",
        ),
        (
            {"candidates": candidates(), "members": [True]},
            ValueError,
            r"`members` must be bool of shape \(11,\), got bool of shape \(1,\)",
        ),
        ({"candidates": candidates(), "sampling": 1.5}, ValueError, r"`sampling` must be in \[0, 1\], got 1.5"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    _, optimizer, _ = private()
    with pytest.raises(error, match=message):
        leakcore.record(optimizer, **arguments)
    with pytest.raises(TypeError, match="must be Opacus's DPOptimizer"):
        leakcore.record(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0), candidates=candidates())


@pytest.mark.parametrize("clipping", ["per_layer", "adaptive"])
def test_other_clipping_is_refused_by_type(clipping: str) -> None:
    settings: dict[str, Any] = {"clipping": clipping}
    if clipping == "per_layer":
        settings["max_grad_norm"] = [0.4] * 4
    else:
        settings |= {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 1.0,
                     "min_clipbound": 0.1, "unclipped_num_std": 2.0}  # fmt: skip
    _, optimizer, _ = private(**settings)
    kind = type(optimizer).__name__
    with pytest.raises(TypeError, match=f"`optimizer` must be Opacus's DPOptimizer, with flat or ghost .*, got {kind}"):
        leakcore.record(optimizer, candidates=candidates())


def test_shards_of_parameters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    optimizer = FSDPOptimizerFastGradientClipping(
        torch.optim.SGD(nn.Linear(5, 3).parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=8,
    )  # fmt: skip
    with pytest.raises(TypeError, match=r"`optimizer` .* whose processes have a shard of each parameter"):
        leakcore.record(optimizer, candidates=candidates())


def test_adaptive_ghost_clipping_is_refused_in_the_first_step() -> None:
    """Its optimizer is that of ghost clipping: only the step shows it."""
    torch.manual_seed(0)
    x, y = data()
    plain = nn.Linear(5, 3)
    module, optimizer, loss, loader = PrivacyEngineAdaptiveClipping(accountant="rdp").make_private(
        module=plain, optimizer=torch.optim.SGD(plain.parameters(), lr=0.5), criterion=nn.CrossEntropyLoss(),
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20),
        noise_multiplier=0.1, max_grad_norm=1.0, grad_sample_mode="ghost",
    )  # fmt: skip
    with (
        pytest.raises(TypeError, match=r"`optimizer` must clip by a fixed.*, got one that clips adaptively"),
        leakcore.record(optimizer, candidates=candidates()),
    ):
        loop(module, optimizer, loader, loss)


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ((torch.zeros(3, 6), torch.zeros(3, dtype=torch.int64)),
         r"inputs of shape \(3, 6\) and type torch.float32 do not fit the model \(mat1 and mat2"),
        ((torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)),
         r"inputs of shape \(3, 5\) and type torch.int64 do not fit the model"),
        ((torch.zeros(3, 5), torch.zeros(3, 2)),
         r"targets of shape \(3, 2\) and type torch.float32 do not fit the criterion"),
    ],
)  # fmt: skip
def test_candidates_that_do_not_fit_are_named_in_the_first_step(candidates: Any, message: str) -> None:
    candidates[0][:, 0] = torch.arange(3)
    with pytest.raises(ValueError, match=f"candidates: {message}"):
        recorded(nn.CrossEntropyLoss(), candidates=candidates)


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
