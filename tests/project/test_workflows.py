"""The workflows of the project's home: well formed, and made of commands that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.script import load

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_a_linter_for_workflows_accepts_them() -> None:
    pytest.importorskip("check_jsonschema")
    lint = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*lint, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_it_refuses_a_workflow_with_a_fault(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on", "run-on"), encoding="utf-8")
    lint = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    assert subprocess.run([*lint, str(wrong)], capture_output=True, check=False).returncode != 0


def test_every_step_is_a_target_of_make_or_a_command() -> None:
    pytest.importorskip("yaml")
    commands = [command for _, _, command in load(".ci/workflows.py").steps()]
    assert len(commands) >= 8
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for command in commands:
        program, *words = command.split()
        assert program in ("make", "pip", "leakcore"), command
        assert program != "make" or words[0] in targets, command


def test_the_oldest_and_newest_python_are_what_the_package_asks_for() -> None:
    matrix = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    wanted = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert wanted is not None
    assert f'"{wanted[1]}"' in matrix
