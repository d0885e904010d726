"""Whole jobs: the page says what was measured, and a small job runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from bench import kept_page
from bench.jobs import __main__ as jobs
from bench.jobs import measuring

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"


def test_the_page_shows_the_kept_result() -> None:
    result = json.loads((RESULTS / "jobs.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in jobs.MARKS)
    again = "run python -m bench.jobs --show JSON --page PAGE"
    assert kept_page.between(page, jobs.MARKS, jobs.text(result)) == page, again


def test_a_slower_job_is_said() -> None:
    result = json.loads((RESULTS / "jobs.json").read_text(encoding="utf-8"))
    faster = copy.deepcopy(result)
    (peer,) = (row for who, row in faster["jobs"]["curve"]["doers"].items() if who != "leakcore")
    peer["seconds"] = [1e-6 for _ in peer["seconds"]]
    assert f"Slower than its peer: {result['jobs']['curve']['title']}" in jobs.text(faster)


def test_who_used_more_than_one_processor_is_said() -> None:
    result = json.loads((RESULTS / "jobs.json").read_text(encoding="utf-8"))
    result["jobs"]["curve"]["doers"]["leakcore"]["processors"] = 1.9
    assert f"{result['jobs']['curve']['title']} (leakcore, 1.9)" in jobs.text(result)


def test_a_job_is_timed_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    answer = measuring.in_process("scores", "leakcore", {"a_side": 1000})
    assert answer["seconds"] > 0
    assert answer["processors"] < 1.5, "one thread was asked for"
    assert 0 < answer["answer"][0] < 5
    assert "absent" in measuring.in_process("scores", "leakcore", {})
