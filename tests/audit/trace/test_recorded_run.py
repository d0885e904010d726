"""What a recorded run is asked: parts put together, the whole run, and its mechanism."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from opacus.schedulers import StepNoise

from leakcore import accounting, audit, bounds, mechanisms
from leakcore.cli import main
from leakcore.dpsgd import Sampling, Trace
from tests.audit.samples import by_poisson, orthogonal
from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import Run, require_equal, unrecorded

pytest.importorskip("opacus")


pytestmark = IGNORED


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("settings", [{}, {"members": None}])
def test_parts_joined_are_the_trace_recorded_in_one(settings: dict[str, Any]) -> None:
    whole = Run().part(3, **settings).trace()
    run = Run()
    parts = [run.part(**settings) for _ in range(3)]
    require_equal(audit.join(parts), whole)
    require_equal(audit.join([audit.join(parts[:2]), parts[2]]), whole)
    ours, theirs = audit.from_trace(audit.join(parts)), audit.from_trace(whole)
    assert ours.epsilon.value == theirs.epsilon.value
    assert [str(f) for f in ours.findings()] == [str(f) for f in theirs.findings()]


def test_noise_that_changes_between_parts_stays_with_its_steps() -> None:
    def parts(count: int) -> list[Any]:
        run = Run()
        scheduler = StepNoise(run.optimizer, step_size=1, gamma=0.8)
        with run.record() as recorder:
            run.train(1)
            scheduler.step()
            recorders = [recorder]
            if count == 1:
                run.train(1)
        return recorders if count == 1 else [*recorders, run.part()]

    require_equal(audit.join(parts(2)), parts(1)[0].trace())


def test_what_was_not_recorded_stays_outside() -> None:
    run = Run()
    run.train(2)
    first = run.part()
    with first:
        run.train(1)
    run.train(0)
    second = run.part()
    joined = audit.join([first, second])
    assert (unrecorded(joined), joined.steps, joined.run_steps) == ([(0, 10)], 15, 25)
    run.train(1)
    assert unrecorded(audit.join([first, second])) == [(0, 10), (15, 5)], "what came after the last part"


@pytest.mark.full
def test_a_part_is_not_reported_as_the_run(tmp_path: Path) -> None:
    """Three epochs trained, the fourth recorded: ε is that of Opacus's accountant over all four, and so is the gate."""
    run = Run(accountant="prv")
    run.train(3)
    recorder = run.part(out=tmp_path / "trace.npz")
    whole, alone = run.engine.get_epsilon(1e-5), Run().part().trace()
    claim = (whole + float(audit.from_trace(alone).epsilon.value)) / 2
    for trace in (recorder, recorder.trace(), tmp_path / "trace.npz"):
        report = audit.from_trace(trace, claimed_epsilon=claim)
        assert report.passed is False
        assert 0.98 * whole < float(report.epsilon.value) <= whole, "the accountant's is rounded up"
    command = ["audit", "trace", str(tmp_path / "trace.npz"), "--json", str(tmp_path / "report.json")]
    assert CliRunner().invoke(main, [*command, "--fail-above", str(claim)]).exit_code == 1
    assert CliRunner().invoke(main, [*command, "--fail-above", str(whole)]).exit_code == 0


_RESUMED = """
import sys
from pathlib import Path
from tests.dpsgd.record.recorded_runs import Run
folder = Path(sys.argv[1])
run = Run(seed=77)  # other parameters and random numbers, until the checkpoint is loaded
run.load(folder / "checkpoint.pt")
run.part(2, out=folder / "second.npz")
"""


@pytest.mark.full
def test_a_run_resumed_in_a_new_process_is_the_run_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = Run().part(3).trace()
    run = Run()
    run.part(1, out=tmp_path / "first.npz")
    run.save(tmp_path / "checkpoint.pt")
    script = tmp_path / "resumed.py"
    script.write_text(_RESUMED)
    root = Path(__file__).resolve().parents[3]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path)], cwd=root, check=False, capture_output=True,
        text=True, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    files = [tmp_path / "first.npz", tmp_path / "second.npz"]
    assert unrecorded(Trace.load(files[1])) == [(0, 5)]
    joined = audit.join(files)
    require_equal(joined, whole)
    whole_report = audit.from_trace(whole)
    for report in (audit.from_trace(joined), audit.from_trace(files[1])):
        assert float(report.epsilon.value) == pytest.approx(float(whole_report.epsilon.value), rel=1e-12)
    assert whole_report.run.recorded == whole_report.run.steps == 15


