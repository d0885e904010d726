"""A report speaks of the whole run, or says that it knows a part and judges nothing: ε, bounds, words, exit codes."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from leakcore import accounting, audit, bounds
from leakcore.cli import main
from leakcore.dpsgd import Trace
from tests.audit.trace.traces import by_poisson, orthogonal

DELTA = 1e-5


def part(unrecorded: Any = ((0, 8.0, 1.0, 60),), *, complete: bool = True, **fields: Any) -> Trace:
    """Twenty recorded steps at σ = 8 of full batches, for which every bound has a closed form."""
    settings = {"noise_multiplier": np.full(20, 8.0), "sample_rate": 1.0, **fields}
    settings = {"sampling": by_poisson(settings["sample_rate"]), **settings}
    return dataclasses.replace(orthogonal(60), unrecorded=unrecorded, complete=complete, **settings)


def sampled(unrecorded: Any = ((0, 2.0, 0.3, 60),), **fields: Any) -> Trace:
    """Twenty recorded steps at σ = 2, q = 0.3."""
    return part(unrecorded, noise_multiplier=np.full(20, 2.0), sample_rate=0.3, **fields)


OLD = part((), complete=False)
COUNTED = part(((0, None, None, 60),), complete=False)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["audit", "trace", "--quiet", *map(str, arguments)])


def test_bounds_match_all_steps() -> None:
    report = audit.from_trace(sampled())
    assert report.epsilon.value == accounting.epsilon(2.0, 0.3, 80, delta=DELTA).value
    replaced = accounting.epsilon(2.0, 0.3, 80, delta=DELTA, adjacency="replace")
    assert report.epsilon_replace.value == replaced.value
    assert report.reconstruction[1].value == bounds.reconstruction(2.0, 0.3, 80, kappa=0.1).value
    at = report.at_fpr
    np.testing.assert_array_equal(at.value, bounds.membership(2.0, 0.3, 80, fpr=at.fpr).value)  # type: ignore[attr-defined]
    assert (report.steps, report.run.steps, report.passed) == (20, 80, True)


def test_steps_of_other_settings_count_with_their_own() -> None:
    trace = sampled(((0, 1.0, 0.1, 7), (4, 3.0, 0.3, 2), (20, 2.0, 1.0, 1)))
    sigma = np.concatenate([np.full(20, 2.0), np.full(7, 1.0), np.full(2, 3.0), [2.0]])
    rate = np.concatenate([np.full(20, 0.3), np.full(7, 0.1), np.full(2, 0.3), [1.0]])
    report = audit.from_trace(trace)
    assert float(report.epsilon.value) == pytest.approx(
        float(accounting.epsilon(sigma, rate, 30, delta=DELTA).value), rel=1e-9
    )
    assert float(report.reconstruction[0].value) == pytest.approx(
        float(bounds.reconstruction(sigma, rate, 30, kappa=0.5).value), rel=1e-9
    )
    assert "the noise over the run's 30 steps" in report.findings()[0]


def test_an_unnoised_step_that_was_not_recorded_leaves_no_guarantee() -> None:
    report = audit.from_trace(part(((0, 0.0, 1.0, 1),)))
    assert report.epsilon.value == np.inf
    assert report.headline == "No privacy guarantee."
    assert audit.from_trace(part(((0, 0.0, 1.0, 1),)), claimed_epsilon=100.0).passed is False


def test_what_is_said_names_the_whole_and_the_part() -> None:
    report = audit.from_trace(part())
    assert ": 20 of 80 steps, full batches" in report.title
    assert ", over 80 steps, 20 of them recorded: no attacker" in report.verdict()
    assert "candidates in the recorded steps reached" in report.verdict()
    assert "over the run's 80 steps gives ε = " in report.findings()[0]
    assert "20 were recorded, 60 are as the optimizer's accountant has them" in report.findings()[0]
    assert "In the 20 recorded steps the prior-aware attack named" in report.findings()[1]
    assert "reached in\nrecorded steps" in [c.title for c in report.tables()["attacks"].columns]
    assert "rates of the 20 that were recorded" in report.tables()["attacks"].caption
    assert any(line.startswith("ε and bounds are of 80 steps: 20 were recorded") for line in report.assumptions())
    read = json.loads(report.to_json())
    assert read["config"]["run"] == {"recorded": 20, "steps": 80, "exact": True, "said": False, "unknown": ""}
    assert (read["passed"], read["undecided"]) == (True, "")


def test_a_claim_is_about_the_whole_run() -> None:
    alone, whole = (float(audit.from_trace(t).epsilon.value) for t in (part(()), part()))
    claim = (alone + whole) / 2
    assert audit.from_trace(part(()), claimed_epsilon=claim).passed is True
    report = audit.from_trace(part(), claimed_epsilon=claim)
    assert report.passed is False
    assert "The schedule of the run's 80 steps gives ε = " in report.contradictions[0]
    limited = audit.from_trace(part()).with_limit(claim)
    assert limited.passed is False
    assert "the accountant's ε of the run's 80 steps = " in limited.exceeded[0]


def test_rates_above_the_parts_bound_and_below_the_runs_are_not_called_chance() -> None:
    """The kind of case: the bound of 20 steps is below what was reached, that of 400 is not."""
    rng = np.random.default_rng(0)
    n = 400
    members = np.arange(n) < n // 2
    pairs = rng.standard_normal((n, n)) + 1.9 * np.diag(members.astype(float))
    trace = dataclasses.replace(
        orthogonal(n), pair_likelihood=pairs, membership_likelihood=pairs.diagonal().copy(), sample_rate=1.0,
        sampling=by_poisson(1.0),
        noise_multiplier=np.full(20, 8.0), unrecorded=((0, 8.0, 1.0, 380),),
    )  # fmt: skip
    report = audit.from_trace(trace)
    alone = audit.from_trace(dataclasses.replace(trace, unrecorded=()))
    assert any(c.above for c in alone.names())
    assert report.names()
    assert not any(c.above for c in (*report.names(), *report.tells()))
    assert "by chance" not in report.to_text()
    unknown = audit.from_trace(dataclasses.replace(trace, unrecorded=(), complete=False))
    assert "by chance" not in unknown.to_text()
    assert "above the bound" not in unknown.to_text()
    assert unknown.headline != alone.headline


@pytest.mark.parametrize("trace", [OLD, COUNTED, part(((0, None, None, 60),)), part(((0, 8.0, None, 60),))])
def test_a_run_that_is_not_known_passes_nothing(trace: Trace) -> None:
    steps = f"20 of {'' if trace.complete else 'at least '}{trace.run_steps} steps"
    for arguments in ({}, {"claimed_epsilon": 100.0}, {"coins": True}, {"coins": True, "claimed_epsilon": 100.0}):
        report = audit.from_trace(trace, **arguments)  # type: ignore[arg-type]
        assert report.passed is None, arguments
        assert (report.headline, report.tone) == ("Not judged: a part of the run is known.", "neutral")
        assert steps in report.verdict()
        assert report.undecided in report.verdict()
        assert "The run has ε" not in report.to_text()
        assert "no attacker beats" not in report.to_text()
        assert report.names() == report.tells() == []
        assert "of the 20 recorded steps alone, not of their run" in report.epsilon.assumptions.notes[-1]
        assert "bound of these\nsteps alone" in [c.title for c in report.tables()["attacks"].columns]
        read = json.loads(report.to_json())
        assert (read["passed"], read["undecided"]) == (None, report.undecided)
        assert read["config"]["run"]["exact"] is trace.complete
        for result in (read["epsilon"], read["reconstruction"][0], read["membership"]):
            assert "alone, not of their run" in result["assumptions"]["notes"][-1]
    limited = audit.from_trace(trace).with_limit(100.0)
    assert limited.passed is None
    assert "NOT DECIDED" in limited.limit_kept()


def test_the_page_of_a_part_says_so() -> None:
    page = audit.from_trace(OLD, claimed_epsilon=100.0).to_html()
    assert "bound of the 20 recorded steps alone" in page
    assert "Not judged: a part of the run is known." in page
    assert '<header class="verdict neutral"' in page


def test_a_part_alone_can_contradict() -> None:
    report = audit.from_trace(OLD, claimed_epsilon=0.5)
    assert report.passed is False
    assert report.contradictions[0].startswith("The noise of the 20 recorded steps alone gives ε = ")
    assert audit.from_trace(OLD).with_limit(0.5).passed is False
    members = np.arange(600) < 300
    scores = np.where(members, 50.0, 0.0)
    stated = dataclasses.replace(
        orthogonal(600),
        membership_likelihood=scores,
        complete=False,
        noise_multiplier=np.full(20, 90.0),
        sample_rate=1.0,
        sampling=by_poisson(1.0),
    )
    assert audit.from_trace(stated, coins=True).passed is None, "the run may have had steps that give so much away"
    caught = audit.from_trace(stated, coins=True, claimed_epsilon=1.0)
    assert caught.passed is False
    assert "Guesses at the coins prove" in caught.verdict()
    assert "the run does not do what its claim says" in caught.verdict()


def test_the_caller_may_say_how_many_steps_the_run_has() -> None:
    whole = audit.from_trace(part())
    for trace in (OLD, COUNTED, part(((0, None, None, 60),))):
        report = audit.from_trace(trace, steps=80)
        assert report.epsilon.value == whole.epsilon.value
        assert report.passed is True
        assert report.run.said
        assert "60 are as the caller says, at the recorded σ and q" in report.findings()[0]
    assert audit.from_trace(part(), steps=80).run == whole.run, "which the trace knows anyway"
    assert audit.from_trace(OLD, steps=20).title == audit.from_trace(part(())).title


@pytest.mark.parametrize(
    ("trace", "steps", "message"),
    [
        (part(), 20, "`steps` must be left out, for the trace knows that its run has 80, got 20"),
        (part(()), 80, "`steps` must be left out, for the trace knows that its run has 20, got 80"),
        (COUNTED, 79, "`steps` must be at least 80, as many as the trace's run has, got 79"),
        (OLD, 19, "`steps` must be at least 20, as many as the trace's run has, got 19"),
        (OLD, 0, r"`steps` must be in \[1, 1000000000\], got 0"),
        (OLD, 2.5, r"`steps` must be an integer, got 2.5"),
        (
            dataclasses.replace(OLD, noise_multiplier=np.linspace(4, 8, 20)),
            80,
            "`steps` must be left out where σ varies, got 80",
        ),
        (part(((0, 3.0, 0.3, 10**8),)), None, r"`trace` must be of a run of at most.*, got 100,000,020"),
        (part(((0, 8.0, 1.0, 10**12),)), None, r"`trace` must be of a run of at most.*, got 1,000,000,000,020"),
        (OLD, 10**10, r"`steps` must be in \[1, 1000000000\], got 10000000000"),
    ],
)
def test_steps_that_do_not_fit_are_refused(trace: Trace, steps: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        audit.from_trace(trace, steps=steps)


def test_members_that_were_recognised_in_a_part_are_not_compared_with_bounds() -> None:
    report = audit.from_trace(sampled(members_given=False))
    assert report.names() == report.tells() == []
    assert report.lift == 1.0
    assert "record with members=…" in report.findings()[1].verdict  # type: ignore[attr-defined]
    assert "no attacker beats" not in report.findings()[2]
    assert audit.from_trace(sampled((), members_given=False)).names()


def test_the_commands_exit_codes(tmp_path: Path) -> None:
    COUNTED.save(tmp_path / "trace.npz")
    command = (tmp_path / "trace.npz", "--json", tmp_path / "report.json")
    for options in (("--epsilon", 100), ("--fail-above", 100), ("--coins",)):
        done = run(*command, *options)
        assert done.exit_code == 2, done.output
        assert re.search(r"^GATE NOT DECIDED: what else was trained is not known", done.stderr, re.MULTILINE)
        assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["passed"] is None
    assert run(*command).exit_code == 0, "nothing was to be judged"
    for options in (("--epsilon", 0.5), ("--fail-above", 0.5)):
        assert run(*command, *options).exit_code == 1
    assert run(*command, "--fail-above", 100, "--steps", 80).exit_code == 0
    assert run(*command, "--fail-above", 1, "--steps", 80).exit_code == 1
    wrong = run(*command, "--steps", 3)
    assert wrong.exit_code == 2
    assert "`--steps` must be at least 80, as many as the trace's run has, got 3" in wrong.stderr


def test_a_file_that_knows_its_run_is_judged_whole(tmp_path: Path) -> None:
    part().save(tmp_path / "trace.npz")
    whole = float(audit.from_trace(part()).epsilon.value)
    options = (tmp_path / "trace.npz", "--json", tmp_path / "report.json")
    assert run(*options, "--fail-above", whole * 1.01).exit_code == 0
    assert run(*options, "--fail-above", whole * 0.99).exit_code == 1


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_several_files_are_one_run_in_the_command_and_its_config(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    from tests.dpsgd.record.recorded_runs import Run

    recording = Run()
    files = [tmp_path / f"{name}.npz" for name in ("first", "second")]
    for file in files:
        recording.part(out=file)
    options = list(files)
    done = run(*options, "--json", tmp_path / "r.json")
    assert done.exit_code == 0, done.output
    read = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (read["config"]["steps"], read["config"]["run"]["steps"]) == (10, 10)
    config = tmp_path / "audit.toml"
    config.write_text(f"[trace]\nfile = {[str(f) for f in files]}\n", encoding="utf-8")
    same = run("--config", config, "--json", tmp_path / "s.json")
    assert same.exit_code == 0, same.output
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["epsilon"] == read["epsilon"]
    for arguments, message in (
        (options[2:] + options[:2], "traces[1] ("),
        ([*options, tmp_path / "none.npz"], "none.npz'"),
        ([*options, "--json", files[1]], "which is also FILE (2)"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2, refused.output
        assert message in refused.output.replace("\n", " ")
    config.write_text("[trace]\nfile = ['a.npz', 3]\n", encoding="utf-8")
    assert "`trace.file[1]` must be a path or a name, got 3" in run("--config", config).output
