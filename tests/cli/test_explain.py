"""`leakcore explain`: every word of the glossary, by each of its spellings."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest
from click.testing import CliRunner

from leakcore.cli import main
from leakcore.cli.explain import entries, plain


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ("explain", *arguments))


def test_entries() -> None:
    text = resources.files("leakcore.cli").joinpath("glossary.md").read_text(encoding="utf-8")
    assert [f"**{e.word}**" for e in entries()] == [line for line in text.splitlines() if line.startswith("**")]
    assert all(e.section and e.meaning for e in entries())
    assert sum(bool(e.names) for e in entries()) > 20


@pytest.mark.parametrize("spelling", ["ε", "epsilon", "--epsilon", "EPSILON"])
def test_spellings_of_epsilon(spelling: str) -> None:
    done = run("--", spelling)
    assert done.exit_code == 0
    first, meaning, names = done.output.splitlines()
    assert first == "ε  (The mechanism)"
    assert "one row" in meaning
    assert names == "Python epsilon, option --epsilon, TOML [run] epsilon"


def test_words() -> None:
    listed = run().output
    for entry in entries():
        assert entry.word in listed
        assert run(*entry.word.split()).output.splitlines()[:2] == [f"{entry.word}  ({entry.section})", entry.meaning]


def test_unknown_word() -> None:
    done = run("adjacancy")
    assert done.exit_code == 2
    assert "adjacancy: not in the glossary" in done.stderr
    assert "(did you mean adjacency?)" in done.stderr
    assert "did you mean" not in run("xylophone").stderr


def test_completion() -> None:
    asked = {"COMP_WORDS": "leakcore explain cl", "COMP_CWORD": "2", "_LEAKCORE_COMPLETE": "bash_complete"}
    answers = CliRunner().invoke(main, prog_name="leakcore", env=asked).output.split("\n")
    wanted = {e.word for e in entries() if plain(e.word).startswith("cl")}
    assert {answer.partition(",")[2] for answer in answers if answer} == wanted
    assert wanted
