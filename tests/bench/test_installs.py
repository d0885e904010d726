"""Installations in empty environments: the page says what was measured, and the README's example is what runs there."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from bench import installs, kept_page

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "bench" / "results" / "installs.json").read_text(encoding="utf-8"))


def test_the_page_shows_the_kept_result() -> None:
    page = (ROOT / "docs" / "reference" / "platforms.md").read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in installs.MARKS)
    again = "run python -m bench.installs --show JSON --page PAGE"
    assert kept_page.between(page, installs.MARKS, installs.text(KEPT)) == page, again


def test_a_failed_installation_is_said() -> None:
    failed = copy.deepcopy(KEPT)
    failed["rows"][0]["torch"] = {"failed": "no torch for this Python"}
    said = installs.text(failed)
    assert f"Failed: {failed['rows'][0]['python']}" in said
    assert "no torch for this Python" in said


def test_the_example_of_the_readme_is_what_is_installed_for(capsys: pytest.CaptureFixture[str]) -> None:
    exec(installs.quickstart(), {})
    assert "4.01" in capsys.readouterr().out
