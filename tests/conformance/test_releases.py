"""Releases: each row once with norm at most C, whatever a loop does; the trace, the accountant and autograd agree."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("opacus")
from opacus import PrivacyEngine
from opacus.layers import DPLSTM

import leakcore
from leakcore import audit, dpsgd, mechanisms
from leakcore.dpsgd import Canaries, FusedDPOptimizer
from leakcore.dpsgd.record.sampling import RepeatedDraws, RepeatedNoise
from leakcore.dpsgd.rows.hooks import Draw
from tests.conformance.release_loops import KINDS, MEMBERS, Loop, Member

pytestmark = pytest.mark.filterwarnings("ignore")
DEFAULT, LONG = 12, 300
"""Loops of each member."""
TAKE_PART = {
    "CanaryRecorder": "canaries", "FusedDPOptimizer": "fused", "Recorder": "flat recorded", "record": "canaries",
}  # fmt: skip
"""Public names of `leakcore.dpsgd` by which a program makes or records releases, and a member for each."""
OTHERS = {
    "AllocatedBatches", "Canaries", "CanaryTrace", "CraftedGradient", "Ensemble", "EnsembleRun", "Execution", "Fault",
    "FixedBatches", "Initialisation", "ModuleNetwork", "Network", "Observer", "PerRun", "PoissonBatches", "Rows",
    "Running", "Sampling", "Scorer", "ShuffledBatches", "Trace", "secure_normal",
}  # fmt: skip
"""The ensemble trains its own runs; what is left are settings and results."""


def _try(member: Member, examples: int) -> None:
    machine = type("Loop", (Loop,), {"member": member})
    chosen = settings(
        max_examples=examples, stateful_step_count=12, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), print_blob=True, phases=(Phase.generate,),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=chosen)  # type: ignore[no-untyped-call]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_loops(member: Member) -> None:
    _try(member, DEFAULT)


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_many_loops(member: Member) -> None:
    _try(member, LONG)


def test_every_public_name_that_takes_part_in_releases_is_a_member() -> None:
    assert set(dpsgd.__all__) == TAKE_PART.keys() | OTHERS, "say of the new name whether it takes part in releases"
    assert set(TAKE_PART.values()) <= KINDS.keys()


# What a loop may do that no draw of the machine above makes

N, WIDTH = 60, 40
CANARIES = {"canaries": Canaries(40, seed=1)}


class Run:
    """60 rows, batches of 12, and what a loop needs. `record` gives the recorder."""

    def __init__(
        self, kind: str = "flat", model: Callable[[], nn.Module] = lambda: nn.Linear(WIDTH, 10), **how: Any
    ) -> None:
        torch.manual_seed(1)
        self.x, self.y = torch.randn(N, WIDTH), torch.arange(N) % 3
        self.inner = model()
        self.model, self.optimizer, self.loader = PrivacyEngine(accountant="rdp").make_private(
            module=self.inner, optimizer=torch.optim.SGD(self.inner.parameters(), lr=0.1), noise_multiplier=1.0,
            max_grad_norm=1.0, data_loader=DataLoader(TensorDataset(self.x, self.y), batch_size=12, shuffle=True),
            **how,
        )  # fmt: skip
        self.loss = nn.CrossEntropyLoss(reduction=how.get("loss_reduction", "mean"))
        if kind == "fused":
            self.optimizer = FusedDPOptimizer.replace(self.optimizer, self.model)

    def record(self, **how: Any) -> Any:
        rows = {} if "canaries" in how else {"candidates": (self.x[:8], self.y[:8]), "members": torch.ones(8) > 0}
        return leakcore.record(self.optimizer, **{"sampling": self.loader, **rows, **how})

    def train(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model(x), y).backward()
        self.optimizer.step()

    def epoch(self) -> None:
        for x, y in self.loader:
            self.train(x, y)


def _by_batch(run: Run, size: Callable[[int, int], int]) -> None:
    for k, (x, y) in enumerate(run.loader):
        run.optimizer.expected_batch_size = size(k, len(x))
        run.train(x, y)


@pytest.mark.parametrize("kind", ["flat", "fused"])
def test_a_divisor_that_is_the_size_of_the_batch_leaves_no_epsilon(kind: str) -> None:
    """The size of the noise tells how many rows were drawn."""
    run = Run(kind)
    with run.record(divisor="constant") as recorder:
        _by_batch(run, lambda _, rows: rows)
    sampling = recorder.trace().sampling
    assert (sampling.scheme, sampling.violation) == ("unknown", "sampling")
    assert "expected_batch_size" in sampling.evidence
    assert audit.from_trace(recorder).epsilon is None
    with pytest.raises(ValueError, match="expected_batch_size"):
        audit.from_trace(recorder, mechanism=mechanisms.Poisson(1.0, 0.2, 5))


def test_a_divisor_that_is_the_size_of_the_batch_ends_a_recording_with_canaries() -> None:
    run = Run()
    with run.record(**CANARIES) as recorder:
        _by_batch(run, lambda _, rows: rows)
    with pytest.raises(ValueError, match="expected_batch_size, by which it divides the sum, is the number of rows"):
        recorder.trace()


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(
    ("size", "how", "scheme"),
    [
        (lambda k, _: 20 - k, {}, "unknown"), (lambda _, rows: rows, {"loss_reduction": "sum"}, "poisson"),
        (lambda _, rows: rows, {"poisson_sampling": False}, "shuffled"), (lambda *_: 7, {}, "poisson"),
    ],
    ids=["schedule", "sum", "shuffled", "own"],
)  # fmt: skip
def test_a_divisor_that_tells_nothing_harms_nothing(size: Any, how: dict[str, Any], scheme: str) -> None:
    run = Run(**how)
    with run.record() as recorder:
        _by_batch(run, size)
    trace = recorder.trace()
    assert (trace.sampling.scheme, trace.sampling.violation) == (scheme, "")
    if scheme == "unknown":  # the caller knows that it is a schedule
        assert audit.from_trace(trace, mechanism=mechanisms.Poisson(1.0, 0.2, 5)).epsilon is not None


@pytest.mark.parametrize("how", [{}, CANARIES], ids=["candidates", "canaries"])
@pytest.mark.parametrize("kind", ["flat", "fused"])
def test_a_sampler_that_is_seeded_again_is_told_from_one_that_is_not(kind: str, how: dict[str, Any]) -> None:
    if how and kind == "fused":
        return
    for again in (False, True):
        run = Run(kind)
        own = run.loader.batch_sampler.generator = torch.Generator().manual_seed(3)
        with run.record(**how) as recorder:
            for _ in range(2):
                run.epoch()
                if again:
                    own.manual_seed(3)
        if not again:
            recorder.trace()
            assert how or recorder.trace().sampling.scheme == "poisson"
        elif how:
            with pytest.raises(ValueError, match="drew a batch again"):
                recorder.trace()
        else:
            assert recorder.trace().sampling.violation == "sampling"


@pytest.mark.parametrize("how", [{}, CANARIES], ids=["candidates", "canaries"])
@pytest.mark.parametrize("kind", ["flat", "fused"])
def test_noise_that_comes_again_leaves_no_epsilon(kind: str, how: dict[str, Any]) -> None:
    """Its sum cancels in the difference of two releases; a loop that seeds in each epoch makes it."""
    if how and kind == "fused":
        return
    own = torch.Generator().manual_seed(4)
    run = Run(kind, noise_generator=own)
    with run.record(**how) as recorder:
        run.epoch()
        own.manual_seed(4)
        run.epoch()
    with pytest.raises(ValueError, match="the noise of this step is that of an earlier step again"):
        recorder.trace()


def test_fresh_noise_and_fresh_draws_are_not_taken_for_repeated_ones() -> None:
    rng, noise = np.random.default_rng(0), RepeatedNoise()
    for _ in range(2000):
        noise.require_new(rng.normal(size=16), 1e-6)
    for rows, rate in ((5, 0.5), (30, 0.02), (60, 0.2)):
        draws = RepeatedDraws()
        for _ in range(2000):
            draw = Draw()
            draw.add((rng.random(rows) < rate).nonzero()[0], last=True)
            assert not draws.is_repeated_sample(draw, rate, rows)


def test_orders_that_come_again_are_not_fresh() -> None:
    fresh = []
    for again in (False, True):
        run = Run(poisson_sampling=False, noise_generator=torch.Generator().manual_seed(4))
        with run.record() as recorder:
            for _ in range(2):
                if again:
                    torch.manual_seed(3)
                run.epoch()
        sampling = recorder.trace().sampling
        assert (sampling.scheme, sampling.passes) == ("shuffled", 2)
        fresh.append(sampling.fresh)
    assert fresh == [True, False]


@pytest.mark.full
def test_batches_that_are_left_out_are_a_premise_of_epsilon() -> None:
    run, other = Run(), DataLoader(TensorDataset(torch.zeros(9, WIDTH)), batch_size=3)
    with run.record() as recorder:
        for x, y in run.loader:
            if len(x) < 15:
                continue
            run.train(x, y)
            with torch.no_grad():
                for (rows,) in other:  # a batch that the training does not use
                    run.model(rows)
    trace = recorder.trace()
    assert trace.sampling.left_out == 5 - trace.steps > 0
    report = audit.from_trace(recorder)
    assert report.epsilon is not None
    said = f"{5 - trace.steps} batches that the loader gave were not trained on, for no reason that depends on rows"
    assert said in report.epsilon.assumptions.notes
    assert said in " ".join(report.to_text().split())
    whole = Run()
    with whole.record() as recorder:
        whole.epoch()
    assert recorder.trace().sampling.left_out == 0


def test_a_stated_rate_that_is_not_the_loaders_is_refused_in_the_first_step() -> None:
    for stated in (0.1, 1.0):
        run = Run()
        with run.record(sampling=stated), pytest.raises(ValueError, match="`sampling` must be the q at which the rows"):
            run.epoch()


def test_the_cause_of_another_number_of_accumulated_batches_is_said() -> None:
    run = Run(poisson_sampling=False)
    with run.record() as recorder:
        for k, (x, y) in enumerate([*run.loader, *run.loader]):
            run.loss(run.model(x), y).backward()
            if k >= 4:
                run.optimizer.step()
                run.optimizer.zero_grad()
    caught = recorder._failures.last
    assert "accumulates 1 batch at q = 0.2, together q = 0.2, and the steps before it have q = 1" in caught


def test_a_refused_backward_pass_leaves_the_rows_before_as_they_are() -> None:
    """Opacus's hooks first add the rows, then refuse."""
    grads = []
    for twice in (False, True):
        run = Run("fused", noise_generator=torch.Generator().manual_seed(4))
        x, y = run.x[:12], run.y[:12]
        run.optimizer.zero_grad()
        run.loss(run.model(x), y).backward()
        if twice:
            with pytest.raises(ValueError, match="not compatible with grad accumulation"):
                run.loss(run.model(x), y).backward()
        run.optimizer.step()
        grads.append([p.grad.clone() for p in run.optimizer.params])
    assert all(torch.equal(p, q) for p, q in zip(*grads, strict=True))


