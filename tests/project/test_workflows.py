"""The workflows of the project's home: well formed, and made of commands that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import leakcore
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


def workflows() -> dict[str, dict[Any, Any]]:
    """As the linter for workflows reads them, which brings ruamel.yaml."""
    reader = pytest.importorskip("ruamel.yaml").YAML(typ="safe")
    return {path.stem: reader.load(path.read_text(encoding="utf-8")) for path in WORKFLOWS}


def test_each_job_has_the_permissions_that_it_needs_and_no_others() -> None:
    writes = {("docs", "deploy"): {"pages", "id-token"}, ("release", "publish"): {"id-token"}}
    for name, workflow in workflows().items():
        assert workflow["permissions"] == {}, name
        for job, what in workflow["jobs"].items():
            written = {scope for scope, access in what["permissions"].items() if access == "write"}
            assert written == writes.get((name, job), set()), (name, job)
            assert not written or not any("run" in step for step in what["steps"]), "it runs code"
            for step in what.get("steps", ()):
                if step.get("uses", "").startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False, (name, job)


def test_a_release_waits_for_the_tests_of_its_commit_and_for_its_tag() -> None:
    jobs = workflows()["release"]["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert jobs["build"]["needs"] == ["tag", "tests"]
    assert jobs["publish"]["needs"] == "build"
    wrong = load(".ci/check_tag.py").wrong
    assert wrong(f"v{leakcore.__version__}") == ""
    assert wrong("v9.9.9") == f"the tag must be v{leakcore.__version__}, got 'v9.9.9'"
    assert "must be" in wrong("main")


def test_two_archives_of_the_same_files_have_the_same_bytes(tmp_path: Path) -> None:
    wheels = load(".ci/wheels.py")
    archives = []
    for number, names in enumerate((("b", "a/c"), ("a/c", "b"))):
        folder = tmp_path / str(number)
        for name in names:
            path = folder / "leakcore-1" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
            path.chmod(0o640 + number)
            os.utime(path, (number, 10**9 + number))
        archive = folder / "leakcore-1.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            for name in names:
                packed.add(folder / "leakcore-1" / name, f"leakcore-1/{name}")
        archives.append(wheels.reproducible(archive, 1234567890).read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["leakcore-1/a/c", "leakcore-1/b"]
        assert {(m.mtime, m.uid, m.uname, m.mode) for m in packed.getmembers()} == {(1234567890, 0, "", 0o644)}
        assert packed.extractfile("leakcore-1/b").read() == b"b"  # type: ignore[union-attr]


def test_the_oldest_and_newest_python_are_what_the_package_asks_for() -> None:
    matrix = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    wanted = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert wanted is not None
    assert f'"{wanted[1]}"' in matrix
