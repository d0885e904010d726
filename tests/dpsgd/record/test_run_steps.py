"""A recorder knows which steps of its run it did not see, wherever these lie, or says that it does not."""

from __future__ import annotations

import functools
import gc
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leakcore
from leakcore.dpsgd import Trace

pytest.importorskip("opacus")
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import Run, unrecorded

pytestmark = IGNORED
momentum = functools.partial(torch.optim.SGD, momentum=0.9)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("accountant", ["rdp", "gdp", "prv"])
def test_steps_before_between_and_after_are_read_of_every_accountant(accountant: str) -> None:
    run = Run(accountant=accountant)
    run.train(3)
    recorder = run.part()
    trace = recorder.trace()
    assert trace.unrecorded == ((0, 1.5, 0.2, 15),)
    assert (trace.steps, trace.run_steps, trace.complete) == (5, 20, True)
    run.train(1)
    assert unrecorded(recorder.trace()) == [(0, 15), (5, 5)], "what was trained since"
    with recorder:
        run.train(1)
    assert unrecorded(recorder.trace()) == [(0, 15), (5, 5)]
    assert recorder.trace().run_steps == 30
    second = run.part().trace()
    assert unrecorded(second) == [(0, 30)]


def test_a_run_recorded_from_its_first_step_has_no_other_steps() -> None:
    trace = Run().part(2).trace()
    assert (trace.unrecorded, trace.complete, trace.run_steps) == ((), True, 10)


@pytest.mark.parametrize("mode", ["memory manager", "ghost", "fused", "fused from the middle"])
def test_every_way_of_stepping_is_counted(mode: str) -> None:
    run = Run(**({"grad_sample_mode": "ghost", "criterion": torch.nn.CrossEntropyLoss()} if mode == "ghost" else {}))
    if mode == "fused":
        run.optimizer = leakcore.dpsgd.FusedDPOptimizer.replace(run.optimizer, run.module)
    if mode == "memory manager":
        with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) as parts:
            run.train(2, loader=parts)
            with run.record() as recorder:
                run.train(1, loader=parts)
    else:
        run.train(2)
        if mode == "fused from the middle":
            run.optimizer = leakcore.dpsgd.FusedDPOptimizer.replace(run.optimizer, run.module)
        recorder = run.part()
    trace = recorder.trace()
    assert (unrecorded(trace), trace.steps, trace.complete) == ([(0, 10)], 5, True)


def test_a_schedule_of_noise_is_read_step_by_step() -> None:
    run = Run()
    scheduler = ExponentialNoise(run.optimizer, gamma=0.9)
    run.train(1, scheduler.step)
    with run.record() as recorder:
        run.train(1, scheduler.step)
    trace = recorder.trace()
    everything = [s.noise_multiplier for s in trace.unrecorded] + list(trace.noise_multiplier)
    np.testing.assert_allclose(everything, [s for s, *_ in run.engine.accountant.history])
    assert trace.complete


def test_batches_of_another_size_before_have_their_own_rate() -> None:
    run = Run()
    run.train(1)
    larger = torch.utils.data.DataLoader(run.loader.dataset, batch_size=10)
    run.module, run.optimizer, run.loader = run.engine.make_private(
        module=run.module, optimizer=run.optimizer, data_loader=larger, noise_multiplier=2.0, max_grad_norm=0.4
    )
    trace = run.part().trace()
    assert trace.unrecorded == ((0, 1.5, 0.2, 5),)
    assert (trace.sample_rate, trace.noise_multiplier[0]) == (0.25, 2.0)


def test_one_recorder_takes_no_steps_at_another_rate() -> None:
    run = Run()
    recorder = run.part()
    run.optimizer.attach_step_hook(run.engine.accountant.get_optimizer_hook_fn(sample_rate=0.1))
    with pytest.raises(ValueError, match=r"optimizer: its hook has q = 0.1, and this recorder's steps have q = 0.2"):
        recorder.__enter__()
    assert run.optimizer.step_hook is not None
    assert recorder.trace().steps == 5


def test_a_rate_that_the_accountant_does_not_have_is_not_given_to_other_steps() -> None:
    run = Run()
    run.train(1)
    run.loader.batch_sampler.sample_rate = 0.3  # the hook of make_private does not know it
    trace = run.part(sampling=0.3).trace()
    assert trace.unrecorded == ((0, 1.5, None, 5),)


def test_a_step_that_cannot_be_recorded_was_released() -> None:
    """The accountant was told of it, so it belongs to the run; the recorder has nothing of it, and goes on after it."""
    run = Run()
    with run.record() as recorder:
        run.train(1)
        run.optimizer.zero_grad()
        x, y = run.loader.dataset.tensors
        (run.loss(run.module(x[:8]), y[:8]) / 3).backward()  # another loss than the criterion
        run.optimizer.step()
        run.train(1)
    trace = recorder.trace()
    assert (unrecorded(trace), trace.steps, trace.complete) == ([(5, 1)], 10, True)
    assert trace.times_seen.max() <= 10


