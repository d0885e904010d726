"""The report takes ε and bounds from the mechanism that the trace names, and has none where it names none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import accounting, audit, bounds, mechanisms
from leakcore.dpsgd import Sampling, Trace
from tests.audit.trace.traces import by_poisson, orthogonal

SHUFFLED = Sampling(
    scheme="shuffled", batch_size=8, dataset_size=40, batches=5, passes=4, all_rows=True, fresh=True,
    evidence="BatchSampler(RandomSampler, batch_size=8, drop_last=False) over 40 rows",
)  # fmt: skip


def _trace(sampling: Sampling | None = None, **fields: Any) -> Trace:
    """Twenty steps at σ = 2 of batches of 8 rows."""
    arguments = {"batch_rows": np.full(20, 8), "sample_rate": 0.2, "expected_batch_size": 8.0, **fields}
    return dataclasses.replace(orthogonal(40), sampling=sampling or Sampling(), **arguments)


def _value(result: Any) -> float:
    assert result is not None
    return float(result.value)


def _same(report: audit.TraceReport, mechanism: Any) -> None:
    """The mechanism's own numbers, and one premise more: what their relation presupposes of the program."""
    for mine, theirs in (
        (report.epsilon, accounting.epsilon(mechanism, delta=1e-5)),
        (report.reconstruction[1], bounds.reconstruction(mechanism, kappa=0.1)),
        (report.at_fpr, bounds.membership(mechanism, fpr=np.array([0.01, 0.05, 0.1]))),
    ):
        assert mine is not None
        assert mine.assumptions.notes == (*theirs.assumptions.notes, "the number of rows is public")
        assert dataclasses.replace(mine, assumptions=theirs.assumptions) == theirs


def test_shuffled_batches_give_a_bracket_and_name_what_poisson_accounting_claims() -> None:
    report = audit.from_trace(_trace(SHUFFLED))
    mechanism = mechanisms.Shuffled(2.0, 5, 4)
    _same(report, mechanism)
    assert report.epsilon is not None
    assert report.epsilon.adjacency == report.mechanism.adjacency == "zero-out"
    assert report.mechanism.name == repr(mechanism)
    claimed = accounting.epsilon(2.0, 0.2, 20, delta=1e-5).value
    low, high = report.epsilon.interval  # type: ignore[misc]
    assert claimed < low < high == report.epsilon.value
    text = " ".join(report.to_text(200).split())
    assert "shuffled batches, 5 in each of 4 epochs" in report.title
    assert f"Accounting as if batches were Poisson samples would print {claimed:.4g}, which is not proved" in text
    assert f"Do not quote the ε of Poisson accounting, {claimed:.4g}: it lies below the lower limit" in report.verdict()
    assert "Poisson sampling at q" not in text
    assert "Zero-out adjacency; bounds are deterministic." in report.tables()["attacks"].caption
    assert report.passed


def test_the_page_and_the_json_of_a_shuffled_run(tmp_path: Path) -> None:
    report = audit.from_trace(_trace(SHUFFLED))
    read = json.loads(report.to_json(tmp_path / "r.json"))
    assert read["config"]["mechanism"]["evidence"] == SHUFFLED.evidence
    assert read["config"]["sample_rate"] is None
    assert audit.TraceReport.from_dict(read) == report
    assert "<svg" in report.to_html()


@pytest.mark.slow
def test_a_claim_is_contradicted_from_below_and_judged_from_above() -> None:
    trace = _trace(SHUFFLED)
    low, high = audit.from_trace(trace).epsilon.interval  # type: ignore[union-attr, misc]
    wrong = audit.from_trace(trace, claimed_epsilon=float(low) * 0.9)
    assert wrong.passed is False
    assert "at least, and at most" in wrong.contradictions[0]
    between = audit.from_trace(trace, claimed_epsilon=float(low + high) / 2)
    assert (between.passed, between.headline) == (None, "Not judged: the claim lies where nothing is proved.")
    assert audit.from_trace(trace, claimed_epsilon=float(high)).passed
    assert audit.from_trace(trace).with_limit(float(high) * 0.99).passed is False
    assert audit.from_trace(trace).with_limit(float(high)).passed
    short = _trace(dataclasses.replace(SHUFFLED, passes=6))
    assert audit.from_trace(short, claimed_epsilon=float(low) * 0.9).passed is None, "the lower end is for whole epochs"


