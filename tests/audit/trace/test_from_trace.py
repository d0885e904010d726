"""The report on a recorded run: what it measures, what it proves, and when its gate fails."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import audit, mechanisms
from leakcore.audit.scores.statistics import audited, provable
from leakcore.audit.shared.format import percent
from leakcore.dpsgd import Sampling, Trace
from tests.audit.samples import by_poisson


def _simulated(
    members: np.ndarray, *, sigma: float, steps: int = 20, rate: float = 0.3, actual: float | None = None, seed: int = 0
) -> Trace:
    """A run whose candidates' clipped gradients are orthogonal, of norm C = 1, in every step."""
    rng = np.random.default_rng(seed)
    n = len(members)
    noise_scale = sigma if actual is None else actual
    membership, pairs, base = np.zeros(n), np.zeros((n, n)), np.zeros(n)
    times_seen = np.zeros(n, dtype=np.int64)

    def ratio(dots: np.ndarray) -> np.ndarray:
        return np.log1p(rate * np.expm1((2 * dots - 1) / (2 * sigma**2)))

    for _ in range(steps):
        inside = members & (rng.random(n) < rate)
        noise = noise_scale * rng.standard_normal(n)
        times_seen += inside
        membership += ratio(noise + inside)
        base += ratio(noise)
        pairs[np.arange(n), np.arange(n)] += np.where(inside, ratio(noise + 1) - ratio(noise), 0.0)
    return Trace(
        noise_multiplier=np.full(steps, sigma), max_grad_norm=np.ones(steps),
        batch_rows=np.random.default_rng(1).binomial(33, rate, steps), sample_rate=rate, expected_batch_size=10.0,
        members=members,
        members_given=True, times_seen=times_seen, clipped_share=np.ones(n), membership_sum=membership,
        membership_likelihood=membership, pair_sum=pairs + base, pair_likelihood=pairs + base,
        sampling=by_poisson(rate),
    )  # fmt: skip


def test_the_attack_on_orthogonal_candidates_is_below_its_bound_and_above_guessing() -> None:
    """400 members, fixed seed: expectation within four standard errors of the bound or below; p < 1e-6 above 1/10."""
    report = audit.from_trace(_simulated(np.arange(800) < 400, sigma=2.0), num_candidates=10)
    for size, bound, named in zip(report.candidate_counts, report.reconstruction, report.named, strict=True):
        assert named is not None
        assert named.kind == "estimate"
        assert float(named.value) < float(bound.value) + 4 * np.sqrt(0.25 / 400)
        assert float(named.value) > 1 / size + 5 * np.sqrt(0.25 / 400)
    assert report.passed
    assert report.audited is None
    for measured, bound in zip(report.found_at_fpr, report.at_fpr.value, strict=True):
        assert measured is not None
        assert float(measured.value) < bound + 0.1


def test_the_expectation_over_random_rivals_is_what_enumeration_gives() -> None:
    trace = _simulated(np.arange(9) < 3, sigma=1.0, seed=5)
    report = audit.from_trace(trace, num_candidates=4)
    inside, outside = range(3), range(3, 9)
    for size, named in zip(report.candidate_counts, report.named, strict=True):
        wins = [
            trace.pair_likelihood[i, i] > max(trace.pair_likelihood[i, j] for j in rivals)
            for i in inside
            for rivals in itertools.combinations(outside, size - 1)
        ]
        assert named is not None
        assert float(named.value) == pytest.approx(np.mean(wins), abs=1e-12)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_no_scores_prove_more_than_those_that_tell_every_coin(delta: float) -> None:
    rng = np.random.default_rng(7)
    for n in (6, 25, 300, 3000):
        members = rng.random(n) < 0.5
        most = provable(members, delta, 0.999)
        for strength in (0.0, 0.5, 3.0, 30.0):
            scores = strength * members + rng.standard_normal(n)
            assert float(audited(scores, members, delta, 0.999).value) <= most
        assert float(audited(100.0 * members + rng.random(n), members, delta, 0.999).value) == most