def _parts(**settings: Any) -> tuple[Run, list[Trace]]:
    run = Run(**settings)
    return run, [run.part().trace() for _ in range(3)]


def test_what_is_not_a_run_in_order_is_refused() -> None:
    _, (first, second, third) = _parts()
    for traces, message in (
        ([first, third], r"traces\[1\]: its first step is number 11 of the run, and .* number 5: steps between them"),
        ([second, first], r"traces\[1\]: its first step is number 1 of the run, and .* number 10: they overlap"),
        ([first, first], "they overlap"),
        ([first, second, second], r"traces\[2\]: .*they overlap"),
    ):
        with pytest.raises(ValueError, match=message):
            audit.join(traces)


@pytest.mark.full
def test_what_is_of_another_run_is_refused(tmp_path: Path) -> None:
    _, (first, second, _) = _parts()
    _, (_, other, _) = _parts(seed=9)
    with pytest.raises(ValueError, match="its parameters before its first step differ from the ones after"):
        audit.join([first, other])
    other.save(tmp_path / "other.npz")
    with pytest.raises(ValueError, match=r"traces\[1\] \('.*other.npz'\): its parameters before its first step"):
        audit.join([first, tmp_path / "other.npz"])
    noisier = _parts(noise_multiplier=2.0)[1][1]
    with pytest.raises(ValueError, match=r"its accountant has step 1 of the run at σ = 2, the part before at 1.5"):
        audit.join([first, noisier])
    x, y = torch.randn(11, 5), torch.arange(11) % 3
    run = Run()
    run.part()
    for settings, message in (
        ({"candidates": (x, y)}, "its candidates differ from the part before"),
        ({"members": np.arange(11) < 5}, "its members differ from the part before"),
        ({"members": None}, "members_given is False, in the part before True"),
        ({"sampling": 0.25}, "sample_rate is 0.25, in the part before 0.2"),
    ):
        if "sampling" in settings:
            run.loader.batch_sampler.sample_rate = settings["sampling"]
        with pytest.raises(ValueError, match=message):
            audit.join([first, run.part(**settings)])
    assert second.origin is not None
    shaped = dataclasses.replace(second, origin=dataclasses.replace(second.origin, shapes=((4, 6),)))
    with pytest.raises(ValueError, match=r"its parameters have shapes \(\(4, 6\),\), in the part before \(\(4, 5\)"):
        audit.join([first, shaped])
    with pytest.raises(ValueError, match="does not record its candidates and parameters"):
        audit.join([first, dataclasses.replace(second, origin=None)])
    larger = dataclasses.replace(second, expected_batch_size=9.0)
    with pytest.raises(ValueError, match=r"expected_batch_size is 9.0, in the part before 8.0"):
        audit.join([first, larger])


def test_a_run_that_went_back_to_a_checkpoint_overlaps(tmp_path: Path) -> None:
    """An epoch was recorded past the checkpoint: its steps are not those of the resumed run."""
    run = Run()
    run.save(tmp_path / "checkpoint.pt")
    first = run.part().trace()
    resumed = Run(seed=77)
    resumed.load(tmp_path / "checkpoint.pt")
    again = resumed.part().trace()
    with pytest.raises(ValueError, match="step is number 1 of the run, and the part before ends with number 5"):
        audit.join([first, again])
    run.load(tmp_path / "checkpoint.pt")  # into the same objects, which have made the steps that the accountant forgot
    again = run.part().trace()
    assert (again.complete, again.run_steps) == (False, 10)
    with pytest.raises(ValueError, match="or another checkpoint"):
        audit.join([first, again])