@pytest.mark.parametrize(
    ("change", "epochs", "note"),
    [
        ({"batches": 8, "passes": 3}, 3, "20 steps of 8 batches an epoch are counted as 3 epochs, rounded up"),
        pytest.param(
            {"passes": 9}, 9, "20 steps of 5 batches an epoch are counted as 9 epochs", marks=pytest.mark.slow
        ),
        ({"fresh": False}, 4, "the order may be the same in each epoch"),
        pytest.param({"all_rows": False}, 4, "an epoch leaves out rows", marks=pytest.mark.slow),
        pytest.param({"passes": None}, 4, "epochs that the loop broke off were not counted", marks=pytest.mark.slow),
    ],
)
def test_epochs_are_rounded_up_and_what_the_lower_limit_needs_is_said(
    change: dict[str, Any], epochs: int, note: str
) -> None:
    report = audit.from_trace(_trace(dataclasses.replace(SHUFFLED, **change)))
    mechanism = mechanisms.Shuffled(2.0, change.get("batches", 5), epochs)
    _same(report, mechanism)
    assert note in report.findings()[0]


def test_steps_that_were_not_recorded_are_epochs_too() -> None:
    report = audit.from_trace(_trace(SHUFFLED, unrecorded=((0, 2.0, 0.2, 7),)))
    assert report.mechanism.name == repr(mechanisms.Shuffled(2.0, 5, 6))
    other = audit.from_trace(_trace(SHUFFLED, unrecorded=((0, 3.0, 0.2, 5),)))
    assert other.epsilon is None
    assert "σ changes between 2 and 3" in other.mechanism.missing
    faster = audit.from_trace(_trace(SHUFFLED, unrecorded=((0, 2.0, 0.1, 5),)))
    assert "the run's other steps have another rate" in faster.mechanism.missing


@pytest.mark.slow
def test_fixed_batches_are_bounded_under_replacement_and_compared_with_no_rate() -> None:
    fixed = Sampling(scheme="fixed-size", batch_size=8, dataset_size=40, batches=1, passes=20, fresh=True, evidence="e")
    report = audit.from_trace(_trace(fixed))
    _same(report, mechanisms.FixedSize(2.0, 8, 40, 20))
    assert report.names() == report.tells() == []
    assert "Replacement adjacency; bounds are deterministic." in report.tables()["attacks"].caption
    claimed = audit.from_trace(_trace(fixed), claimed_epsilon=0.1)
    assert claimed.passed is None
    assert "the claim is for adding or removing a row" in claimed.undecided
    assert "replacement adjacency" in report.to_text(200)


def test_full_batches_and_poisson_samples_are_as_before() -> None:
    whole = Sampling(scheme="full-batch", batch_size=40, dataset_size=40, batches=1, evidence="one batch")
    report = audit.from_trace(_trace(whole, sample_rate=1.0))
    assert _value(report.epsilon) == _value(accounting.epsilon(mechanisms.FullBatch(2.0, 20), delta=1e-5))
    assert report.sample_rate == 1
    poisson = audit.from_trace(_trace(by_poisson(0.3), batch_rows=8 + np.arange(20) % 5))
    assert _value(poisson.epsilon) == _value(accounting.epsilon(2.0, 0.3, 20, delta=1e-5)), "the sampler's own rate"
    assert poisson.epsilon.adjacency == "add-remove"  # type: ignore[union-attr]