def test_a_run_with_an_eighth_of_its_noise_is_caught_and_the_honest_one_passes() -> None:
    """600 coins; the schedule says σ = 8 in 20 full batches: ε = 2.3."""
    rng = np.random.default_rng(2)
    members = rng.random(600) < 0.5
    honest = audit.from_trace(_simulated(members, sigma=8.0, rate=1.0, seed=3), coins=True)
    assert honest.passed
    assert honest.audited is not None
    assert 0 < float(honest.audited.value) < float(honest.epsilon.value)
    caught = audit.from_trace(_simulated(members, sigma=8.0, actual=1.0, rate=1.0, seed=3), coins=True)
    assert not caught.passed
    assert "Guesses at the coins prove" in caught.contradictions[0]
    assert "CLAIM CONTRADICTED" in caught.to_text()


def test_a_claim_below_the_recorded_schedule_fails_the_gate() -> None:
    trace = _simulated(np.arange(20) < 10, sigma=2.0)
    report = audit.from_trace(trace, claimed_epsilon=1.0)
    assert not report.passed
    assert "above the claimed 1" in report.verdict()
    assert audit.from_trace(trace, claimed_epsilon=float(report.epsilon.value)).passed


@pytest.mark.full
def test_the_report_is_json_and_one_page_and_fits_a_terminal(tmp_path: Path) -> None:
    trace = _simulated(np.arange(60) < 30, sigma=2.0)
    trace.save(tmp_path / "trace.npz")
    report = audit.from_trace(tmp_path / "trace.npz", coins=True)
    assert isinstance(report, audit.AuditReport)
    read = json.loads(report.to_json(tmp_path / "report.json"))
    assert read["schema"] == "leakcore.trace-audit/2"
    assert read["audited"]["kind"] == "lower"
    assert report.to_html(tmp_path / "report.html") == tmp_path / "report.html"
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" in html
    assert not re.findall(r'(?:src|href)="(?!#)', html)
    assert all(len(line) <= 110 for line in report.to_text().splitlines())
    for finding in report.findings():
        assert ": " in finding[:40]


def test_one_sided_candidates_are_reported_not_guessed() -> None:
    report = audit.from_trace(_simulated(np.ones(10, dtype=bool), sigma=2.0))
    assert report.named == (None, None)
    assert report.area is None
    assert "could not be measured" in report.findings()[1]
    report.to_html()


@pytest.mark.full
def test_the_head_says_what_was_tested_and_its_colour_is_good_for_nothing_else() -> None:
    members = np.random.default_rng(2).random(200) < 0.5
    trace = _simulated(members, sigma=16.0, rate=1.0)
    unclaimed = "Measured."
    nothing = "Nothing was proved: the claim is neither contradicted nor confirmed."
    weak = "Not tested: this audit could not have contradicted the claim."
    for arguments, word, tone in (
        ({}, unclaimed, "neutral"),
        ({"coins": True}, unclaimed, "neutral"),
        ({"claimed_epsilon": 9.0}, "Schedule within its claim; not tested.", "neutral"),
        ({"claimed_epsilon": 1.5, "coins": True}, nothing, "neutral"),
        ({"claimed_epsilon": 9.0, "coins": True}, weak, "neutral"),
        ({"claimed_epsilon": 0.5}, "CLAIM CONTRADICTED.", "bad"),
        ({"claimed_epsilon": 0.5, "coins": True}, "CLAIM CONTRADICTED.", "bad"),
    ):
        report = audit.from_trace(trace, **arguments)
        assert (report.headline, report.tone, report.passed) == (word, tone, tone != "bad"), arguments
        assert ("could not have contradicted the claim" in str(report.findings()[3].verdict)) == (word == weak)  # type: ignore[attr-defined]
    loose = audit.from_trace(_simulated(members, sigma=4.0, rate=1.0), coins=True)
    assert loose.headline == unclaimed
    assert "could not have contradicted the schedule" in loose.findings()[3].verdict  # type: ignore[attr-defined]
    assert (report := audit.from_trace(trace).with_limit(0.5)).headline == "ABOVE THE LIMIT."
    assert report.tone == "bad"
    assert audit.from_trace(trace).with_limit(9.0).headline == unclaimed


