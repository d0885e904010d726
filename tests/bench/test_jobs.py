"""Whole jobs and installations: the pages say what was measured, and the smallest job runs."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bench import installs, kept_page
from bench.jobs import __main__ as jobs
from bench.jobs import measuring

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"


@pytest.mark.parametrize(
    ("bench", "name", "page"),
    [
        (jobs, "jobs.json", "docs/explanation/performance.md"),
        (installs, "installs.json", "docs/reference/platforms.md"),
    ],
)
def test_the_page_shows_the_kept_result(bench: ModuleType, name: str, page: str) -> None:
    result = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    text = (ROOT / page).read_text(encoding="utf-8")
    assert all(text.count(mark) == 1 for mark in bench.MARKS)
    assert kept_page.between(text, bench.MARKS, bench.text(result)) == text, (
        "run the bench with --show JSON --page PAGE"
    )


def test_a_slower_job_is_said() -> None:
    result = json.loads((RESULTS / "jobs.json").read_text(encoding="utf-8"))
    faster = copy.deepcopy(result)
    (peer,) = (row for who, row in faster["jobs"]["curve"]["doers"].items() if who != "leakcore")
    peer["median"] = 1e-6
    assert f"Slower than its peer: {result['jobs']['curve']['title']}" in jobs.text(faster)


def test_a_failed_installation_is_said() -> None:
    result = json.loads((RESULTS / "installs.json").read_text(encoding="utf-8"))
    failed = copy.deepcopy(result)
    failed["rows"][0]["torch"] = {"failed": "no torch for this Python"}
    said = installs.text(failed)
    assert f"Failed: {failed['rows'][0]['python']}" in said
    assert "no torch for this Python" in said


def test_a_job_is_timed_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    answer = measuring.in_process("scores", "leakcore", {"a_side": 1000})
    assert answer["seconds"] > 0
    assert 0 < answer["answer"][0] < 5
    assert "absent" in measuring.in_process("scores", "leakcore", {})


def test_the_example_of_the_readme_is_what_is_installed_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert sys.version_info >= (3, 10)
    exec(installs.quickstart(), {})
    assert "4.01" in capsys.readouterr().out