@pytest.mark.parametrize("coins", [False, True])
def test_without_a_mechanism_no_number_is_printed_as_if_sampled(coins: bool, tmp_path: Path) -> None:
    why = "BatchSampler(WeightedRandomSampler, batch_size=8, drop_last=False): rows are drawn by weights"
    report = audit.from_trace(_trace(Sampling(evidence=why)), coins=coins)
    assert (report.epsilon, report.epsilon_replace, report.membership, report.at_fpr) == (None,) * 4
    assert report.reconstruction == (None, None)
    assert report.named[0] is not None, "what the attack reached is measured all the same"
    assert (report.passed, report.headline) == (None, "Not judged: how batches were drawn is not known.")
    accountant = report.findings()[0]
    assert why in accountant
    assert "all 20 batches have 8 rows, as Poisson sampling at q = 0.2 would give them with probability" in accountant
    assert "mechanism=mechanisms.Shuffled(...)" in accountant.verdict  # type: ignore[attr-defined]
    text = report.to_text(200)
    assert "Poisson sampling q" not in text
    assert "ε = " not in text
    assert "No bounds: no mechanism of the run is known." in report.tables()["attacks"].caption
    assert [row.cells[3].text for row in report.tables()["attacks"].rows] == ["—"] * 5
    read = json.loads(report.to_json(tmp_path / "r.json"))
    assert read["epsilon"] is None
    assert audit.TraceReport.from_dict(read) == report
    assert why.split("(")[0] in report.to_html()
    limited = audit.from_trace(_trace()).with_limit(3.0)
    assert (limited.passed, limited.exceeded) == (None, [])
    assert "NOT DECIDED. Compared with it: nothing." in limited.limit_kept()


@pytest.mark.slow
def test_the_caller_can_state_a_mechanism() -> None:
    blind = _trace()
    for mechanism in (
        mechanisms.Shuffled(2.0, 5, 4), mechanisms.FixedSize(2.0, 8, 40, 20), mechanisms.FullBatch(2.0, 20),
        mechanisms.GDP(1.5, claimed_under="add-remove"), mechanisms.FullBatch(2.0, 10) @ mechanisms.Poisson(2, 0.2, 10),
    ):  # fmt: skip
        report = audit.from_trace(blind, mechanism=mechanism)
        assert report.mechanism.evidence == "the caller says so"
        assert _value(report.epsilon) == pytest.approx(_value(accounting.epsilon(mechanism, delta=1e-5)), rel=1e-9)
        report.to_html()
    varied = dataclasses.replace(blind, batch_rows=8 + np.arange(20) % 5)
    report = audit.from_trace(varied, mechanism=mechanisms.Poisson(2.0, 0.2, 20))
    assert report.epsilon == audit.from_trace(varied, mechanism=0.2).epsilon


@pytest.mark.parametrize(
    ("trace", "mechanism", "message"),
    [
        (_trace(SHUFFLED), mechanisms.Poisson(2.0, 0.2, 20), "`mechanism` must be what the trace recorded, BatchS"),
        (_trace(SHUFFLED), 0.2, "`mechanism` must be what the trace recorded, BatchSampler"),
        (_trace(), 0.2, "`mechanism` must be another than Poisson sampling"),
        (_trace(), mechanisms.Poisson(2.0, 0.2, 20), "`mechanism` must be another than Poisson sampling"),
        (_trace(), mechanisms.Shuffled(3.0, 5, 4), r"`mechanism` must have the recorded σ, 2 to 2, got Shuffled"),
        (_trace(), mechanisms.Shuffled(2.0, 5, 3), r"`mechanism` must have the run's 20 steps, got Shuffled"),
        (_trace(), mechanisms.FullBatch(2.0, 21), r"`mechanism` must have the run's 20 steps, got FullBatch"),
        (_trace(), 1.5, r"`mechanism` must be in \[0, 1\], got 1.5"),
    ],
)
def test_a_statement_that_the_trace_contradicts_is_refused(trace: Trace, mechanism: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit.from_trace(trace, mechanism=mechanism)


def test_a_mechanism_says_how_many_steps_a_run_has() -> None:
    cut = _trace(complete=False)
    assert audit.from_trace(cut).undecided
    report = audit.from_trace(cut, mechanism=mechanisms.Shuffled(2.0, 5, 10))
    assert (report.run.steps, report.run.unknown, report.passed) == (50, "", True)
    with pytest.raises(ValueError, match="`steps` must be left out where a mechanism is passed, got 50"):
        audit.from_trace(cut, mechanism=mechanisms.Shuffled(2.0, 5, 10), steps=50)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("poisson", [True, False])
def test_a_recorded_run_has_the_mechanism_of_its_loader(poisson: bool) -> None:
    pytest.importorskip("opacus")
    from tests.dpsgd.record.recorded_runs import Run

    report = audit.from_trace(Run(poisson_sampling=poisson).part(2))
    assert report.mechanism.words == (
        "Poisson sampling q = 0.2" if poisson else "shuffled batches, 5 in each of 2 epochs"
    )
    assert report.passed
