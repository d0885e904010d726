"""The workflows of the project's home: well formed, and made of commands that exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project.script import load

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_linter() -> None:
    pytest.importorskip("check_jsonschema")
    lint = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*lint, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_steps() -> None:
    pytest.importorskip("ruamel.yaml")
    commands = [command for _, _, command in load(".ci/workflows.py").steps()]
    assert len(commands) >= 8
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for command in commands:
        program, *words = command.split()
        assert program in ("make", "pip", "leakcore", "python", "python3"), command
        assert program != "python3" or (ROOT / words[0]).is_file(), command
        assert program != "make" or words[0] in targets, command


def test_python_versions() -> None:
    matrix = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    wanted = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert wanted is not None
    assert f'"{wanted[1]}"' in matrix


WRITES = {("docs", "deploy"): {"pages", "id-token"}, ("release", "publish"): {"id-token"}}


def _workflows() -> dict[str, dict[Any, Any]]:
    reader = pytest.importorskip("ruamel.yaml").YAML(typ="safe")
    return {path.stem: reader.load(path) for path in WORKFLOWS}


def _jobs() -> list[tuple[str, str, dict[Any, Any]]]:
    return [(name, job, what) for name, flow in _workflows().items() for job, what in flow["jobs"].items()]


def test_pinned_actions() -> None:
    for path in WORKFLOWS:
        for line in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"\./\S+\.yml|[\w./-]+@[0-9a-f]{40} # v[\d.]+", line), f"{path.name}: {line}"


def test_permissions() -> None:
    assert all(flow["permissions"] == {} for flow in _workflows().values())
    for name, job, what in _jobs():
        writes = {scope for scope, access in what["permissions"].items() if access == "write"}
        assert writes == WRITES.get((name, job), set()), f"{name}: {job}"


def test_code_in_writing_jobs() -> None:
    for name, job, what in _jobs():
        if "write" in what["permissions"].values():
            used = [step.get("uses", "run") for step in what["steps"]]
            assert all(not u.startswith(("run", "actions/checkout")) for u in used), f"{name}: {job}"


def test_credentials() -> None:
    for name, job, what in _jobs():
        for step in what.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False, f"{name}: {job}"


def test_release_conditions() -> None:
    jobs = _workflows()["release"]["jobs"]
    assert set(jobs["publish"]["needs"]) == {"tag", "tests", "build"}
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"


def test_hashes_of_build_tools() -> None:
    pytest.importorskip("ruamel.yaml")
    installs = [c for name, _, c in load(".ci/workflows.py").steps() if name == "wheels" and c.startswith("pip")]
    assert installs
    assert all(c == "pip install --require-hashes -r .ci/release-requirements.txt" for c in installs)
    lines = (ROOT / ".ci" / "release-requirements.txt").read_text(encoding="utf-8").splitlines()
    entries = " ".join(line.rstrip("\\") for line in lines if not line.startswith("#"))
    packages = re.split(r"\s+(?=[\w.-]+==)", entries.strip())
    assert len(packages) >= 10
    assert all(re.fullmatch(r"[\w.-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+\s*", package) for package in packages)


@pytest.mark.parametrize(("tag", "code"), [("v0.0.0", 1), ("", 1), (None, 0)])
def test_tag(tag: str | None, code: int) -> None:
    (version,) = set(load(".ci/release_tag.py").versions().values())
    script = [sys.executable, str(ROOT / ".ci" / "release_tag.py"), f"v{version}" if tag is None else tag]
    assert subprocess.run(script, capture_output=True, check=False).returncode == code


@pytest.mark.full
def test_reproducible_sdist(tmp_path: Path) -> None:
    """Whatever the clock, the umask and the order of the folder."""
    archives = []
    for name, mtime, umask in (("one", 1_000_000_000, 0o022), ("two", 1_500_000_000, 0o077)):
        tree = tmp_path / name
        for part in ("leakcore/_base", "csrc/core", ".ci"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
            shutil.copy2(ROOT / file, tree / file)
        for path in tree.rglob("*"):
            os.utime(path, (mtime, mtime))
        command = f"umask {umask:o}; {sys.executable} setup.py --quiet sdist"
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        done = subprocess.run(
            command, shell=True, cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        (archive,) = (tree / "dist").glob("*.tar.gz")
        archives.append(archive.read_bytes())
    assert archives[0] == archives[1]
