"""Membership scores of other tools: what the intervals cover, what is proved and what is not."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from leakcore import audit, mechanisms
from leakcore.audit.scores.statistics import area, area_limits, rate_limits
from leakcore.cli import main
from tests.audit.samples import INSIDE, OUTSIDE


def test_the_intervals_cover_as_often_as_they_say() -> None:
    """1,000 draws, 95%: misses of each interval at most 5%, up to a 99.9% binomial limit; ties included."""
    rng = np.random.default_rng(1)
    levels = (0.05, 0.1)
    truth = {f: float(stats.norm.sf(stats.norm.isf(f) - 1)) for f in levels}
    missed = dict.fromkeys([*levels, "area", "tied"], 0)
    whole = float(stats.norm.cdf(1 / math.sqrt(2)))
    for _ in range(1000):
        a, b = rng.normal(1, 1, 80), rng.normal(0, 1, 120)
        for f in levels:
            result = rate_limits(a, b, f, 0.95, ())
            assert result is not None
            assert result.interval is not None
            missed[f] += not result.interval[0] <= truth[f] <= result.interval[1]
        value = area(a, b)
        low, high = area_limits(value, 80, 0.95)
        assert low <= value <= high
        missed["area"] += not low <= whole <= high
        # Scores 0 and 1 alone: at 10% false positives randomisation reaches 0.6·0.1/0.5 at best.
        a, b = (rng.random(80) < 0.6).astype(float), (rng.random(120) < 0.5).astype(float)
        tied = rate_limits(a, b, 0.1, 0.95, ())
        assert tied is not None
        assert tied.interval is not None
        missed["tied"] += not tied.interval[0] <= 0.12 <= tied.interval[1]
    for name, count in missed.items():
        assert count <= stats.binom.ppf(0.999, 1000, 0.05), name


def test_a_proof_needs_coins_or_retrainings_and_a_claim_is_compared_with_it() -> None:
    plain = audit.from_scores(
        INSIDE, OUTSIDE, claimed_epsilon=0.1, claimed_adjacency="add-remove", adjacency="add-remove"
    )
    assert (plain.epsilon.kind, plain.epsilon.confidence, plain.gate) == ("estimate", None, None)
    assert plain.passed
    assert "the claim was not tested" in plain.headline
    assert "prove nothing about ε" in plain.verdict()
    with pytest.raises(ValueError, match="`fail_above` must be left out, got 1"):
        plain.with_limit(1.0)
    for how in ("coins", "retrained"):
        proved = audit.from_scores(
            INSIDE + 3,
            OUTSIDE,
            claimed_epsilon=0.1,
            claimed_adjacency="add-remove",
            **{how: True},
            adjacency="add-remove",
        )
        assert (proved.epsilon.kind, proved.epsilon.confidence) == ("lower", 0.95)
        assert not proved.passed
        assert "above the claimed 0.1" in proved.verdict()
        untested = audit.from_scores(
            INSIDE + 3,
            OUTSIDE,
            claimed_epsilon=50.0,
            claimed_adjacency="add-remove",
            **{how: True},
            adjacency="add-remove",
        )
        assert (untested.passed, untested.tone) == (True, "neutral")
        assert untested.headline == "Not tested: this audit could not have contradicted the claim."
        report = audit.from_scores(
            INSIDE[:150],
            OUTSIDE[:150],
            claimed_epsilon=2.0,
            claimed_adjacency="add-remove",
            **{how: True},
            adjacency="add-remove",
        )
        assert (report.headline, report.tone) == ("Consistent with its claim.", "good")
        assert report.ceiling is not None
        assert 2.0 < report.ceiling < 50.0
        assert not audit.from_scores(INSIDE + 3, OUTSIDE, **{how: True}, adjacency="add-remove").with_limit(0.1).passed
    replaced = audit.from_scores(INSIDE, OUTSIDE, retrained=True, adjacency="replace")
    assert replaced.epsilon.adjacency == "replace"


def test_uneven_coins_are_not_believed() -> None:
    with pytest.raises(ValueError, match="`coins=True` needs fair coins, which do not make 300 of 380"):
        audit.from_scores(INSIDE, OUTSIDE[:80], coins=True)


@pytest.mark.full
def test_rows_left_out_together_share_what_is_proved() -> None:
    """Laplace noise, ε = 1 for each of two rows, both left out: 2 is proved of the pair, at most 1 of a row. 40 draws;
    the gate's error is 0.1% each, that of what is proved 5% each (more than 6 misses have p = 0.0034).
    """
    rng = np.random.default_rng(3)
    proved, beyond = [], 0
    for _ in range(40):
        scores = rng.laplace(2, 1, 2000), rng.laplace(0, 1, 2000)
        report = audit.from_scores(
            *scores,
            retrained=audit.Retrained(k=2),
            delta=0.0,
            claimed_epsilon=1.0,
            claimed_adjacency="replace",
            adjacency="replace",
        )
        assert report.passed
        beyond += float(audit.from_scores(*scores, retrained=True, delta=0.0, adjacency="add-remove").epsilon.value) > 1
        proved.append(float(report.epsilon.value))
    assert sum(epsilon > 1 for epsilon in proved) <= 6
    assert np.mean(proved) > 0.5
    assert beyond > 30, "as one row's it would be more than one row's ε"
    assert "with the 2 rows in question or without" in report.to_text(width=10_000)
    assert report.settings()["k"] == 2


def test_between_the_quoted_level_and_the_gates_it_says_neither_consistent_nor_contradicted() -> None:
    report = audit.from_scores(
        INSIDE + 1,
        OUTSIDE,
        retrained=True,
        claimed_epsilon=50.0,
        claimed_adjacency="add-remove",
        adjacency="add-remove",
    )
    claim = (float(report.epsilon.value) + float(report.gate.value)) / 2  # type: ignore[union-attr]
    report = audit.from_scores(
        INSIDE + 1,
        OUTSIDE,
        retrained=True,
        claimed_epsilon=claim,
        claimed_adjacency="add-remove",
        adjacency="add-remove",
    )
    assert report.passed
    assert report.headline == "Above its claim at 95%, not at 99.9%: check."
    assert any("at the gate's 99.9% it is not" in f.verdict for f in report.findings())  # type: ignore[attr-defined]


def test_the_report_is_json_one_page_and_fits_a_terminal(tmp_path: Path) -> None:
    report = audit.from_scores(INSIDE, OUTSIDE, coins=True, claimed_epsilon=3.0, claimed_adjacency="add-remove")
    read = json.loads(report.to_json())
    assert read["schema"] == "leakcore.scores-audit/1"
    assert read["epsilon"]["assumptions"]["adjacency"] == "add-remove"
    assert [v["about"] for v in read["verdicts"]] == ["Separation", "At few false alarms", "What is proved"]
    assert all(v["verdict"] and v["assumes"] for v in read["verdicts"])
    assert "<svg" in report.to_html()
    assert max(map(len, report.to_text(width=100).splitlines())) <= 100
    audit.from_scores([-np.inf, 0, 1], [np.inf, 0.0], adjacency="add-remove").to_html()


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_a_file_whose_name_is_not_utf_8_has_a_report(suffix: str, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9." + suffix.encode()))
    try:
        if suffix == "npz":
            np.savez(path, members=INSIDE, non_members=OUTSIDE)
        else:
            path.write_text("score,member\n1,1\n2,1\n0,0\n1,0\n")
    except (OSError, UnicodeError):
        pytest.skip("this file system takes UTF-8 names alone")
    report = audit.from_scores(path, adjacency="add-remove")
    assert report.source.startswith(f"caf\\xe9.{suffix} (")
    assert report.to_html(tmp_path / "r.html").read_text(encoding="utf-8")
    for written in (report.to_json(tmp_path / "r.json"), report.to_text()):
        assert written.encode("utf-8")


def test_the_command_and_its_exit_codes(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    np.savez(path, a=INSIDE + 3, b=OUTSIDE)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["audit", "scores", str(path), "--out", str(tmp_path / "r"), *arguments])

    assert run().exit_code == 2
    names = ("--members", "a", "--non-members", "b")
    undecided = run(*names)
    assert undecided.exit_code == 2
    assert "`--adjacency` must be given unless `--coins` is: was a row left out" in undecided.stderr
    assert run(*names, "--retrained").exit_code == 2
    names = (*names, "--adjacency", "add-remove")
    done = run(*names)
    assert done.exit_code == 0, done.output
    assert "estimate" in done.stdout
    assert run(*names, "--fail-above", "1").exit_code == 2
    failed = run(*names, "--coins", "--fail-above", "1")
    assert failed.exit_code == 1
    assert "GATE FAILED: ε proved by the scores = " in failed.stderr
    assert "(lower, 95% confidence, add/remove adjacency) is above the limit 1." in failed.stderr
    unsaid = run(*names, "--coins", "--epsilon", "0.5")
    assert unsaid.exit_code == 2
    assert "`--claimed-adjacency` must be given with" in unsaid.stderr
    claims = ("--claimed-adjacency", "add-remove", "--epsilon")
    assert run(*names, "--coins", *claims, "0.5").exit_code == 1
    assert run(*names, "--coins", *claims, "50").exit_code == 0
    assert run(*names, "--higher", "non-members").exit_code == 0
    assert run(*names, "--retrained", "--k", "4", "--fail-above", "3").exit_code == 0
    for option, value in (("--k", "4"), ("--seed", "7"), ("--select", "split")):
        alone = run(*names, option, value)
        assert alone.exit_code == 2
        assert f"`{option}` must be left out without retrained = true (--retrained), got {value}" in alone.stderr
    assert run(*names, "--retrained", "--seed", "7").exit_code == 0
    gaussian = run(*names, "--retrained", "--select", "simultaneous", "--family", "gdp")
    assert gaussian.exit_code == 0
    assert "if the mechanism is Gaussian" in " ".join(gaussian.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"delta": 1.0}, ValueError, r"`delta` must be in \[0, 1\), got 1.0"),
        ({"coins": True, "retrained": True}, ValueError, "not both"),
        ({"adjacency": "both"}, ValueError, "`adjacency` must be 'add-remove' or 'replace', got 'both'"),
        ({"confidence": 0.0}, ValueError, r"`confidence` must be in \(0, 1 - 1e-12\], got 0.0"),
        ({"claimed_epsilon": -1}, ValueError, "`claimed_epsilon` must be at least 0, got -1"),
        ({"members": [1.0, math.nan]}, ValueError, r"`members\[1\]` must be a number, got nan"),
        ({"members": [1.0]}, ValueError, r"`members` must be one score per row, at least two, got shape \(1,\)"),
        ({"coins": "no"}, TypeError, "`coins` must be True or False, got 'no'"),
        ({"retrained": True, "family": "rdp"}, ValueError, "`family` must be 'dp' or 'gdp', got 'rdp'"),
        ({"retrained": True, "family": "gdp", "delta": 0.0}, ValueError, r"`delta` must be in \(0, 1\) with family"),
        ({"family": "gdp"}, ValueError, "`family` must be 'dp' without coins=True or retrained, got 'gdp'"),
        ({"retrained": 1}, TypeError, "`retrained` must be True or False, got 1"),
        ({"coins": True, "retrained": audit.Retrained(k=2)}, ValueError, "not both"),
        ({"non_members": None}, TypeError, r"`non_members` must be given, or the file that holds.*, got None"),
        ({"members": "x.pkl"}, TypeError, "the file holds them|must end in"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    settings = {"members": INSIDE, "non_members": OUTSIDE, **arguments}
    with pytest.raises((error, ValueError), match=message):
        audit.from_scores(**{"adjacency": "add-remove", **settings})


@pytest.mark.full
def test_many_runs_test_the_claimed_mechanism() -> None:
    claim, rng = mechanisms.FullBatch(2.0, 1), np.random.default_rng(8)
    settings = {"retrained": True, "family": claim, "adjacency": "add-remove"}
    settings |= {"claimed_epsilon": 2.0, "claimed_adjacency": "add-remove"}
    leaky = audit.from_scores(rng.normal(1.5, size=300), rng.normal(size=300), **settings)
    assert not leaky.passed
    assert leaky.p_value < 1e-3
    said = "Under FullBatch(noise_multiplier=2, steps=1), scores would tell the sides apart this well with probability"
    assert leaky.verdict_sentences()[0].startswith(said)
    assert "with some noise ran" in leaky.findings()[-1]
    correct = audit.from_scores(rng.normal(0.5, size=300), rng.normal(size=300), **settings)
    assert correct.p_value > 0.01
    assert 0 < correct.epsilon.value < 2.0 < correct.ceiling


@pytest.mark.parametrize("family", ["dp", "gdp"])
def test_many_runs_prove_more_by_tests_of_ranks_than_by_a_split(family: str) -> None:
    rng = np.random.default_rng(7)
    scores = rng.normal(1.5, size=600), rng.normal(size=600)

    def report(**how: Any) -> audit.ScoresReport:
        return audit.from_scores(*scores, retrained=audit.Retrained(**how), family=family, adjacency="replace")

    halves, every = report(select="split"), report()
    assert (halves.select, every.select, every.family) == ("split", "simultaneous", family)
    assert 0 < float(halves.epsilon.value) < float(every.epsilon.value)
    assert "chosen on one half of the scores" in halves.findings()[-1]
    assert "the order of all scores" in every.findings()[-1]
    assert ("if the mechanism is Gaussian" in every.findings()[-1]) == (family == "gdp")
    # The seed matters where scores are equal, and nowhere else.
    assert report(seed=3).epsilon.value == every.epsilon.value
    scores = scores[0].round(), scores[1].round()
    assert report(seed=3).epsilon.value != report().epsilon.value
    with pytest.raises(ValueError, match="`select` must be 'simultaneous' or 'split', got 'best'"):
        audit.Retrained(select="best")  # type: ignore[arg-type]


def test_scores_ask_for_the_adjacency_unless_coins_decided_who_is_a_member() -> None:
    with pytest.raises(
        TypeError, match=r"`adjacency` must be given to from_scores.* was a row left out \('add-remove'\)"
    ):
        audit.from_scores(INSIDE, OUTSIDE)
    with pytest.raises(TypeError, match="`adjacency` must be given"):
        audit.from_scores(INSIDE, OUTSIDE, retrained=True)
    assert audit.from_scores(INSIDE, OUTSIDE, coins=True).adjacency == "add-remove"
    assert audit.from_scores(INSIDE, OUTSIDE, coins=True, adjacency="replace").epsilon.adjacency == "replace"


@pytest.mark.parametrize(("name", "value"), [("k", 0), ("k", 1.5), ("seed", -1), ("seed", "now")])
def test_a_bad_design_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^`{name}` must be .*, got {value!r}$"):
        audit.Retrained(**{name: value})
