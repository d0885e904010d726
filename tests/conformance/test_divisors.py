"""Divisors: what a recorded program reads from the number of rows decides under which relation its ε holds.

FORMULAS of the family: Opacus divides by int(n·q) and takes q = 1/len(loader). Under add/remove a neighbour may then
have noise of another size in every coordinate, or other samples of every row. Under zero-out n is public.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("opacus")
from opacus import PrivacyEngine

import leakcore
from leakcore import audit, dpsgd, mechanisms
from leakcore.dpsgd import Canaries, FusedDPOptimizer
from leakcore.dpsgd.record.sampling import sampling_of_loader
from leakcore.dpsgd.trace.trace import Origin
from tests.dpsgd.opacus_remarks import IGNORED

pytestmark = IGNORED
PUBLIC = "with a public number of rows"
SIGMA, DELTA, WIDTH, CLASSES = 2.0, 1e-5, 400, 10


def _data(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.zeros(rows, WIDTH)
    x[:, :20] = torch.randn(rows, 20, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(rows) % CLASSES


def _private(rows: int, batch: int, **settings: Any) -> Any:
    torch.manual_seed(1)
    net = nn.Linear(WIDTH, CLASSES, bias=False)
    return PrivacyEngine(accountant="rdp").make_private(
        module=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), noise_multiplier=SIGMA, max_grad_norm=1.0,
        data_loader=DataLoader(TensorDataset(*_data(rows)), batch_size=batch, shuffle=True), **settings,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Program:
    """A recorded program, and the relation under which its ε holds. said: what `record` is stated of its divisor."""

    relation: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    fused: bool = False
    constant: int | None = None
    said: dpsgd.Divisor | None = None  # type: ignore[name-defined]


GHOST = {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}
PROGRAMS = {
    "flat": Program("zero-out"),
    "ghost": Program("zero-out", GHOST),
    "fused": Program("zero-out", fused=True),
    "sum": Program("zero-out", {"loss_reduction": "sum"}),
    "shuffled": Program("zero-out", {"poisson_sampling": False}),
    "constant, not said": Program("zero-out", constant=100),
    "constant": Program("add-remove", constant=100, said="constant"),
    "fused, constant": Program("add-remove", fused=True, constant=100, said="constant"),
}
RECORDERS = {"Recorder", "CanaryRecorder"}
TRACES = {"Trace", "CanaryTrace"}


def _recorded(program: Program, rows: int = 200, batch: int = 20, epochs: int = 1) -> Any:
    module, optimizer, *rest = _private(rows, batch, **program.settings)
    loader, loss = (
        rest[-1],
        rest[0] if len(rest) > 1 else nn.CrossEntropyLoss(reduction=program.settings.get("loss_reduction", "mean")),
    )
    if program.fused:
        optimizer = FusedDPOptimizer.replace(optimizer, module)
    if program.constant is not None:
        optimizer.expected_batch_size = program.constant
    x, y = _data(rows)
    stated = {} if program.said is None else {"divisor": program.said}
    with leakcore.record(
        optimizer, candidates=(x[:8], y[:8]), members=torch.ones(8, dtype=torch.bool), sampling=loader, **stated
    ) as recorder:
        for _ in range(epochs):
            for a, b in loader:
                optimizer.zero_grad()
                loss(module(a), b).backward()
                optimizer.step()
    return recorder.trace()


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_relation_is_the_one_that_the_program_leaves(name: str) -> None:
    program = PROGRAMS[name]
    report = audit.from_trace(_recorded(program), delta=DELTA)
    bounds = [report.epsilon, report.membership, report.at_fpr, *report.reconstruction]
    assert {bound.adjacency for bound in bounds if bound is not None} == {program.relation}
    again = audit.TraceReport.from_dict(json.loads(report.to_json()))
    assert again.epsilon is not None
    assert again.epsilon.adjacency == program.relation
    text = " ".join(report.to_text().split())
    if program.relation == "add-remove":
        assert PUBLIC not in text
        assert "do not change with the number of rows" in " ".join(report.assumptions())
    elif name != "shuffled":  # which is zero-out by itself
        assert text.count(PUBLIC) == 1
        assert "the number of rows is public" in str(report.epsilon.assumptions.notes)
        assert "the number of rows is public" in " ".join(report.assumptions())


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("rows", "batch", "changes"),
    [(200, 20, "200 rows by 20, and at the same q of 199 rows by 19"), (205, 20, ""), (203, 20, "")],
)
def test_a_divisor_that_one_row_changes_is_said(rows: int, batch: int, changes: str) -> None:
    report = audit.from_trace(_recorded(PROGRAMS["flat"], rows, batch), delta=DELTA)
    text = " ".join(report.to_text().split())
    assert ("Opacus divides the sum of" in text) == bool(changes)
    assert changes in text


def test_no_epsilon_under_its_relation_lies_below_what_the_noise_alone_proves() -> None:
    """With 200 rows Opacus divides by 20, with 199 by 19: coordinates that no row touches tell the two apart."""
    trace = _recorded(PROGRAMS["flat"], epochs=2)
    assert _private(199, 20)[1].expected_batch_size == 19
    untouched, ratio = (WIDTH - 20) * CLASSES * trace.steps, (20 / 19) ** 2
    proved = max(
        math.log(max(float(chi2.sf(t / ratio, untouched)) - DELTA, 1e-300)) - float(chi2.logsf(t, untouched))
        for t in untouched * np.linspace(1, ratio, 50)
    )
    report = audit.from_trace(trace, delta=DELTA)
    assert report.epsilon is not None
    assert float(report.epsilon.value) < proved
    assert report.epsilon.adjacency != "add-remove"


def _written(**changes: Any) -> dpsgd.Trace:
    n, scores = 200, np.linspace(-1, 1, 200)
    fields: dict[str, Any] = {
        "noise_multiplier": np.ones(20), "max_grad_norm": np.ones(20), "batch_rows": np.full(20, 100),
        "sample_rate": 1.0, "expected_batch_size": 100.0, "members": scores > 0, "members_given": True,
        "times_seen": np.full(n, 20), "clipped_share": np.zeros(n), "membership_sum": 50 * scores,
        "membership_likelihood": 50 * scores, "pair_sum": np.zeros((n, n)), "pair_likelihood": np.zeros((n, n)),
    }  # fmt: skip
    return dpsgd.Trace(**{**fields, **changes})


FULL = mechanisms.FullBatch(1.0, 20)


def test_a_trace_that_does_not_say_it_states_the_premise() -> None:
    report = audit.from_trace(_written(), mechanism=FULL)
    assert report.epsilon is not None
    assert report.epsilon.adjacency == "add-remove"
    premise = "the divisor, q and the number of steps do not change with the number of rows (taken as fixed, because "
    assert premise in " ".join(report.assumptions())
    for number in (report.epsilon, report.membership, report.at_fpr, *report.reconstruction):
        assert number is not None
        assert any(note.startswith(premise) for note in number.assumptions.notes)
    assert report.epsilon_replace is not None  # of as many rows
    assert not any("number of rows" in note for note in report.epsilon_replace.assumptions.notes)


@pytest.mark.parametrize("mechanism", [FULL, 1.0], ids=repr)
def test_a_stated_mechanism_does_not_state_the_divisor(mechanism: Any) -> None:
    for divisor, relation in (("rows", "zero-out"), ("constant", "add-remove")):
        said = audit.from_trace(_written(divisor=divisor), mechanism=mechanism)
        later = audit.from_trace(_written(), mechanism=mechanism, divisor=divisor)  # type: ignore[arg-type]
        assert said.epsilon is not None
        assert said.epsilon.adjacency == relation
        assert later.epsilon == said.epsilon
    plain = audit.from_trace(_written(), mechanism=mechanism)
    assert plain.epsilon is not None
    assert float(plain.epsilon.value) == float(said.epsilon.value)  # of the two relations the pair is the same


def test_coins_leave_rows_out_and_do_not_test_zero_out() -> None:
    """All coins are guessed: under add/remove that contradicts the schedule, and says nothing of zero-out."""
    quiet = {"noise_multiplier": np.full(20, 30.0)}
    mechanism = mechanisms.FullBatch(30.0, 20)
    constant = audit.from_trace(_written(**quiet, divisor="constant"), mechanism=mechanism, coins=True)
    assert constant.passed is False
    rows = audit.from_trace(_written(**quiet, divisor="rows"), mechanism=mechanism, coins=True)
    assert rows.contradictions == []
    assert rows.own_curve is None
    assert rows.audited is not None
    assert rows.audited.adjacency == "add-remove"
    assert float(rows.audited.value) > float(rows.epsilon.value)  # type: ignore[union-attr]
    assert "the two are not compared" in " ".join(rows.to_text().split())


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("said", "relation"), [("rows", "zero-out"), ("constant", "add-remove"), (None, "zero-out")])
def test_canaries_are_in_or_out_of_a_run_that_divides_as_it_does(said: Any, relation: str) -> None:
    module, optimizer, loader = _private(200, 20)
    stated = {} if said is None else {"divisor": said}
    with leakcore.record(optimizer, canaries=Canaries(40), sampling=loader, **stated) as recorder:
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(a), b).backward()
            optimizer.step()
    assert optimizer.expected_batch_size == 20  # whatever the coins
    report = audit.from_trace(recorder)
    numbers = (report.epsilon, report.proved, report.by_coins, report.gate, report.from_release)
    assert {number.adjacency for number in numbers} == {relation}
    assert ("public number of rows" in " ".join(report.to_text().split())) == (relation == "zero-out")
    premise = "the number of rows is public" if relation == "zero-out" else "do not change with the number of rows"
    assert premise in str(report.epsilon.assumptions.notes)


def test_the_parts_of_a_run_claim_the_least_that_one_of_them_says() -> None:
    for first, later, both in (
        ("constant", "rows", "rows"), ("rows", "constant", "rows"), ("constant", "constant", "constant"),
        (None, "constant", None), ("constant", None, None), (None, "rows", "rows"), (None, None, None),
    ):  # fmt: skip
        origin = Origin(candidates="0" * 64, shapes=((2, 2),), before=None, after=None)
        ahead = {"unrecorded": ((0, 1.0, 1.0, 20),), "membership_sum": np.zeros(200), "pair_sum": np.ones((200, 200))}
        parts = [_written(origin=origin, divisor=first), _written(origin=origin, divisor=later, **ahead)]
        assert audit.join(parts).divisor == both


def test_nothing_is_said_of_a_division_that_the_optimizer_does_not_make() -> None:
    sampling = dpsgd.Sampling(scheme="poisson", sample_rate=0.1, dataset_size=200, evidence="a loader")
    said = {"sample_rate": 0.1, "sampling": sampling, "divisor": "rows"}
    said["batch_rows"] = 18 + np.arange(20) % 5
    own, other = (audit.from_trace(_written(**said, expected_batch_size=size)) for size in (20.0, 100.0))
    assert "199 rows by 19, unless loss_reduction='sum'" in " ".join(own.to_text().split())
    assert "Opacus divides the sum of" not in other.to_text()
    assert {report.epsilon.adjacency for report in (own, other) if report.epsilon is not None} == {"zero-out"}


@pytest.mark.parametrize(("divisor", "passed"), [("rows", None), ("constant", False), (None, False)])
def test_coins_contradict_no_claim_that_can_only_be_for_a_public_number_of_rows(divisor: Any, passed: Any) -> None:
    """No mechanism is known, so the relation of the claim is what the divisor leaves."""
    report = audit.from_trace(_written(divisor=divisor, sample_rate=None), coins=True, claimed_epsilon=0.5)
    assert report.passed is passed


def _of_loader(rows: int, batch: int, *, drop_last: bool, shuffle: bool = True) -> dpsgd.Trace:
    loader = DataLoader(TensorDataset(torch.zeros(rows, 1)), batch_size=batch, drop_last=drop_last, shuffle=shuffle)
    sampling = sampling_of_loader(loader)
    passes = 20 // len(loader)
    return _written(sample_rate=None, sampling=dataclasses.replace(sampling, passes=passes), divisor="rows")


@pytest.mark.full
@pytest.mark.parametrize(
    ("rows", "batch", "drop_last", "shuffle", "whole"),
    [
        (250, 100, True, True, False), (150, 100, True, True, False), (200, 100, True, True, True),
        pytest.param(150, 100, False, True, True, marks=pytest.mark.slow),
        pytest.param(200, 100, False, False, False, marks=pytest.mark.slow),
        pytest.param(999, 100, True, True, False, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_loader_that_leaves_out_rows_or_orders_contradicts_no_claim_from_below(
    rows: int, batch: int, drop_last: bool, shuffle: bool, whole: bool
) -> None:
    """A claim of 0.01 lies below the lower limit of shuffled batches, which is proved of fresh orders of all rows."""
    trace = _of_loader(rows, batch, drop_last=drop_last, shuffle=shuffle)
    batches = rows // batch if drop_last else -(-rows // batch)
    stated = mechanisms.Shuffled(1.0, batches, -(-20 // batches))
    exact = 20 % batches == 0 and whole
    for said in (None, stated):
        if said is None and trace.sampling.scheme == "fixed-size":
            continue  # under replacement
        report = audit.from_trace(trace, mechanism=said, claimed_epsilon=0.01)
        assert report.passed is (False if exact else None), said
    for said in (mechanisms.FullBatch(1.0, 20), 1.0):  # an upper limit of each scheme
        report = audit.from_trace(trace, mechanism=said, claimed_epsilon=0.01)
        assert (report.passed, report.epsilon.adjacency) == (None, "zero-out"), said  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rows", "batch", "mechanism"),
    [
        (200, 100, mechanisms.Shuffled(1.0, 4, 5)), (400, 100, mechanisms.Shuffled(1.0, 10, 2)),
        (200, 100, mechanisms.FixedSize(1.0, 100, 200, 20)), (200, 100, mechanisms.RandomAllocation(1.0, 2, 10)),
        (200, 100, mechanisms.Poisson(1.0, 0.5, 20)),
    ],
    ids=repr,
)  # fmt: skip
def test_batches_that_the_loader_did_not_make_are_refused(rows: int, batch: int, mechanism: Any) -> None:
    """Shuffled(1, 4, 5) counts 5 uses of a row where the loader made 10: ε 11.5 in place of 17.9."""
    with pytest.raises(ValueError, match="`mechanism` must be what the trace recorded, BatchSampler"):
        audit.from_trace(_of_loader(rows, batch, drop_last=False), mechanism=mechanism)


@pytest.mark.parametrize("call", [lambda v: audit.from_trace(_written(), divisor=v)])
def test_another_word_is_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="`divisor` must be 'rows' or 'constant', got 'n'"):
        call("n")


def test_every_recorder_and_every_trace_says_what_it_divides_by() -> None:
    assert {name for name in dpsgd.__all__ if name.endswith("Recorder")} == RECORDERS
    assert {name for name in dpsgd.__all__ if name.endswith("Trace")} == TRACES
    for name in TRACES:
        assert "divisor" in {field.name for field in dataclasses.fields(getattr(dpsgd, name))}
