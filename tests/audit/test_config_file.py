"""The TOML file of audits, its keys, and its JSON Schema."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leakcore import audit
from leakcore._base import reading
from leakcore.audit import config_file as file
from leakcore.audit import config_schema, read_config
from leakcore.audit.config_file import FORMS, SECTIONS, read_settings
from leakcore.cli import main
from tests.audit.samples import orthogonal

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "audit.toml"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments), "--quiet"])


def run_file(path: Path, *arguments: object) -> Result:
    """`leakcore audit FORM --config`, with the form that the file's first section describes."""
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    sections = [name for name in re.findall(r"^\[?(\w+)", text, re.MULTILINE) if name in file.SECTIONS]
    form = next((name for name in sections if name != "report"), "run")
    return run(form if form in ("run", "trace", "scores") else "claim", "--config", path, *arguments)


def written(folder: Path, text: str) -> Path:
    path = folder / "audit.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    orthogonal(40).save(tmp_path / "trace.npz")
    return tmp_path / "trace.npz"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[run]\nepsilom = 4",
            r"`run.epsilom = 4`: no such key \(did you mean `run.epsilon`\?\); \[run\] has epsilon, ",
        ),
        ("[rum]\nepsilon = 4", r"\[rum\]: no such section \(did you mean \[run\]\?\); there are run, trace, "),
        ("[rum]\n[clam]\n", r"\[rum\]: no such section .*\[clam\]: no such section \(did you mean \[claim\]\?\)"),
        ("run = 3", r"`run` must be a section, \[run\], got 3"),
        ("[run]\nepsilon = -1", r"`run.epsilon` must be in \(0, 1e\+06\], got -1"),
        ("[run]\nepsilon = nan", r"`run.epsilon` must be in \(0, 1e\+06\], got nan"),
        ("[run]\nepsilon = true", r"`run.epsilon` must be a number in \(0, 1e\+06\], got True"),
        ("[run]\nsweep = 4.0", r"`run.sweep` must be a list of numbers, each in \(0, 1e\+06\], got 4.0"),
        ("[run]\nhidden = 10", r"`run.hidden` must be a list of integers, each in \[1, 65536\], got 10"),
        ("[run]\nhidden = [3, 0]", r"`run.hidden\[1\]` must be in \[1, 65536\], got 0"),
        ("[run]\nactivation = 'sine'", r"`run.activation` must be 'elu', .*, got 'sine'"),
        ("[run]\nruns = 1.5", r"`run.runs` must be an integer in \[1, 10000000\], got 1.5"),
        ("[run]\ndefense = 3", r"`run.defense` must be text, got 3"),
        ("[run]\ndefense = 'local-steps:3'", r"`run.steps` must be a multiple of the 3 local steps .*, got 100"),
        (
            "[run]\nepsilon = 4\nnoise_multiplier = 1",
            "`run.epsilon` or `run.noise_multiplier` must be given, exactly one of the two",
        ),
        ("[run]\ndelta = 2\n[trace]\nfile = 'x'", r"\[run\], \[trace\]: belong to different audits"),
        (
            "[trace]\ncoin = true",
            r"`trace.coin = True`: no such key \(did you mean `trace.coins`\?\); \[trace\] has file, ",
        ),
        ("[trace]\ncoins = true", r"`trace.file` must be given: a path or a name, or a list of paths or names"),
        ("[trace]\nfile = []", r"`trace.file` must be a path or a name, or a list .*, at least one, got \[\]"),
        ("[trace]\nfile = ['x', 3]", r"`trace.file\[1\]` must be a path or a name, got 3"),
        ("[trace]\nfile = 'x'\ncoins = 1", r"`trace.coins` must be true or false, got 1"),
        ("[trace]\nfile = 'x'\nconfidence = 95", r"`trace.confidence` must be in \(0, 1 - 1e-12\], got 95"),
        (
            "[scores]\nfile = 'x'\nconfidence = 0.9999999999999",
            r"`scores.confidence` must be in .*, got 0.9999999999999",
        ),
        ("[scores]\nfile = 'x'\nseed = -1", r"`scores.seed` must be in \[0, 18446744073709551615\], got -1"),
        ("[trace]\nfile = 'no such file'", "`trace.file` must be a file that exists, got 'no such file'"),
        ("[scores]\nfile = 'x'\nhigher = 'both'", r"`scores.higher` must be 'members' or 'non-members', got 'both'"),
        (
            "[mechanism]\nepsilon = 3",
            r"`mechanism.epsilon = 3`: no such key \(did you mean `claim.epsilon`\?\); \[mechanism\]",
        ),
        ("[claim]\nepsilon = 2024-01-01", r"`claim.epsilon` must be a number above 0, got 2024-01-01"),
        ("[report]\nfail_abov = 3\n[run]", r"`report.fail_abov = 3`: .*\(did you mean `report.fail_above`\?\)"),
        ("[report]\nfail_above = -3\n[run]", r"`report.fail_above` must be at least 0, got -3"),
        ("[report]\njson = 3\n[run]", r"`report.json` must be a path or a name, got 3"),
        ("[run", r"is not TOML \(Expected"),
        ("a = " + "[" * 5000, "is not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_section_key_value_and_what_is_allowed(
    text: str, message: str, tmp_path: Path
) -> None:
    done = run_file(written(tmp_path, text), "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert re.search(message, done.output.replace("\n", " ")), done.output
    assert "Traceback" not in done.output
    assert not list((tmp_path / "out").glob("report.*"))


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    text = "[claim]\nepsilon = -1\ndelta = 3\n[audit]\nk = [0, 'a']\ntrial = 5\n[report]\nout = 3\nfail_above = -1\n"
    path = written(tmp_path, text)
    done = run_file(path, "--confidence", "2")
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        f"Error: config='{path}': `claim.epsilon` must be above 0, got -1",
        "  `claim.delta` must be in (0, 1), got 3",
        "  `audit.k[0]` must be at least 1, got 0",
        "  `audit.k[1]` must be an integer of at least 1, got 'a'",
        "  `--confidence` must be in (0, 1 - 1e-12], got 2.0",
        (
            "  `audit.trial = 5`: no such key (did you mean `audit.trials`?); [audit] has attack, trials, k, "
            "adjacency, contrast, canaries, stop, confidence, seed"
        ),
        "  `report.out` must be a path or a name, got 3",
        "  `report.fail_above` must be at least 0, got -1",
    ]