def test_parts_that_no_accountant_counted_are_joined_in_the_order_given() -> None:
    run = Run()
    run.optimizer.attach_step_hook(None)
    whole = run.part(2, sampling=0.2).trace()
    run = Run()
    run.optimizer.attach_step_hook(None)
    parts = [run.part(sampling=0.2).trace() for _ in range(2)]
    require_equal(audit.join(parts), whole)
    assert not audit.join(parts).complete
    unknown = [dataclasses.replace(part, unrecorded=()) for part in parts]
    require_equal(audit.join(unknown), whole)
    for wrong in ([unknown[1], unknown[0]], [unknown[0], unknown[0]]):
        with pytest.raises(ValueError, match="its parameters before its first step differ from the ones after"):
            audit.join(wrong)
    blind = [dataclasses.replace(unknown[0], origin=dataclasses.replace(unknown[0].origin, after=None))] * 2  # type: ignore[type-var]
    with pytest.raises(ValueError, match="repeats the part before"):
        audit.join(blind)


@pytest.mark.parametrize("traces", [[], "trace.npz", Path("trace.npz"), 3, [3], None])
def test_only_a_list_of_parts_is_taken(traces: Any) -> None:
    with pytest.raises(
        (ValueError, TypeError), match=r"`traces(\[0\])?` must (be|hold) .*, got (none|str|PosixPath|int|NoneType)"
    ):
        audit.join(traces)
    with pytest.raises(FileNotFoundError):
        audit.join(["no such file.npz"])


def test_one_part_is_itself() -> None:
    part = Run().part().trace()
    assert audit.join([part]) is part
    with pytest.raises(TypeError, match="`traces` must be a list of the parts of a run, in its order, got Trace"):
        audit.join(part)  # type: ignore[arg-type]


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


@pytest.mark.full(keep=1)
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


@pytest.mark.full
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
        (options[::-1], "traces[1] ("),
        ([*options, tmp_path / "none.npz"], "none.npz'"),
        ([*options, "--json", files[1]], "which is also FILE (2)"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2, refused.output
        assert message in refused.output.replace("\n", " ")
    config.write_text("[trace]\nfile = ['a.npz', 3]\n", encoding="utf-8")
    assert "`trace.file[1]` must be a path or a name, got 3" in run("--config", config).output


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


def _same(report: audit.TraceReport, mechanism: Any, *premises: str) -> None:
    """The mechanism's own numbers, and what their relation presupposes of the program."""
    for mine, theirs in (
        (report.epsilon, accounting.epsilon(mechanism, delta=1e-5)),
        (report.reconstruction[1], bounds.reconstruction(mechanism, kappa=0.1)),
        (report.at_fpr, bounds.membership(mechanism, fpr=np.array([0.01, 0.05, 0.1]))),
    ):
        assert mine is not None
        assert mine.assumptions.notes == (*theirs.assumptions.notes, *premises)
        assert dataclasses.replace(mine, assumptions=theirs.assumptions) == theirs


@pytest.mark.full
def test_shuffled_batches_give_a_bracket_and_name_what_poisson_accounting_claims() -> None:
    report = audit.from_trace(_trace(SHUFFLED))
    mechanism = mechanisms.Shuffled(2.0, 5, 4)
    _same(report, mechanism, "the number of rows is public")
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


@pytest.mark.full
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
    _same(report, mechanism, "the number of rows is public")
    assert note in report.findings()[0]


@pytest.mark.full
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
    _same(report, mechanisms.FixedSize(2.0, 8, 40, 20))  # neighbours under replacement have as many rows anyway
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


@pytest.mark.full
def test_a_mechanism_says_how_many_steps_a_run_has() -> None:
    cut = _trace(complete=False)
    assert audit.from_trace(cut).undecided
    report = audit.from_trace(cut, mechanism=mechanisms.Shuffled(2.0, 5, 10))
    assert (report.run.steps, report.run.unknown, report.passed) == (50, "", True)
    with pytest.raises(ValueError, match="`steps` must be left out where a mechanism is passed, got 50"):
        audit.from_trace(cut, mechanism=mechanisms.Shuffled(2.0, 5, 10), steps=50)


@pytest.mark.full
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
