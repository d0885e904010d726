"""`leakcore audit`: five subcommands, each with its own help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from leakcore import audit
from leakcore.audit import config_schema
from leakcore.cli import main
from leakcore.cli.audit import CLAIM, RUN, SCORES, TRACE
from tests.audit.samples import orthogonal

AUDIT = main.commands["audit"]
FORMS = {form.name: form for form in (RUN, CLAIM, TRACE, SCORES)}
assert isinstance(AUDIT, click.Group)


def _run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["audit", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "scores.npz", members=rng.normal(1, 1, 50), non_members=rng.normal(0, 1, 50))
    orthogonal(40).save(tmp_path / "trace.npz")
    (tmp_path / "trace.toml").write_text(f"[trace]\nfile = '{tmp_path / 'trace.npz'}'\n")
    (tmp_path / "scores.toml").write_text(f"[scores]\nfile = '{tmp_path / 'scores.npz'}'\ncoins = true\n")
    (tmp_path / "report.toml").write_text("[report]\nfail_above = 100\n")
    return tmp_path


@pytest.mark.parametrize("name", list(FORMS))
def test_options_of_subcommands(name: str) -> None:
    names = {str(p.name) for p in AUDIT.commands[name].params}
    assert names == {*FORMS[name].keys, "config_path", "out", "json_path", "html_path", "fail_above", "quiet"}


def _defaults(name: str) -> Iterator[tuple[str, str, Any]]:
    """(option, default that its help states, default of its key)."""
    sections = config_schema()["properties"]
    for parameter in AUDIT.commands[name].params:
        key = FORMS[name].keys.get(str(parameter.name), "")
        stated = re.search(r"\[default: ([^\];,]+)[\];]", getattr(parameter, "help", None) or "")
        if key and stated:
            section, _, key = key.partition(".")
            yield parameter.opts[0], stated[1], sections[section]["properties"][key].get("default")


@pytest.mark.parametrize("name", list(FORMS))
def test_defaults_in_the_help(name: str) -> None:
    said = list(_defaults(name))
    assert len(said) >= 3
    for option, stated, default in said:
        if default is not None:
            assert (stated == default) if isinstance(default, str) else (float(stated) == default), option
    defaults = inspect.signature(audit.plan).parameters
    for parameter in AUDIT.commands["plan"].params:
        if stated := re.search(r"\[default: (.+)\]", getattr(parameter, "help", None) or ""):
            assert defaults[str(parameter.name)].default in (float(stated[1]), inspect.Parameter.empty)


CLAIMED = ("--claimed-adjacency", "add-remove", "--epsilon", "0.5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trace", "--members", "x"), "`--members` is allowed only with `leakcore audit scores`"),
        (("run", "--coins"), "`--coins` is allowed only with `leakcore audit trace` or `leakcore audit scores`"),
        (("plan", "--trials", "3"), "`--trials` is allowed only with `leakcore audit claim`"),
        (("run", "--trails", "3"), "No such option"),
        (("claim",), "ATTACK must be given, or a --config that describes the audit"),
        (("trace", "--coins"), "FILE must be given, or a --config that describes the audit"),
        (("scores", "--config", "report.toml"), "FILE must be given"),
        (("claim", "clipbk"), "clipbkd"),
        (("scores", "--config", "trace.toml"), "run `leakcore audit trace --config trace.toml`"),
        (("run", "--config", "scores.toml"), "run `leakcore audit scores --config scores.toml`"),
        (("trace", "nowhere.npz"), "`FILE` must be a file that exists, got 'nowhere.npz'"),
        (("trace", "trace.npz", "nowhere.npz"), "`FILE` must be a file that exists, got 'nowhere.npz'"),
        (("scores", "scores.npz", "--adjacency", "replace", "--json", "scores.npz"), "which is also FILE"),
        (("scores", "scores.npz", "--k", "2"), "`--k` must be left out without retrained = true"),
        (("scores", "scores.npz"), "`--adjacency` must be given unless `--coins` is"),
        (
            ("--epsilon", "4", "plan"),
            "`--epsilon` must stand behind a subcommand, one of run, claim, trace, scores, plan",
        ),
        (("--trace", "trace.npz"), "`--trace` must stand behind a subcommand"),
        (("paln",), "No such command 'paln'"),
    ],
)
def test_errors_as_typed(words: tuple[str, ...], message: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    code, _, err = _run(*words)
    assert code == 2, err
    assert message in " ".join(err.split())


def test_failed_gate(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    np.savez("clear.npz", scores=np.arange(400.0), keep=np.arange(400) % 400 >= 200)
    code, out, err = _run("scores", "clear.npz", "--coins", *CLAIMED)
    assert (code, "GATE FAILED: " in err) == (1, True), (out, err)
    assert (files / "leakcore-report" / "report.json").exists()