def test_rows_that_the_loop_changes_are_among_the_causes() -> None:
    run = Run()
    with run.record():
        x, y = next(iter(run.loader))
        run.loss(run.model(x), y).backward()
        for p in run.inner.parameters():
            p.grad_sample *= 2
        with pytest.raises(ValueError, match=r"or the loop changed p\.grad_sample after the backward pass"):
            run.optimizer.step()


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps, self.out = DPLSTM(10, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.steps(x.view(len(x), 4, 10))[0][:, -1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", [lambda: nn.Linear(WIDTH, 3), _Recurrent], ids=["linear", "recurrent"])
def test_a_copy_of_a_model_under_the_fused_optimizer_is_a_plain_model(model: Callable[[], nn.Module]) -> None:
    run = Run("fused", model)
    with run.record():
        run.epoch()
        file = io.BytesIO()
        torch.save(run.inner, file)
        file.seek(0)
        copies = [torch.load(file, weights_only=False), copy.deepcopy(run.inner)]
        for other in copies:
            run.loss(other(run.x), run.y).backward()
            assert all(p.grad is not None for p in other.parameters())
        again = copy.deepcopy(run.model)
        second = FusedDPOptimizer(
            torch.optim.SGD(again.parameters(), lr=0.1), module=again, noise_multiplier=1.0, max_grad_norm=1.0,
            expected_batch_size=12,
        )  # fmt: skip
        run.loss(again(run.x[:9]), run.y[:9]).backward()
        second.step()
        run.epoch()
