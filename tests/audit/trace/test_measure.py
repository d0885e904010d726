"""Rates of a recorded run: intervals that cover, a verdict that chance does not earn, bounds that catch a wrong run."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from leakcore import audit
from leakcore.audit.shared.format import percent
from leakcore.audit.trace.measure import Measured, named, rank_sum, rate_at, separation
from leakcore.audit.trace.numbers import Compared
from leakcore.dpsgd import Trace
from tests.audit.samples import by_poisson
from tests.audit.trace.test_from_trace import _simulated

LEVEL = 0.95


def _finding(report: audit.TraceReport, about: str) -> Any:
    return next(f for f in report.findings() if f.startswith(about))


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("tied", [False, True])
def test_scores_that_say_nothing_are_seldom_said_to_tell_members(tied: bool) -> None:
    """400 score sets of 50 and 50 under the null: "can be told" in at most 5%, up to a 99.9% binomial limit."""
    rng = np.random.default_rng(11)
    report = audit.from_trace(_simulated(np.arange(100) < 50, sigma=300.0))
    claims = 0
    for _ in range(400):
        scores = rng.integers(0, 6, 100).astype(float) if tied else rng.standard_normal(100)
        null = dataclasses.replace(report, area=separation(scores[:50], scores[50:], 0.95))
        verdict = _finding(null, "Membership").verdict
        assert ("can be told" in verdict) != ("These 100 candidates do not tell members from guessing." in verdict)
        claims += "can be told" in verdict
    assert claims <= stats.binom.ppf(0.999, 400, 0.05)


def test_the_p_value_is_what_enumeration_gives_and_ties_count_against_members() -> None:
    scores = np.array([0.3, 2.0, 1.5, -1.0, 0.2, 0.9, -0.4])
    own = scores[:3]

    def wins(members: Any) -> int:
        rest = [i for i in range(7) if i not in members]
        return sum(bool(scores[i] > scores[j]) for i in members for j in rest)

    splits = list(itertools.combinations(range(7), 3))
    assert rank_sum(own, scores[3:]) == pytest.approx(np.mean([wins(m) >= wins((0, 1, 2)) for m in splits]), abs=1e-12)
    tied = rank_sum(np.array([1.0, 1.0, 2.0]), np.array([1.0, 0.0, 0.0]))
    assert tied == pytest.approx(rank_sum(np.array([1.0, 1.1, 2.0]), np.array([1.2, 0.0, 0.0])), abs=1e-12)
    assert rank_sum(np.ones(4), np.ones(5)) == 1.0


def test_the_exact_law_and_the_normal_one_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(13)
    inside, outside = rng.standard_normal(120) + 0.2, rng.standard_normal(100)
    exact = rank_sum(inside, outside)
    monkeypatch.setattr("leakcore.audit.trace.measure._EXACT", 0)
    assert rank_sum(inside, outside) != exact
    assert rank_sum(inside, outside) == pytest.approx(exact, rel=0.01)


@pytest.mark.full
def test_intervals_cover_the_rates_of_the_population() -> None:
    """Scores N(1, 1) of 60 members, N(0, 1) of 60 others, whose rates are known; 400 sets: each interval misses in at
    most 5%, up to a 99.9% binomial limit.
    """
    rng = np.random.default_rng(14)
    true = {
        f: float(stats.norm.sf(stats.norm.isf(f) - 1)) for f in (0.05, 0.1)
    }  # fmt: skip
    names = {
        p: float(integrate.quad(lambda x, p=p: stats.norm.pdf(x - 1) * stats.norm.cdf(x) ** (p - 1), -9, 10)[0])
        for p in (2, 10)
    }
    area, inside, outside = names[2], np.arange(60), np.arange(60, 120)
    missed: dict[Any, int] = {}

    def count(key: Any, measured: Measured | None, value: float) -> None:
        assert measured is not None
        assert measured.interval is not None
        assert measured.confidence == 0.95
        low, high = measured.interval
        assert low <= measured.value <= high
        missed[key] = missed.get(key, 0) + (not low <= value <= high)

    for _ in range(400):
        scores = rng.standard_normal(120) + (np.arange(120) < 60)
        pairs = np.where(np.eye(120, dtype=bool), scores, np.where(np.arange(120) < 60, 0.0, scores))
        for fpr, value in true.items():
            count(fpr, rate_at(scores[:60], scores[60:], fpr, LEVEL), value)
        for size, value in names.items():
            count(("named", size), named(pairs, inside, outside, size, LEVEL), value)
        count("area", separation(scores[:60], scores[60:], 0.95), area)
    assert len(missed) == 5
    for key, misses in missed.items():
        assert misses <= stats.binom.ppf(0.999, 400, 0.05), key


def test_an_attack_at_its_bound_is_above_it_by_chance_and_seldom_with_its_interval() -> None:
    """The Gaussian mechanism's best test is exactly at its bound: of 400 runs of 120 and 120, rows independent, more
    than a quarter measure above it, and at most 3 · 2.5%, up to a 99.9% binomial limit, with a whole interval.
    """
    rng = np.random.default_rng(15)
    bounds = {f: float(stats.norm.sf(stats.norm.isf(f) - 1)) for f in (0.01, 0.05, 0.1)}
    above = odd = 0
    for _ in range(400):
        inside, outside = rng.standard_normal(120) + 1, rng.standard_normal(120)
        rows = [
            Compared(what="Naming", rate=measured, bound=bound)
            for fpr, bound in bounds.items()
            if (measured := rate_at(inside, outside, fpr, LEVEL)) is not None
        ]
        assert len(rows) == 3
        above += any(r.above for r in rows)
        odd += any(r.odd for r in rows)
    assert above > 100
    assert odd <= stats.binom.ppf(0.999, 400, 3 * 0.025)


def test_the_noise_of_an_eighth_is_to_be_checked_without_coins_and_the_honest_run_is_not() -> None:
    """300 and 300, fixed seed; the schedule says σ = 8 in 20 full batches."""
    members = np.arange(600) < 300
    assert audit.from_trace(_simulated(members, sigma=8.0, rate=1.0, seed=3)).headline == "Measured."
    odd = audit.from_trace(_simulated(members, sigma=8.0, actual=1.0, rate=1.0, seed=3))
    assert odd.headline == "Above a bound: check."
    assert "Check the loop, σ and the sampling" in odd.verdict()
    assert "members and non-members that are not alike" in odd.verdict()
    assert "Check the loop" in _finding(odd, "Membership").verdict


def _along_one_direction(rng: np.random.Generator, rows: int, sigma: float) -> Trace:
    """One full batch of rows with fair coins, gradients a·v for a uniform in [−1, 1] and one v: one number is released,
    and its noise is in every score.
    """
    a, members, noise = rng.uniform(-1, 1, rows), rng.random(rows) < 0.5, rng.normal(0, sigma)
    together = noise + a[members].sum()
    scores = (together * a - a**2 / 2) / sigma**2
    # Row i: what every row scores where all members but i are known.
    pairs = ((noise + a * members)[:, None] * a - a**2 / 2) / sigma**2
    return Trace(
        noise_multiplier=np.full(1, sigma), max_grad_norm=np.ones(1), batch_rows=np.full(1, rows), sample_rate=1.0,
        expected_batch_size=float(rows), members=members, members_given=True,
        times_seen=members.astype(np.int64), clipped_share=np.ones(rows), membership_sum=scores,
        membership_likelihood=scores, pair_sum=pairs, pair_likelihood=pairs, sampling=by_poisson(1.0),
    )  # fmt: skip


@pytest.mark.slow
def test_noise_that_all_candidates_share_contradicts_no_correct_run() -> None:
    """60 correct runs, fixed seed: rates of some are above their bounds with the whole interval for independent rows,
    and none is contradicted. The gate's error is 0.1%: one in 60 would have p = 0.06, two 0.002.
    """
    rng = np.random.default_rng(16)
    reports = [audit.from_trace(_along_one_direction(rng, 200, 4.0), coins=True) for _ in range(60)]
    assert all(r.passed for r in reports)
    assert sum(r.headline == "Above a bound: check." for r in reports) >= 3


def test_an_interval_above_the_bound_is_not_called_consistent() -> None:
    report = audit.from_trace(_simulated(np.arange(100) < 50, sigma=2.0))
    naming = report.named[0]
    assert naming is not None
    bound = float(report.reconstruction[0].value)
    odd = dataclasses.replace(naming, value=bound + 0.1, interval=(bound + 0.01, 1.0))
    report = dataclasses.replace(report, named=(odd, *report.named[1:]))
    assert report.passed
    assert report.headline == "Above a bound: check."
    assert "Check the loop, σ and the sampling" in report.verdict()
    assert "one run's noise may lift all of them" in _finding(report, "Reconstruction").verdict


def test_a_row_that_no_batch_held_is_not_exposed() -> None:
    trace = _simulated(np.arange(40) < 20, sigma=2.0, rate=0.05)
    unused = np.flatnonzero(trace.members & (trace.times_seen == 0))
    assert len(unused)
    pairs = trace.pair_likelihood.copy()
    pairs[unused, unused] = 1e3
    fields: dict[str, Any] = {**vars(trace), "pair_likelihood": pairs}
    report = audit.from_trace(Trace(**fields))
    assert report.exposed
    assert all(e.times_seen > 0 for e in report.exposed)
    assert not {e.candidate for e in report.exposed} & set(unused.tolist())


def test_members_recognised_in_batches_are_compared_with_what_sampling_allows() -> None:
    """Of 700 rows a tenth is picked in one step at q = 0.1. A rate among these alone is above the bound for members
    whether picked or not, in a run that is as recorded: fixed seed.
    """
    whole = _simulated(np.arange(1000) < 700, sigma=0.4, steps=1, rate=0.1, seed=4)
    chosen = np.flatnonzero((whole.times_seen > 0) | (np.arange(1000) >= 700))
    fields = vars(whole)
    for name in ("times_seen", "clipped_share", "membership_sum", "membership_likelihood"):
        fields = {**fields, name: fields[name][chosen]}
    for name in ("pair_sum", "pair_likelihood"):
        fields = {**fields, name: fields[name][np.ix_(chosen, chosen)]}
    fields = {**fields, "members": fields["times_seen"] > 0}
    stated = audit.from_trace(Trace(**{**fields, "members_given": True}))
    assert stated.headline == "Above a bound: check."
    report = audit.from_trace(Trace(**{**fields, "members_given": False}))
    assert report.picked == pytest.approx(0.1)
    assert report.headline == "Measured."
    with pytest.raises(ValueError, match="knows as members only those that sampling picked"):
        audit.from_trace(Trace(**{**fields, "members_given": False}), coins=True)
    assert any("10.0%" in line for line in report.assumptions())


def _recognised(*, sigma: float, steps: int, rate: float, members: int) -> audit.TraceReport:
    """Members that some batch held, and as many rows again that none did."""
    trace = _simulated(np.arange(2 * members) < members, sigma=sigma, steps=steps, rate=rate, seed=4)
    return audit.from_trace(Trace(**{**vars(trace), "members": trace.times_seen > 0, "members_given": False}))


def test_a_rate_stands_next_to_the_bound_that_it_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """σ = 0.6 in one step at q = 0.3: naming rows that were picked is above the bound of all rows, and below thrice it.
    The table, the sentences, the verdict and the figure print the same number, and what it is.
    """
    report = _recognised(sigma=0.6, steps=1, rate=0.3, members=400)
    assert report.picked == report.lift == pytest.approx(0.3)
    assert json.loads(report.to_json())["picked"] == pytest.approx(0.3)
    words = "for members that sampling picked (bound / 30.0%)"
    table = report.tables()["attacks"]
    assert words in table.caption
    sides = [
        *zip(report.named, [float(b.value) for b in report.reconstruction], strict=True),
        *zip(report.found_at_fpr, np.atleast_1d(report.at_fpr.value).tolist(), strict=True),
    ]
    assert any(measured is not None and bound < float(measured.value) for measured, bound in sides)
    for row, (measured, bound) in zip(table.rows, sides, strict=True):
        assert measured is not None
        lifted = min(1.0, bound / report.lift)
        assert float(measured.value) <= lifted
        assert row.cells[3].text == percent(lifted, "upper")
        assert row.cells[3].note == f"{percent(bound, 'upper')} / 30.0%"
        assert any(
            f"compared with {percent(lifted, 'upper')}" in said
            or f"no attacker beats {percent(lifted, 'upper')}" in said
            for said in report.findings()
        )
    for about in ("Reconstruction", "Membership"):
        assert words in _finding(report, about)
    assert words in _finding(report, "Reconstruction").verdict
    last = percent(min(1.0, sides[1][1] / report.lift), "upper")
    assert f", compared with {last} {words}" in report.verdict()
    drawn: dict[str, Any] = {}

    def draw(fpr: np.ndarray, bound: np.ndarray, *_: Any, **named_: Any) -> str:
        drawn.update(named_, fpr=fpr, bound=bound)
        return "<svg></svg>"

    monkeypatch.setattr("leakcore.audit.shared.plots.roc_svg", draw)
    figure = report.sections()[0].figure
    assert figure is not None
    assert figure.markup() == "<svg></svg>"
    assert words in figure.caption
    assert drawn["bound_name"] == "bound for members that sampling picked"
    plain = np.atleast_1d(report.membership.value)
    assert np.array_equal(drawn["bound"], np.minimum(1.0, plain / report.lift))


def test_where_sampling_picks_every_row_or_the_members_are_given_bounds_stand_as_they_are() -> None:
    trace = _simulated(np.arange(60) < 30, sigma=2.0)
    for report in (audit.from_trace(trace), _recognised(sigma=2.0, steps=60, rate=0.3, members=30)):
        assert report.lift == 1
        assert "sampling picked" not in report.to_text()
        assert not any(row.cells[3].note for row in report.tables()["attacks"].rows)


def test_the_json_holds_p_value_intervals_and_confidence() -> None:
    report = audit.from_trace(_simulated(np.arange(60) < 30, sigma=2.0), confidence=0.9)
    read = json.loads(report.to_json())
    assert read["config"]["confidence"] == 0.9
    assert 0 < read["area"]["p_value"] <= 1
    for measured in (read["area"], *read["named"], *read["found_at_fpr"]):
        if measured is not None:
            assert measured["kind"] == "estimate"
            assert measured["confidence"] == 0.9
            assert len(measured["interval"]) == 2
    assert "90% interval" in report.to_text()
