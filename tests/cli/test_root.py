"""The command's own face: help by question, completion, how much it says."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from leakcore.cli import main
from leakcore.cli.explain import SHELLS

BOUND = ("bound", "--noise-multiplier", "1", "--sample-rate", "1", "--steps", "1", "--num-candidates", "10")


def run(*arguments: str, **more: Any) -> Any:
    return CliRunner().invoke(main, arguments, prog_name="leakcore", **more)


def test_help() -> None:
    lines = run("--help").output.splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith("?"))
    named = [line.split()[0] for line in lines[start:] if line.startswith("  ") and not line.startswith("   ")]
    assert sorted(named) == sorted(main.commands)
    headings = [line for line in lines[start:] if line and not line.startswith(" ")]
    assert len(headings) >= 5
    assert all(line.endswith("?") for line in headings)


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_script(shell: str) -> None:
    script = run("completion", shell).output
    assert "_LEAKCORE_COMPLETE" in script
    assert f"{shell}_complete" in script
    program = shutil.which(shell)
    if program is not None:
        read = subprocess.run([program, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("leakcore ca", {"calibrate"}), ("leakcore bound --num", {"--num-candidates", "--num-samples"}),
     ("leakcore attack ", {"labels", "inversion", "membership", "prior-aware"}),
     ("leakcore audit ", {"run", "claim", "trace", "scores", "plan"})],
)  # fmt: skip
def test_completion(words: str, wanted: set[str]) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_LEAKCORE_COMPLETE": "bash_complete"}
    answers = run(env=asked).output.split()
    assert {answer.partition(",")[2] for answer in answers} == wanted


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_in_bash(tmp_path: Path) -> None:
    command = tmp_path / "leakcore"
    command.write_text(f"#!{sys.executable}\nfrom leakcore.cli import main\nmain(prog_name='leakcore')\n")
    command.chmod(0o755)
    ask = "COMP_WORDS=(leakcore doc); COMP_CWORD=1; _leakcore_completion leakcore; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", f"{run('completion', 'bash').output}\n{ask}"], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout.split() == ["doctor"], done.stderr


def test_imports_of_help() -> None:
    slow = "sorted({'numpy', 'scipy', 'torch', 'pydantic', 'matplotlib', 'jinja2', 'tqdm'} & set(sys.modules))"
    for words in (["--help"], ["audit", "--help"], ["completion", "bash"], ["leakage", "--help"]):
        code = (
            f"import sys; from leakcore.cli import main\ntry: main({words!r})\nfinally: print({slow}, file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.strip()) == (0, "[]"), words


@pytest.fixture
def _logging_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from leakcore import bounds

    compute = bounds.reconstruction

    def logging_too(*args: Any, **kwargs: Any) -> Any:
        for level in (logging.DEBUG, logging.WARNING, logging.ERROR):
            logging.getLogger("leakcore.somewhere").log(level, "said at %s", logging.getLevelName(level))
        return compute(*args, **kwargs)

    monkeypatch.setattr(bounds, "reconstruction", logging_too)


@pytest.mark.usefixtures("_logging_bound")
@pytest.mark.parametrize(("options", "levels"), [((), ["WARNING", "ERROR"]), (("--quiet",), ["ERROR"])])
def test_verbosity(options: tuple[str, ...], levels: list[str]) -> None:
    before = logging.getLogger("leakcore").handlers[:], logging.getLogger("leakcore").level
    for _ in range(2):
        done = run(*options, *BOUND)
        assert done.exit_code == 0
        assert done.stderr.splitlines() == [f"{level} leakcore.somewhere: said at {level}" for level in levels]
        assert "said" not in done.stdout
    assert (logging.getLogger("leakcore").handlers, logging.getLogger("leakcore").level) == before


@pytest.mark.usefixtures("_logging_bound")
@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_verbose_computation(option: str) -> None:
    done = run(option, *BOUND)
    assert done.exit_code == 0
    lines = [re.fullmatch(r" *(\d+\.\d{3}) s  (\w+) ([\w.]+): (.*)", line) for line in done.stderr.splitlines()]
    assert all(lines), done.stderr
    said = [line.groups() for line in lines if line]
    expected = [(level, "leakcore.somewhere", f"said at {level}") for level in ("DEBUG", "WARNING", "ERROR")]
    assert [line[1:] for line in said][:3] == expected
    assert [float(seconds) for seconds, *_ in said] == sorted(float(seconds) for seconds, *_ in said)
    level, name, message = said[3][1:]
    assert (level, name) == ("INFO", "leakcore.bounds")
    assert re.fullmatch(r"bounds\.reconstruction: \d+\.\d{3} s, method closed-form", message)
    assert len(said) == 4
    assert run(*BOUND).stdout == done.stdout


def test_quiet_and_verbose() -> None:
    done = run("--quiet", "--verbose", *BOUND)
    assert done.exit_code == 2
    assert "--quiet, --verbose: give one or the other" in done.stderr


def test_quiet_after_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from leakcore.cli import output

    answers = []

    @click.command()
    def probe() -> None:
        answers.append(output.is_quiet())

    from leakcore.cli.options import QUIET

    monkeypatch.setitem(main.commands, "probe", QUIET(probe))
    for arguments in (("probe",), ("--quiet", "probe"), ("probe", "--quiet")):
        assert run(*arguments).exit_code == 0
    assert answers == [False, True, True]