def test_a_file_that_is_not_a_configuration_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in run_file(tmp_path / "none.toml").output
    path = tmp_path / "huge.toml"
    path.write_bytes(b"#" * (reading.LARGEST_TOML + 1))
    assert "is larger than" in run_file(path).output
    path.write_bytes(b"\xff\xfe")
    assert "cannot be read" in run_file(path).output


def test_options_that_cannot_be_are_refused(tmp_path: Path, trace: Path) -> None:
    for arguments, message in (
        (("scores", "x.npz", "--fail-above", "-1"), "`--fail-above` must be at least 0, got -1.0"),
        (("trace", trace, "--json", tmp_path), "is a folder"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert message in done.output.replace("\n", " "), done.output


def test_a_recorded_run_from_a_file_and_options_before_it(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where nobody has left a report
    config = written(
        tmp_path, f"[trace]\nfile = '{trace}'\ndelta = 1e-6\nnum_candidates = 5\n[report]\nfail_above = 100\n"
    )
    done = run_file(config, "--delta", "1e-4", "--json", tmp_path / "a" / "r.json", "--html", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "a" / "r.json").read_text(encoding="utf-8"))
    assert (content["config"]["delta"], content["candidate_counts"]) == (1e-4, [2, 5])
    assert content["limit"]["fail_above"] == 100.0
    sentence = "Limit ε = 100: kept. Compared with it: the accountant's ε of the recorded schedule"
    assert sentence in done.output.replace("\n", " ")
    assert "upper, deterministic, add/remove adjacency" in content["limit"]["judged"][0]["guarantee"]
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not Path("leakcore-report").exists()
    assert all(len(line) <= 110 for line in done.stdout.splitlines() if str(tmp_path) not in line)


@pytest.mark.full
def test_the_limit_is_a_gate_of_its_own(tmp_path: Path, trace: Path) -> None:
    out = ("--out", tmp_path / "out")
    failed = run("trace", trace, "--fail-above", "1", *out)
    assert failed.exit_code == 1
    line = failed.stderr.splitlines()[-1]
    assert line.startswith("GATE FAILED: the accountant's ε of the recorded schedule = ")
    assert line.endswith("is above the limit 1.")
    assert "ABOVE THE LIMIT." in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["passed"] is False
    alone = run("trace", trace, "--json", *out)
    assert alone.exit_code == 0
    assert json.loads(alone.stdout)["limit"] == {
        "fail_above": None,
        "judged": json.loads(alone.stdout)["limit"]["judged"],
        "exceeded": [],
    }


@pytest.mark.full
def test_the_default_audit_from_a_file(tmp_path: Path) -> None:
    text = "[run]\nepsilon = 2.0\nsweep = []\nruns = 16\nnum_rows = 60\nsteps = 4\nlabel_trials = 2\nlabel_steps = 4\n"
    done = run_file(written(tmp_path, text), "--noise-multiplier", "3", "--fail-above", "0.5", "--out", tmp_path)
    assert done.exit_code == 1, done.output
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (content["config"]["noise_multiplier"], content["config"]["epsilon"], content["config"]["runs"]) == (
        3.0,
        None,
        16,
    )
    assert len(content["limit"]["judged"]) == 2
    assert content["limit"]["exceeded"]
    assert content["contradictions"] == []


def test_the_annotated_example_is_read_and_every_key_in_it_exists(tmp_path: Path) -> None:
    """Its commented sections are uncommented one by one; then the example itself runs, with fewer models."""
    text = EXAMPLE.read_text(encoding="utf-8")
    form, sections = file.read_config(EXAMPLE)
    assert form == "claim"
    audit.ClaimConfig.from_dict({n: k for n, k in sections.items() if n != "report"})
    tail = "\n".join(line.removeprefix("#").strip() for line in text[text.index("# [run]") :].splitlines())
    for name, block in re.findall(r"^\[(\w+)\][^\n]*\n(.*?)(?=^\[|\Z)", tail, re.DOTALL | re.MULTILINE):
        form, sections = file.read_config(written(tmp_path, f"[{name}]\n{block}"))
        assert form == name
        assert isinstance(file.read_settings(name, sections)[0], file.SECTIONS[name])
    done = run_file(EXAMPLE, "--trials", "20", "--steps", "4", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "Limit ε = 4: kept. Compared with it: the audited ε" in done.stdout.replace("\n", " ").replace("  ", " ")
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["config"]["audit"]["trials"] == 20


@pytest.mark.parametrize("text", ["", "# nothing\n", "[report]\nfail_above = 3\n"])
def test_a_file_that_describes_no_audit_is_refused_before_any_work(text: str, tmp_path: Path) -> None:
    for form, subject in (("trace", "FILE"), ("scores", "FILE"), ("claim", "ATTACK")):
        done = run(form, "--config", written(tmp_path, text), "--out", tmp_path / "out")
        assert done.exit_code == 2, done.output
        lacking = f"{subject} must be given, or a --config that describes the audit" if "report" in text else "is empty"
        assert lacking in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_a_file_with_only_a_report(tmp_path: Path, trace: Path) -> None:
    config = written(tmp_path, "[report]\nfail_above = 1\n")
    done = run("trace", trace, "--config", config, "--out", tmp_path / "out")
    assert done.exit_code == 1, done.output
    assert "is above the limit 1." in done.output


def test_the_documentation_lists_every_key_with_its_default(tmp_path: Path) -> None:
    """A key without a value by default is there as a comment."""
    page = (EXAMPLE.parent.parent / "docs" / "how-to" / "config.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    visited = set()
    for block in blocks:
        values = reading.read_toml(written(tmp_path, block))
        for name, body in re.findall(r"^\[(\w+)\][^\n]*\n(.*?)(?=^\[|\Z)", block, re.DOTALL | re.MULTILINE):
            defaults = {field.name: field.default for field in dataclasses.fields(file.SECTIONS[name])}
            missing = (None, dataclasses.MISSING)
            absent = set(re.findall(r"^# (\w+)(?: |$)", body, re.MULTILINE))
            assert absent == {key for key, default in defaults.items() if default in missing}, name
            settings = {k: tuple(v) if isinstance(v, list) else v for k, v in values[name].items()}
            assert settings == {k: v for k, v in defaults.items() if v not in missing}, name
            visited.add(name)
    assert visited == set(file.SECTIONS)


def test_a_report_takes_parts_of_other_studies(trace: Path) -> None:
    from leakcore.audit.shared import elements

    report: Any = audit.from_trace(trace)
    part = elements.Part(
        key="elsewhere", findings=("Elsewhere: <b>seen</b>.",), assumptions=("A thing holds.",), content={"x": 1},
        contradictions=("The part is wrong.",),
    )  # fmt: skip
    both = report.with_parts(part)
    assert report.passed
    assert not both.passed
    assert "The part is wrong." in both.to_text()
    assert both.to_dict()["elsewhere"] == {"x": 1}
    assert "&lt;b&gt;seen&lt;/b&gt;" in both.to_html()
    with pytest.raises(ValueError, match="`key` must differ from the report's parts and fields, got 'elsewhere'"):
        both.with_parts(part)
    with pytest.raises(ValueError, match="`key` must differ from the report's parts and fields, got 'roc'"):
        report.with_parts(elements.Part(key="roc"))


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

jsonschema = pytest.importorskip("jsonschema")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "audit.toml"


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