def test_a_run_without_noise_is_given_no_guarantee() -> None:
    fields = {**vars(_simulated(np.arange(40) < 20, sigma=2.0)), "noise_multiplier": np.zeros(20)}
    report = audit.from_trace(Trace(**fields))
    assert (report.headline, report.tone, report.passed) == ("No privacy guarantee.", "neutral", True)
    assert report.findings()[0].verdict == "No finite ε holds: nothing is guaranteed."  # type: ignore[attr-defined]
    assert "The schedule was not tested by this run" in report.findings()[3].verdict  # type: ignore[attr-defined]
    assert audit.from_trace(Trace(**fields), claimed_epsilon=4.0).headline == "CLAIM CONTRADICTED."


@pytest.mark.parametrize("rate", [0.15, 0.3 * (1 + 1e-8), 1.0])
def test_a_rate_other_than_the_recorded_one_is_refused(rate: float) -> None:
    trace = _simulated(np.arange(20) < 10, sigma=2.0)
    with pytest.raises(ValueError, match=r"`mechanism` must be left out, or the q = 0.3 .*, got (0.15|0.300000003|1)$"):
        audit.from_trace(trace, mechanism=rate)
    assert audit.from_trace(trace, mechanism=0.3 * (1 + 1e-12)).passed


def test_the_prior_that_was_asked_for_keeps_its_bound_where_candidates_are_too_few() -> None:
    trace = _simulated(np.arange(12) < 8, sigma=2.0)
    for size in (10, 1000, 2**53):
        report = audit.from_trace(trace, num_candidates=size)
        assert report.candidate_counts == (2, size)
        assert report.named[0] is not None
        assert report.named[1] is None
        assert report.settings()["num_candidates"] == json.loads(report.to_json())["config"]["num_candidates"] == size
        assert f"Naming one of {size:,} takes {size - 1:,} non-members: not measured." in report.findings()[1]
        row = report.tables()["attacks"].rows[1]
        assert [cell.text for cell in row.cells[2:]] == ["—", percent(report.reconstruction[1])]
        assert "too few candidates to measure" in report.tables()["attacks"].caption
        assert f"a prior of {size} candidates" in report.verdict()
        assert "the attack on this run's candidates, among 2, reached" in report.verdict()
    with pytest.raises(ValueError, match=r"`num_candidates` must be in \[2, 9007199254740992\], got 9007199254740993"):
        audit.from_trace(trace, num_candidates=2**53 + 1)


@pytest.mark.full
def test_a_limit_is_failed_by_a_number_that_is_seen_to_be_above_it() -> None:
    report = audit.from_trace(_simulated(np.arange(60) < 30, sigma=2.0), coins=True)
    assert report.audited is not None
    close = dataclasses.replace(
        report, epsilon=dataclasses.replace(report.epsilon, value=3.9),
        audited=dataclasses.replace(report.audited, value=4.00004),
    ).with_limit(4.0)  # fmt: skip
    (exceeded,) = close.exceeded
    assert "prove = 4.00004 (lower, 95% confidence, add/remove adjacency) is above the limit 4." in exceeded
    assert "prove = 4.00004 (" in close.limit_kept()
    assert "schedule = 3.9 (" in close.limit_kept()
    within = dataclasses.replace(close, epsilon=dataclasses.replace(report.epsilon, value=3.99999)).with_limit(3.999995)
    assert "schedule = 3.99999 (" in within.limit_kept(), "rounded up to 4 it would be seen above its limit"
    endless = dataclasses.replace(report, epsilon=dataclasses.replace(report.epsilon, value=np.inf))
    assert "schedule = ∞ (" in endless.with_limit(4.0).exceeded[0]


