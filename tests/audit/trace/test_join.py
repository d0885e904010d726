"""Parts of one run, joined, are the run: what one recording of it all gives. Whatever is not of one run is refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from leakcore import audit
from leakcore.cli import main
from leakcore.dpsgd import Trace

pytest.importorskip("opacus")
from opacus.schedulers import StepNoise

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import Run, require_equal, unrecorded

pytestmark = IGNORED


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
