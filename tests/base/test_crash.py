"""Power cut at every moment of a save: what is there afterwards is the old state or the new one, and work goes on."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import dpsgd
from leakcore._base import run_folder
from leakcore._base.run_folder import PartialResults
from leakcore._base.writing import write_atomically
from tests.base.crashing_disk import Recorder, State, content, restore, states

ME = {"command": "mine"}
Write = Callable[[Path, str], None]


def _naive(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT)
    os.write(handle, text.encode())
    os.close(handle)
    os.replace(temporary, path)


def _check_a_write(root: Path, write: Write, old: str | None) -> int:
    """How many states there were; AssertionError where one holds something else than the old content or the new."""
    path = root / "reports" / "report.json"
    if old is not None:
        path.parent.mkdir()
        path.write_text(old)
    there, recorder = content(root), Recorder(root)
    with recorder.recording():
        write(path, "the new content")
    number = 0
    for done, state in states(there, recorder.operations):
        number += 1
        data = state.get("reports/report.json")
        assert data in (None if old is None else old.encode(), b"the new content"), (done, state)
        if done == len(recorder.operations):
            assert data == b"the new content", "it had returned, and a power cut took it back"
    return number


@pytest.mark.parametrize("old", [None, "old"])
def test_atomic_file(tmp_path: Path, old: str | None) -> None:
    assert _check_a_write(tmp_path, write_atomically, old) > 8


@pytest.mark.parametrize("old", [None, "old"])
def test_file_control(tmp_path: Path, old: str | None) -> None:
    with pytest.raises(AssertionError):
        _check_a_write(tmp_path, _naive, old)


class Job:
    """Three pieces, a report, and the folder removed. computed: the pieces that were not there; sealed: (operations
    done, name) when each was handed back."""

    def __init__(self, root: Path) -> None:
        self.out = root / "new" / "out"
        self.computed: list[str] = []
        self.sealed: list[tuple[int, str]] = []

    def run(self, recorder: Recorder | None = None) -> dict[str, Any]:
        def compute(name: str) -> dict[str, Any]:
            self.computed.append(name)
            return {"of": name, "numbers": list(range(20))}

        values = {}
        with PartialResults(self.out, "run", ME) as pieces:
            for name in "abc":
                values[name] = pieces.get_or_run(name, functools.partial(compute, name))
                self.sealed.append((0 if recorder is None else len(recorder.operations), name))
            write_atomically(self.out / "report.json", json.dumps(values))
            pieces.remove()
        return values


def _check_a_run_folder(root: Path, elsewhere: Path) -> int:
    recorder, job = Recorder(root), Job(root)
    with recorder.recording():
        whole = job.run(recorder)
    number = 0
    for done, state in states({}, recorder.operations):
        again = Job(elsewhere / str(number))
        number += 1
        again.out.parent.parent.mkdir()
        restore(state, again.out.parent.parent)
        report = again.out / "report.json"
        finished = report.exists()
        if finished:
            assert json.loads(report.read_text()) == whole, (done, state)
        assert again.run() == whole, (done, state)
        sealed = {name for at, name in job.sealed if at <= done}
        assert finished or not sealed & set(again.computed), (done, state, "a sealed piece was computed again")
        # A kill while the report is written leaves its temporary file, which nothing takes for a report.
        left = {p.name for p in again.out.iterdir() if not p.name.startswith(".report.json.")}
        assert left == {"report.json"}, (done, state)
    return number


def test_sealed_pieces(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "crashed").mkdir()
    assert _check_a_run_folder(tmp_path / "one", tmp_path / "crashed") > 100


def test_folder_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "crashed").mkdir()
    # Of `remove`: pieces would go before their folder.
    monkeypatch.setattr(run_folder, "sync_folder", lambda folder: None)
    with pytest.raises((AssertionError, ValueError)):
        _check_a_run_folder(tmp_path / "one", tmp_path / "crashed")


ENSEMBLE = dpsgd.Ensemble((4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=2, seed=0)
ROWS = np.random.default_rng(0).random((9, 4)), np.arange(9) % 2


def _trained(out: Path, report: Callable[[int], object]) -> np.ndarray:
    """An ensemble in a run's folder, as audits keep theirs."""
    with PartialResults(out, "run", ME, checkpoints=True) as pieces:
        pieces.begin()
        result = ENSEMBLE.run(
            *ROWS,
            runs=70,
            execution=dpsgd.Execution(
                num_threads=1, checkpoint=pieces.folder, progress=lambda done, total: report(done)
            ),
        )
    return result.parameters


def test_reported_runs(tmp_path: Path) -> None:
    root = tmp_path / "one"
    root.mkdir()
    recorder = Recorder(root)
    sealed: list[tuple[int, int]] = []
    with recorder.recording():
        whole = _trained(root / "out", lambda done: sealed.append((len(recorder.operations), done)))
    tried: list[State] = []
    for done, state in states({}, recorder.operations):
        if state in tried:
            continue
        tried.append(state)
        again = tmp_path / str(len(tried))
        again.mkdir()
        restore(state, again)
        reported: list[int] = []
        np.testing.assert_array_equal(_trained(again / "out", reported.append), whole, err_msg=str(done))
        assert reported[0] >= max((runs for at, runs in sealed if at <= done), default=0), (done, state)
    assert len(tried) > 20