def test_two_optimizers_of_one_accountant_make_one_run() -> None:
    """As of a network and its critic: the recorded one's steps alternate with the other's."""
    run, other = Run(), Run(seed=5)
    other.optimizer.attach_step_hook(run.engine.accountant.get_optimizer_hook_fn(sample_rate=0.2))
    with run.record() as recorder:
        for _ in range(2):
            run.train(1)
            other.train(1)
    assert unrecorded(recorder.trace()) == [(5, 5), (10, 5)]
    assert recorder.trace().run_steps == sum(n for *_, n in run.engine.accountant.history) == 20


def _around(run: Run, kind: str) -> Any:
    account = run.optimizer.step_hook

    class Watching:
        def __init__(self) -> None:
            self.before, self.engine = account, run.engine

        def __call__(self, optimizer: Any) -> None:
            self.before(optimizer)

        def tell(self, optimizer: Any) -> None:
            self.engine.accountant.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=0.2)

    return {
        "function": lambda o: account(o),
        "partial": functools.partial(lambda hook, o: hook(o), account),
        "object": Watching(),
        "method": Watching().tell,
        "its own": lambda o: run.engine.accountant.step(noise_multiplier=o.noise_multiplier, sample_rate=0.2),
    }[kind]


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("kind", ["function", "partial", "object", "method", "its own"])
def test_the_accountant_is_found_behind_hooks_around_its_own(kind: str) -> None:
    run = Run()
    run.train(2)
    run.optimizer.attach_step_hook(_around(run, kind))
    with run.record(sampling=0.2) as outer, run.record(sampling=0.2) as inner:
        run.train(1)
    for recorder in (outer, inner):
        assert (unrecorded(recorder.trace()), recorder.trace().complete) == ([(0, 10)], True)


def test_an_accountant_that_does_not_count_these_steps_proves_nothing() -> None:
    run = Run()
    run.train(2)
    run.optimizer.attach_step_hook(lambda _, accountant=run.engine.accountant: len(accountant.history))  # type: ignore[misc]
    trace = run.part(sampling=0.2).trace()
    assert not trace.complete
    account = run.engine.accountant.get_optimizer_hook_fn(sample_rate=0.2)

    def twice(optimizer: Any) -> None:
        account(optimizer)
        account(optimizer)

    run.optimizer.attach_step_hook(twice)
    assert not run.part(sampling=0.2).trace().complete


def test_steps_that_the_accountant_was_not_told_are_counted() -> None:
    run = Run()
    recorder, account = run.part(), run.optimizer.step_hook
    run.optimizer.attach_step_hook(None)
    run.train(1)
    run.optimizer.attach_step_hook(account)
    with recorder:
        run.train(1)
    trace = recorder.trace()
    assert (trace.complete, trace.run_steps) == (False, 15)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("make", [torch.optim.Adam, momentum])
def test_a_resumed_run_whose_accountant_was_not_loaded_is_not_whole(make: Any, tmp_path: Path) -> None:
    """Case of the kind: the accountant says 0 steps, the optimizer's state is of a run."""
    run = Run(make)
    run.train(3)
    run.save(tmp_path / "checkpoint.pt")
    resumed = Run(make)
    resumed.load(tmp_path / "checkpoint.pt", accountant=False)
    trace = resumed.part().trace()
    assert not trace.complete
    assert trace.run_steps == (20 if make is torch.optim.Adam else 6), "a momentum says one step at least"
    resumed = Run(make)
    resumed.load(tmp_path / "checkpoint.pt")
    assert (unrecorded(resumed.part().trace()), resumed.part().trace().complete) == ([(0, 15)], True)


COUNTING = [
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
]  # fmt: skip


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("name", COUNTING)
def test_without_an_accountant_an_optimizer_that_counts_is_believed(name: str) -> None:
    run = Run(getattr(torch.optim, name))
    run.optimizer.attach_step_hook(None)
    fresh = run.part(sampling=0.2).trace()
    assert (fresh.unrecorded, fresh.complete) == ((), True)
    later = run.part(sampling=0.2).trace()
    assert (later.unrecorded, later.complete) == (((0, None, None, 5),), True)


def test_without_either_only_at_least_can_be_said() -> None:
    run = Run()
    run.optimizer.attach_step_hook(None)
    recorder = run.part(sampling=0.2)
    assert (recorder.trace().unrecorded, recorder.trace().complete) == ((), False)
    run.train(1)
    with recorder:
        run.train(1)
    assert (unrecorded(recorder.trace()), recorder.trace().complete) == ([(5, 5)], False)
    trace = run.part(sampling=0.2).trace()
    assert (unrecorded(trace), trace.complete, trace.run_steps) == ([(0, 15)], False, 20)


@pytest.mark.full
def test_counting_keeps_no_optimizer_alive() -> None:
    run = Run()
    known = weakref.ref(run.optimizer.original_optimizer)
    trace = run.part().trace()
    del run
    gc.collect()
    assert known() is None
    assert trace.complete