def test_a_trace_without_rate_or_noise_uses_sums() -> None:
    trace = _simulated(np.arange(20) < 10, sigma=2.0)
    fields: dict[str, Any] = {**vars(trace), "sample_rate": None, "membership_likelihood": np.full(20, np.nan)}
    fields["sampling"] = Sampling()
    blind = Trace(**fields)
    assert audit.from_trace(blind).epsilon is None
    assert audit.from_trace(blind, mechanism=0.3).statistic == "summed products"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"delta": 0.0}, ValueError, r"`delta` must be in \(0, 1\), got 0.0"),
        ({"num_candidates": 1}, ValueError, r"`num_candidates` must be in \[2, 9007199254740992\], got 1"),
        ({"claimed_epsilon": -1.0}, ValueError, r"`claimed_epsilon` must be at least 0, got -1.0"),
        ({"confidence": 1.0}, ValueError, r"`confidence` must be in \(0, 1 - 1e-12\], got 1.0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        audit.from_trace(_simulated(np.arange(6) < 3, sigma=2.0), **arguments)
    with pytest.raises(TypeError, match=r"`trace` must be what leakcore.record gave, or the file it wrote, got int"):
        audit.from_trace(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same side"):
        audit.from_trace(_simulated(np.ones(6, dtype=bool), sigma=2.0), coins=True)
    with pytest.raises(ValueError, match="`coins=True` needs fair coins, which do not make 30 of 400"):
        audit.from_trace(_simulated(np.arange(400) < 30, sigma=2.0), coins=True)
    with pytest.raises(TypeError, match="`coins` must be True or False, got 'no'"):
        audit.from_trace(_simulated(np.arange(6) < 3, sigma=2.0), coins="no")  # type: ignore[arg-type]


def test_batches_that_are_not_poisson_have_no_epsilon_here() -> None:
    fields = {**vars(_simulated(np.arange(20) < 10, sigma=2.0, steps=40)), "batch_rows": np.full(40, 10)}
    report = audit.from_trace(Trace(**fields))
    assert report.epsilon is None
    assert "but all 40 batches have 10 rows, as Poisson sampling" in report.mechanism.missing
    blind = Trace(**{**fields, "sample_rate": None, "sampling": Sampling()})
    with pytest.raises(ValueError, match=r"`mechanism` must be another than Poisson .* all 40 batches"):
        audit.from_trace(blind, mechanism=fields["sample_rate"])
    whole = {**fields, "sample_rate": 1.0, "sampling": by_poisson(1.0)}
    assert audit.from_trace(Trace(**whole)).passed, "full batches have one size"


@pytest.mark.full
def test_between_the_quoted_level_and_the_gates_it_says_neither_consistent_nor_contradicted() -> None:
    members = np.arange(40) < 20
    report = audit.from_trace(_simulated(members, sigma=2.0), coins=True, claimed_epsilon=100.0)
    assert report.audited is not None
    assert report.gate is not None
    report = dataclasses.replace(
        report, claimed_epsilon=None, epsilon=dataclasses.replace(report.epsilon, value=1.0),
        audited=dataclasses.replace(report.audited, value=1.2), gate=dataclasses.replace(report.gate, value=0.8),
    )  # fmt: skip
    assert report.passed
    assert report.headline == "Above its claim at 95%, not at 99.9%: check."
    verdict = next(f for f in report.findings() if f.startswith("What is proved")).verdict
    assert verdict.startswith("More than is claimed, at 95%; at the gate's 99.9% it is not")
    worse = dataclasses.replace(report, gate=dataclasses.replace(report.gate, value=1.0001))
    assert not worse.passed
    assert "prove ε ≥ 1.0001 " in worse.verdict(), "in as many digits as show that it is above 1"
    assert worse.headline != report.headline


def test_coins_test_the_schedule_itself() -> None:
    """A run with the recorded noise is not refuted; the same scores with eight times the stated noise are."""
    rng = np.random.default_rng(4)
    n = 600
    coins = rng.random(n) < 0.5
    scores = coins + rng.normal(size=n)
    for sigma, refuted in ((1.0, False), (8.0, True)):
        trace = Trace(
            noise_multiplier=np.full(1, sigma), max_grad_norm=np.ones(1), batch_rows=np.full(1, n),
            sample_rate=1.0, expected_batch_size=float(n), members=coins, members_given=True,
            times_seen=coins.astype(np.int64), clipped_share=np.zeros(n), membership_sum=scores,
            membership_likelihood=scores, pair_sum=np.zeros((n, n)), pair_likelihood=np.zeros((n, n)),
        )  # fmt: skip
        report = audit.from_trace(trace, coins=True, mechanism=mechanisms.FullBatch(sigma, 1))
        assert report.own_curve is not None
        assert report.own_curve.p_value is not None
        assert (report.own_curve.p_value < 1e-3) == refuted
        assert report.passed is not refuted
        assert report.own_curve.value > report.audited.value
        said = next(f for f in report.findings() if f.startswith("What is proved"))
        assert f"Under FullBatch(noise_multiplier={sigma:g}, steps=1), guesses at the coins" in said
        assert audit.TraceReport.from_dict(report.to_dict()) == report
