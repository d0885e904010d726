"""The schema of the configuration takes what the reader takes, and refuses wrong keys and values as it does."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from leakcore.audit import config_schema, read_config
from leakcore.audit.config_file import FORMS, SECTIONS, read_settings
from leakcore.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

jsonschema = pytest.importorskip("jsonschema")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "audit.toml"


def errors(text: str) -> list[str]:
    """What the schema says against a TOML text."""
    result = jsonschema.Draft202012Validator(config_schema()).iter_errors(tomllib.loads(text))
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in result]


def read(text: str, folder: Path) -> None:
    """Read it as the command does."""
    path = folder / "a.toml"
    path.write_text(text, encoding="utf-8")
    form, sections = read_config(path)
    assert form is not None
    read_settings(form, sections)


def test_it_is_a_schema_of_every_section_and_key() -> None:
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert {name: list(section["properties"]) for name, section in schema["properties"].items()} == {
        name: [field.name for field in dataclasses.fields(cls)] for name, cls in SECTIONS.items()
    }
    assert len(schema["oneOf"]) == len(FORMS)


def test_the_command_prints_it() -> None:
    import json

    done = CliRunner().invoke(main, ["schema", "config"])
    assert done.exit_code == 0
    assert json.loads(done.output) == config_schema()


def _examples() -> list[str]:
    """The configurations of examples/audit.toml: the one that is there, and each of the commented sections below it."""
    whole, _, others = EXAMPLES.read_text(encoding="utf-8").partition("# The other kinds of audit")
    commented = re.sub(r"^# ?", "", others, flags=re.MULTILINE)
    return [whole, *re.findall(r"^\[\w+\][^\n]*\n(?:\w+ = [^\n]*\n)+", commented, re.MULTILINE)]


@pytest.mark.parametrize(
    "text",
    [
        "[run]\n",
        "[run]\nsteps = 5\nsweep = [1, 4.0]\nhidden = [10]\ndefense = 'prune:0.1'\n[report]\nfail_above = 4\n",
        "[trace]\nfile = ['a.npz', 'b.npz']\ncoins = true\nsteps = 9\n",
        "[scores]\nfile = 'a.csv'\nretrained = true\nk = 2\nadjacency = 'replace'\nseed = 7\nhigher = 'members'\n",
        "[claim]\nepsilon = 4\n[audit]\nattack = 'clipbkd'\ntrials = 50\nk = [1, 2]\n[model]\nhidden = [3]\n",
        "[mechanism]\nnoise_multiplier = 1\nbatch_size = 20\n[claim]\nepsilon = 2\n[audit]\nadjacency = 'replace'\n",
    ],
)
def test_what_is_read_fits(text: str, tmp_path: Path) -> None:
    assert errors(text) == []
    read(text, tmp_path)


def test_the_examples_fit() -> None:
    examples = _examples()
    assert len(examples) == 4, "a claim, and [run], [trace], [scores]"
    for text in examples:
        assert errors(text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nstep = 5\n", "run: .*'step' was unexpected"),
        ("[rnu]\n", "'rnu' was unexpected"),
        ("[run]\nsteps = 'many'\n", "run.steps: 'many' is not of type 'integer'"),
        ("[run]\nsample_rate = 0\n", "run.sample_rate: 0 is less than or equal to the minimum of 0"),
        ("[run]\nhidden = [0]\n", "run.hidden.0: 0 is less than the minimum of 1"),
        ("[run]\nactivation = 'sine'\n", "run.activation: 'sine' is not one of"),
        ("[claim]\nepsilon = 4\n[audit]\nk = []\n", r"audit.k: \[\] (should be non-empty|is too short)"),
        ("[trace]\nfile = 'a'\ndelta = 1\n", "trace.delta: 1 is greater than or equal to the maximum of 1"),
        ("[trace]\n", "trace: 'file' is a required property"),
        ("[scores]\nfile = 'a'\nhigher = 'both'\n", "scores.higher: 'both' is not one of"),
        ("[scores]\nfile = 'a'\ncoins = 1\n", "scores.coins: 1 is not of type 'boolean'"),
        ("[scores]\nfile = 'a'\nk = 0\n", "scores.k: 0 is less than the minimum of 1"),
        ("[claim]\nepsilon = 0\n", "claim.epsilon: 0 is less than or equal to the minimum of 0"),
        ("[mechanism]\nnoise_multiplier = 1\nsteps = 99999999\n", "mechanism.steps: 99999999 is greater than"),
        ("[run]\n[trace]\nfile = 'a'\n", "is valid under each of"),
        ("[report]\nfail_above = -1\n[run]\n", "report.fail_above: -1 is less than the minimum of 0"),
    ],
)
def test_what_is_refused_by_itself_does_not_fit(text: str, said: str, tmp_path: Path) -> None:
    assert any(re.search(said, error) for error in errors(text)), errors(text)
    with pytest.raises((ValueError, TypeError)):
        read(text, tmp_path)
