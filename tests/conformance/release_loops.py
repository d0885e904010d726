"""A training loop in which anything may happen, and the truth of what it released.

Row i of the data is the i-th unit vector, weights stay zero and there is next to no noise: so the part of row i in a
release is read off its i-th column, in units of C. Batches are predicted from a copy of the sampler's generator.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leakcore
from leakcore.dpsgd import FusedDPOptimizer

ROWS, C, PART, CANARIES = 8, 0.1, 2, 4
REFUSED = (ValueError, TypeError)


@dataclasses.dataclass(frozen=True)
class Member:
    """One way to make releases. recorder: "", "candidates" or "canaries"."""

    name: str
    kind: str
    recorder: str
    parts: bool


KINDS = {
    "flat recorded": ("flat", "candidates"), "fused": ("fused", ""), "fused recorded": ("fused", "candidates"),
    "canaries": ("flat", "canaries"), "ghost recorded": ("ghost", "candidates"),
}  # fmt: skip
MEMBERS = [
    Member(f"{name}{' in parts' if parts else ''}", *how, parts)
    for name, how in KINDS.items()
    for parts in (False, True)
]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.eye(ROWS), torch.zeros(ROWS, dtype=torch.long)


@dataclasses.dataclass
class Batch:
    """Data of the loop; of: the draws that its rows are of, as (number of the draw, row)."""

    x: torch.Tensor
    y: torch.Tensor
    of: tuple[tuple[int, int], ...]


class Run:
    """A private run, without leakcore unless its optimizer is leakcore's."""

    def __init__(self, member: Member) -> None:
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = nn.Linear(ROWS, 2, bias=False)
            nn.init.zeros_(plain.weight)
            ghost = member.kind == "ghost"
            settings: dict[str, Any] = (
                {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()} if ghost else {}
            )
            own = DPDataLoader(TensorDataset(*data()), sample_rate=0.5)
            own.batch_sampler.generator = torch.Generator().manual_seed(5)
            self.engine = PrivacyEngine(accountant="rdp")
            self.model, self.optimizer, *criterion, _ = self.engine.make_private(
                module=plain, optimizer=torch.optim.SGD(plain.parameters(), lr=0.0), noise_multiplier=1e-4,
                max_grad_norm=C, data_loader=DataLoader(TensorDataset(*data()), batch_size=ROWS // 2),
                noise_generator=torch.Generator().manual_seed(3), **settings,
            )  # fmt: skip
            self.loader = own
            self.loss: Any = criterion[0] if criterion else nn.CrossEntropyLoss()
            if member.kind == "fused":
                self.optimizer = FusedDPOptimizer.replace(self.optimizer, self.model)
        self.batches: Any = own
        if member.parts:
            with BatchMemoryManager(
                data_loader=own, max_physical_batch_size=PART, optimizer=self.optimizer
            ) as self.batches:
                pass
        self.iterator: Any = None

    @property
    def counted(self) -> int:
        """Steps of the accountant."""
        return sum(steps for *_, steps in self.engine.accountant.history)

    def release(self) -> torch.Tensor:
        """The part of each row in `p.grad`, in units of C."""
        gradient = next(iter(self.model.parameters())).grad
        return gradient.norm(dim=0) * self.optimizer.expected_batch_size / C


class Loop(RuleBasedStateMachine):
    """What a loop may do; every rule does it to the run and, where Opacus alone can, to a twin without leakcore."""

    member: Member

    def __init__(self) -> None:
        super().__init__()
        member = self.member
        self.run = Run(member)
        recorded_alone = member.recorder == "candidates"
        self.twin = Run(member) if recorded_alone else None  # canaries change the run
        self.recorders: list[Any] = []
        self.left: list[Any] = []
        self.over = False
        self.coins = torch.Generator().manual_seed(5)
        self.ahead: list[tuple[int, list[int]]] = []
        self.draws: list[tuple[int, ...]] = []
        self.passes_left = 0
        self.stored: list[tuple[Batch, Batch | None]] = []
        self.now: tuple[Batch, Batch | None] | None = None
        self.summed: list[tuple[int, int]] = []
        self.pending: list[tuple[tuple[int, int], ...]] = []
        self.releases: list[tuple[tuple[int, int], ...]] = []
        self.since: dict[int, int] = {}
        self.skipped = False
        self.refused = 0
        self.on_purpose = False
        if member.recorder:
            self._enter()

    def teardown(self) -> None:
        while self.recorders:
            self._leave(0)

    # What is done

    def both(self, action: Callable[[Run, Any], Any]) -> Any:
        """The same to run and twin. A refusal of leakcore's alone must be a ValueError or TypeError."""
        theirs: Exception | None = None
        ours: Exception | None = None
        result = None
        if self.twin is not None:
            try:
                action(self.twin, 1)
            except Exception as error:
                theirs = error
        try:
            result = action(self.run, 0)
        except Exception as error:
            ours = error
        if ours is None:
            assert theirs is None, f"the loop fails without leakcore only: {theirs!r}"
            return result
        if self.twin is None:
            assert isinstance(ours, (*REFUSED, RuntimeError, AttributeError)), repr(ours)
        elif theirs is None:
            assert isinstance(ours, REFUSED), f"the loop fails with leakcore only: {ours!r}"
        self.over = self.over or self.member.kind != "fused"  # a loop ends with the error
        raise ours

    def fetch(self) -> None:
        if not self.ahead and self.passes_left == 0:
            self.run.iterator = iter(self.run.batches)
            if self.twin is not None:
                self.twin.iterator = iter(self.twin.batches)
            self.passes_left = 2
        if not self.ahead:
            self.passes_left -= 1
            total = self.run.loader.batch_sampler.num_samples
            mask = torch.rand(total, generator=self.coins) < 0.5
            rows = mask.nonzero().reshape(-1).tolist()
            self.draws.append(tuple(rows))
            number = len(self.draws) - 1
            parts = -(-len(rows) // PART) if self.member.parts and rows else 1
            self.ahead = [(number, p.tolist()) for p in np.array_split(np.array(rows, dtype=int), parts)]
        number, rows = self.ahead.pop(0)
        of = tuple((number, row) for row in rows)
        x, y = next(self.run.iterator)
        assert len(x) == len(rows)
        other = None if self.twin is None else Batch(*next(self.twin.iterator), of)
        self.now = Batch(x, y, of), other
        if len(self.stored) < 4:
            self.stored.append(self.now)

    def backward(self) -> None:
        assert self.now is not None
        batches = self.now

        def go(run: Run, which: int) -> None:
            batch = batches[which]
            assert batch is not None
            run.loss(run.model(batch.x), batch.y).backward()

        self.both(go)
        if self.member.kind == "ghost":  # whose loss calls zero_grad
            self.pending = []
            self._sum_is_cleared()
        self.pending.append(batches[0].of)

    def step(self) -> None:
        self.both(lambda run, _: run.optimizer.step())
        if not self.member.recorder or self.run.model.training:
            self._note_step()

    def _note_step(self) -> None:
        optimizer = self.run.optimizer
        if getattr(optimizer, "sum_is_fresh", False):
            self.summed = []
        self.summed += [row for rows in self.pending for row in rows]
        self.skipped = optimizer._is_last_step_skipped
        if not self.skipped:
            self._released()

    def _released(self) -> None:
        release = tuple(self.summed)
        for k in range(len(self.recorders)):
            self.since[k] = self.since.get(k, 0) + 1
        self.releases.append(release)
        if self.member.recorder == "canaries":
            return
        expected = torch.zeros(ROWS)
        for _, row in release:
            expected[row] += 1
        actual = self.run.release() * len(self.pending) if self.member.kind != "ghost" else self.run.release()
        torch.testing.assert_close(actual, expected, atol=0.02, rtol=0)
        # What a loop sums on purpose (joined batches, virtual steps of its own, several backward passes) is its own.
        if self.member.kind == "fused" and len(self.pending) == 1 and not self.on_purpose:
            assert actual.max() <= 1.02, f"a row has {float(actual.max()):.2f} C in a release of FusedDPOptimizer"
        if self.twin is not None:
            for ours, theirs in zip(self.run.model.parameters(), self.twin.model.parameters(), strict=True):
                assert torch.equal(ours.grad, theirs.grad)
                assert torch.equal(ours, theirs)

    def _sum_is_cleared(self) -> None:
        if not self.run.optimizer._is_last_step_skipped:
            self.summed = []

    def zero(self, of_model: bool, set_to_none: bool) -> None:
        if of_model:
            self.both(lambda run, _: run.model.zero_grad(set_to_none))
        else:
            self.both(lambda run, _: run.optimizer.zero_grad(set_to_none))
            self._sum_is_cleared()
        self.pending = []

    def _train(self) -> None:
        steps = False
        try:
            self.zero(False, True)
            self.backward()
            steps = True
            self.step()
        except (*REFUSED, RuntimeError, AttributeError, IndexError):
            self._was_refused(steps=steps)

    def _was_refused(self, *, steps: bool) -> None:
        """A refused step of FusedDPOptimizer voids its batch; a refused backward pass leaves the sum as it is.

        A recorder refuses its first step when the noisy sum exists already and the accountant knows of it. A loop that
        catches the error has that sum in `p.grad`, so that it is a release: to the accountant, and to other recorders.
        """
        if steps and self.run.counted > len(self.releases):
            if getattr(self.run.optimizer, "sum_is_fresh", False):
                self.summed = []
            self.releases.append((*self.summed, *(row for rows in self.pending for row in rows)))
        self.summed = [] if self.member.kind == "fused" and steps else self.summed

    def _enter(self) -> None:
        kinds: dict[str, Any] = {"candidates": data(), "members": torch.ones(ROWS, dtype=torch.bool)}
        if self.member.recorder == "canaries":
            kinds = {"canaries": leakcore.Canaries(CANARIES, seed=1)}
        recorder = leakcore.record(self.run.optimizer, sampling=self.run.batches, **kinds)
        recorder.__enter__()
        self.recorders.append((recorder, len(self.releases), self.run.counted))

    def _leave(self, which: int) -> None:
        recorder, begun, counted = self.recorders.pop(which)
        recorder.__exit__(None, None, None)
        self.check(recorder, begun, counted)

    # What must hold

    def check(self, recorder: Any, begun: int, counted: int) -> None:
        """The trace says no more than what the releases since then were."""
        releases = self.releases[begun:]
        try:
            trace = recorder.trace()
        except REFUSED:
            return
        # Draws of equal rows are the same to everybody, so that a release may be of either.
        released = collections.Counter(tuple(sorted(row for _, row in r)) for r in releases)
        fresh = released <= collections.Counter(tuple(sorted(draw)) for draw in self.draws)
        if self.member.recorder == "canaries":
            assert fresh, f"canaries are scored, and the releases were {releases}"
            assert trace.steps == len(releases)
            return
        assert trace.steps <= len(releases)
        if trace.sampling.is_known:
            assert fresh, f"{trace.sampling} of {releases}, draws {self.draws}"
        most = max((r.count(row) for r in releases for row in r), default=0)
        if most > 1:
            assert not trace.sampling.is_known
        if trace.steps == len(releases) and not self.over:
            times = np.array([sum(row in {i for _, i in r} for r in releases) for row in range(ROWS)])
            np.testing.assert_array_equal(trace.times_seen, times)
            if most <= 1:
                np.testing.assert_array_equal(trace.batch_rows, [len(r) for r in releases])
                np.testing.assert_allclose(trace.membership_sum, times, atol=0.01 * (1 + len(releases)))

    @invariant()
    def the_accountant_counts_the_releases(self) -> None:
        if not self.over:
            assert self.run.counted == len(self.releases)

    # Rules

    @precondition(lambda self: not self.over)
    @rule(steps=st.integers(1, 6))
    def train_on_new_batches(self, steps: int) -> None:
        for _ in range(steps):
            if not self.over:
                self.fetch()
                self._train()

    @precondition(lambda self: not self.over and self.now is not None)
    @rule()
    def train_on_the_batch_again(self) -> None:
        self._train()

    @precondition(lambda self: not self.over and self.stored)
    @rule(which=st.integers(0, 3))
    def train_on_a_stored_batch(self, which: int) -> None:
        self.now = self.stored[which % len(self.stored)]
        self._train()

    @precondition(lambda self: not self.over and self.now is not None)
    @rule()
    def halve_the_batch(self) -> None:
        def half(batch: Batch | None) -> Batch | None:
            n = 0 if batch is None else len(batch.x) // 2
            return None if batch is None else Batch(batch.x[:n], batch.y[:n], batch.of[:n])

        assert self.now is not None
        first, other = self.now
        self.now = half(first) or first, half(other)

    @precondition(lambda self: not self.over and self.now is not None and self.stored)
    @rule(which=st.integers(0, 3))
    def join_another_batch(self, which: int) -> None:
        def joined(a: Batch | None, b: Batch | None) -> Batch | None:
            if a is None or b is None:
                return None
            return Batch(torch.cat([a.x, b.x]), torch.cat([a.y, b.y]), a.of + b.of)

        assert self.now is not None
        (first, other), (more, others) = self.now, self.stored[which % len(self.stored)]
        self.on_purpose = True
        whole = joined(first, more)
        assert whole is not None
        self.now = whole, joined(other, others)

    @precondition(lambda self: not self.over)
    @rule()
    def break_off_the_pass(self) -> None:
        self.ahead, self.passes_left = [], 0
        self.run.iterator = None
        if self.twin is not None:
            self.twin.iterator = None

    @precondition(lambda self: not self.over)
    @rule()
    def fetch_and_leave_out(self) -> None:
        self.fetch()

    @precondition(lambda self: not self.over and not self.member.parts and self.member.recorder != "canaries")
    @rule(count=st.integers(1, 2))
    def make_a_virtual_step(self, count: int) -> None:
        self.on_purpose = True
        for _ in range(count):
            if not self.over:
                self.both(lambda run, _: run.optimizer.signal_skip_step(True))
                self.fetch()
                self._train()

    @precondition(lambda self: not self.over and self.now is not None)
    @rule(of_model=st.booleans(), set_to_none=st.booleans(), times=st.integers(1, 2))
    def clear_and_go_back(self, of_model: bool, set_to_none: bool, times: int) -> None:
        """Gradients are computed, and not used, or several times."""
        try:
            self.zero(of_model, set_to_none)
            for _ in range(times):
                self.backward()
        except (*REFUSED, RuntimeError, AttributeError):
            self._was_refused(steps=False)

    @precondition(lambda self: not self.over and self.pending and all(self.pending))
    @rule()
    def step_with_what_there_is(self) -> None:
        try:
            self.step()
        except (*REFUSED, RuntimeError, AttributeError):
            self._was_refused(steps=True)

    @precondition(lambda self: not self.over and self.member.kind == "fused")
    @rule()
    def train_on_a_broken_row(self) -> None:
        """A loop that skips what is refused."""
        self.fetch()
        assert self.now is not None
        first, other = self.now
        if len(first.x) == 0:
            return
        broken = first.x.clone()
        broken[0] = float("nan")
        self.now = Batch(broken, first.y, first.of), None if other is None else Batch(broken, other.y, other.of)
        before = len(self.releases)
        self._train()
        assert len(self.releases) == before
        self.now = None

    @precondition(lambda self: not self.over and self.now is not None)
    @rule()
    def evaluate(self) -> None:
        def look(run: Run, _: Any) -> None:
            run.model.eval()
            with torch.no_grad():
                run.model(data()[0])
            run.model.train()

        self.both(look)

    @precondition(lambda self: not self.over)
    @rule(how=st.sampled_from(["deepcopy", "inner", "average", "state", "pickle"]))
    def copy_the_model(self, how: str) -> None:
        def make(run: Run, _: Any) -> None:
            if how == "deepcopy":
                other = copy.deepcopy(run.model)
            elif how == "inner":
                other = copy.deepcopy(run.model._module)
            elif how == "average":
                other = torch.optim.swa_utils.AveragedModel(run.model._module)
            elif how == "state":
                file = io.BytesIO()
                torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, file)
                file.seek(0)
                torch.load(file, weights_only=True)
                return
            else:
                other = pickle.loads(pickle.dumps(run.model._module))  # noqa: S301
            for p, q in zip(other.parameters(), run.model.parameters(), strict=True):
                assert torch.equal(p, q)
            other.eval()(data()[0])

        self.both(make)

    @precondition(lambda self: not self.over and self.member.recorder == "candidates" and len(self.recorders) < 2)
    @rule()
    def enter_a_recorder(self) -> None:
        self._enter()

    @precondition(lambda self: self.over)
    @rule()
    def end(self) -> None:
        """The loop ended with an error."""

    @precondition(lambda self: self.recorders)
    @rule(which=st.integers(0, 1))
    def leave_a_recorder(self, which: int) -> None:
        self._leave(which % len(self.recorders))