def test_no_file_of_another_recording_is_replaced(tmp_path: Path) -> None:
    run = Run()
    path = tmp_path / "trace.npz"
    recorder = run.part(out=path)
    first = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"`out` must not exist already, unless this recording wrote it, got .*trace\.npz"
    ):
        run.record(out=path)
    with pytest.raises(ValueError, match=r"`out` must not exist already, unless this recording wrote it, got"):
        run.record(out=tmp_path)
    with recorder:  # its own file it writes again
        run.train(1)
    assert path.read_bytes() != first
    assert Trace.load(path).steps == 10
    path.rename(tmp_path / "kept.npz")
    other = run.part(out=path)
    with (
        pytest.raises(
            ValueError, match=r"`out` must not exist already, unless this recording wrote it, got .*trace\.npz"
        ),
        recorder,
    ):
        pass
    assert Trace.load(path).steps == other.steps == 5
    assert run.optimizer.step_hook is not None


def test_two_recorders_of_one_name_both_keep_their_steps(tmp_path: Path) -> None:
    run = Run()
    path = tmp_path / "new" / "trace.npz"
    outer, inner = run.record(out=path), run.record(out=path, members=None)

    def both() -> None:
        with outer:
            with inner:
                run.train(1)
            run.train(1)

    with pytest.warns(
        UserWarning, match=r"another file has appeared at `out`, .* this recording is in .*trace\.2\.npz"
    ):
        both()
    assert Trace.load(path).steps == 5
    assert Trace.load(path.with_name("trace.2.npz")).steps == 10


def test_an_empty_file_and_a_device_are_written_to(tmp_path: Path) -> None:
    run = Run()
    (tmp_path / "empty.npz").touch()
    run.part(out=tmp_path / "empty.npz")
    assert Trace.load(tmp_path / "empty.npz").steps == 5
    run.part(out=os.devnull)
    (tmp_path / "link.npz").symlink_to(tmp_path / "target.npz")
    run.part(out=tmp_path / "link.npz")
    assert Trace.load(tmp_path / "target.npz").steps == 5


def test_a_file_says_what_the_trace_says(tmp_path: Path) -> None:
    import json

    run = Run()
    run.train(1)
    trace = run.part(out=tmp_path / "trace.npz").trace()
    loaded = Trace.load(tmp_path / "trace.npz")
    assert (loaded.unrecorded, loaded.complete, loaded.origin) == (trace.unrecorded, True, trace.origin)
    arrays = dict(np.load(tmp_path / "trace.npz"))
    facts = json.loads(str(arrays.pop("facts")))
    assert loaded == trace
    assert facts["noise_multiplier"] == {"array": "noise_multiplier"}
    for less in ("unrecorded", "complete", "origin", "sampling"):  # what is absent is not taken for a default
        rest = {name: value for name, value in facts.items() if name != less}
        np.savez(tmp_path / "bad.npz", facts=np.array(json.dumps(rest)), **arrays)
        with pytest.raises(ValueError, match=f"bad.npz: it lacks {less}: damaged"):
            Trace.load(tmp_path / "bad.npz")
    np.savez(tmp_path / "bad.npz", facts=np.array(json.dumps({**facts, "schema": "leakcore.trace/2"})), **arrays)
    with pytest.raises(ValueError, match=r"bad.npz: `schema` must be 'leakcore.trace/5', got 'leakcore.trace/2'"):
        Trace.load(tmp_path / "bad.npz")
    for key, value in (
        ("unrecorded", 3), ("unrecorded", [[0, 1.5, 0.2]]), ("unrecorded", [[0, 1.5, 0.2, 0]]),
        ("unrecorded", [[6, 1.5, 0.2, 1]]), ("unrecorded", [[0, -1.5, 0.2, 1]]), ("unrecorded", [[0, 1.5, 1.2, 1]]),
        ("unrecorded", [[0, 1.5, 0.2, 2**60]]), ("unrecorded", [[3, 1.5, 0.2, 1], [2, 1.5, 0.2, 1]]),
        ("unrecorded", [[0, True, 0.2, 1]]),
        ("origin", 3), ("origin", {}), ("origin", {**facts["origin"], "before": "no digest"}),
        ("origin", {**facts["origin"], "shapes": [[-1]]}), ("origin", {**facts["origin"], "candidates": None}),
    ):  # fmt: skip
        np.savez(tmp_path / "bad.npz", facts=np.array(json.dumps({**facts, key: value})), **arrays)
        with pytest.raises(ValueError, match=f"bad.npz: `{key}.*` (must be|lacks) .*: damaged"):
            Trace.load(tmp_path / "bad.npz")
    text = json.dumps({**facts, "unrecorded": [[0, float("nan"), 0.2, 1]]})
    np.savez(tmp_path / "bad.npz", facts=np.array(text), **arrays)
    with pytest.raises(ValueError, match=r"bad.npz: cannot be read .* NaN and infinities are not JSON"):
        Trace.load(tmp_path / "bad.npz")
