"""Every reader of a user's file, and everything that shows or writes what was read.

Whatever the file is, the outcome is a result or an error that names file and key; memory is in proportion to the file;
nothing waits, runs, or is obeyed.

A find is told by the member and the seed in the name of its test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html.parser
import importlib
import inspect
import json
import os
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from tests.conformance import reader_mutants as mutants
from tests.conformance.reader_child import COMMANDED
from tests.conformance.reader_commands import COMMANDS, FOLDERS, WRITTEN
from tests.conformance.reader_files import MEMBERS, NOT_FILES, ONLY_WRITES, TRUSTED, Member, loop

HERE = Path(__file__).resolve().parent
FEW, MANY = 60, 1000
"""Mutants of a member, by default and in the slow tier."""
FREE = 200 * 2**20
"""Bytes that reading any file may take: three times what `files/limits.py` lets it expand to."""
RATIO = 60
"""Times its own size that reading a file may take, where that is more: Python makes as much of `{},{},{}`."""
REFUSED = (ValueError, TypeError, UnicodeDecodeError, FileNotFoundError)


def child(what: str, *names: str) -> list[dict[str, Any]]:
    """What `reader_child.py` says of these members."""
    done = subprocess.run(
        [sys.executable, str(HERE / "reader_child.py"), what, *names], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (done.returncode, lines[-1:], done.stderr[-2000:])
    return lines


# Memory, waiting, and what is not a file


BOMBED = ("report", "comparison", "cifar-batch", "purchase", "experiment", "reconstructor", "drawing", "toml")


@pytest.mark.full
@pytest.mark.parametrize("names", [BOMBED, pytest.param(tuple(MEMBERS), marks=pytest.mark.slow)], ids=["few", "all"])
def test_a_small_file_takes_little_memory(names: tuple[str, ...]) -> None:
    tried = child("bombs", *names)
    assert len(tried) > 5 * len(names)
    wrong = [t for t in tried if t["error"] not in ("", "ValueError", "TypeError")]
    assert not wrong
    large = [t for t in tried if t["peak"] > max(FREE, RATIO * t["size"])]
    assert not large


@pytest.mark.full
def test_what_is_not_a_file_is_refused_by_name_and_nothing_waits() -> None:
    names = [name for name in MEMBERS if name != "cifar-batch"]  # the bytes of an archive's entry
    tried = child("not-files", *names)
    assert len(tried) == len(names) * len(NOT_FILES)
    wrong = [t for t in tried if t["error"] not in ("ValueError", "TypeError", "FileNotFoundError")]
    assert not wrong
    assert not [t for t in tried if t["peak"] > FREE]
    unnamed = [t for t in tried if "input" not in t["text"] and not t["of"].startswith("report[")]
    assert not unnamed


@pytest.mark.full
def test_commands_end_with_2_and_one_error_that_names_the_file() -> None:
    tried = child("commands", *COMMANDS)
    assert len(tried) == len(COMMANDS) * len(COMMANDED)
    wrong = [t for t in tried if t["code"] != 2 or t["error"] != "SystemExit" or "input" not in t["text"]]
    assert not wrong
    assert not [t for t in tried if t["text"].count("\nError: ") + t["text"].startswith("Error: ") != 1]


# Mutants


def _mutant(member: Member, rng: random.Random) -> bytes:
    data = rng.choice(member.good())
    if member.suffix == ".json" and rng.random() < 0.9:
        return mutants.json_bytes(data, rng)
    if member.suffix == ".npz" and rng.random() < 0.8:
        return mutants.npz_bytes(data, rng)
    return mutants.of_bytes(data, rng)


def _read(member: Member, data: bytes, folder: Path) -> BaseException | None:
    path = folder / f"input{member.suffix}"
    path.write_bytes(data)
    try:
        member.read(path)
    except REFUSED as why:
        return why
    finally:
        for left in folder.iterdir():
            left.unlink()
    return None


def _mutants(name: str, number: int, folder: Path) -> None:
    member = MEMBERS[name]
    for data in member.good():
        assert _read(member, data, folder) is None, f"{name}: a good file is refused"
    refused = 0
    for seed in range(number):
        data = _mutant(member, random.Random(f"{name} {seed}"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                why = _read(member, data, folder)
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
        refused += why is not None
        if why is not None:
            assert type(why) in REFUSED, f"{name}, seed {seed}: {type(why).__name__}: {why}"
            assert str(why).isprintable() or "\n" in str(why), f"{name}, seed {seed}"
            assert not member.named or "input" in str(why), f"{name}, seed {seed}: {why}"
    assert refused > number / 8, "the mutants are harmless, so they prove nothing"


@pytest.mark.full
@pytest.mark.parametrize("name", MEMBERS)
def test_mutants_are_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    _mutants(name, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMBERS)
def test_many_mutants_are_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    _mutants(name, MANY, tmp_path)


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("name", ["comparison", "report", "result", "experiment", "canary-trace", "trace"])
def test_a_refusal_names_the_key(name: str, tmp_path: Path) -> None:
    """Every value in turn is of a type that nothing has: what is refused for it says where."""
    member = MEMBERS[name]
    tree = json.loads(mutants.facts_of(member.good()[0]))
    named = 0
    for at in mutants.places(tree):
        keys = [key for key in at if isinstance(key, str)]
        if not keys or keys[-1] in ("schema", "class"):
            continue
        data = mutants.with_facts(member.good()[0], mutants.replaced(tree, at, {"no such": [{"key": 0}]}))
        why = _read(member, data, tmp_path)
        if why is not None:
            whole = len(keys) == 1 and "no such" in str(why)  # of `report`, which is the object itself
            assert any(key in str(why) for key in keys) or whole, f"{name}, {at}: {why}"
            named += 1
    assert named > 3


def _forms() -> list[tuple[str, str, str]]:
    """(command, section, key) of every key of a configuration."""
    from leakcore import audit
    from leakcore.audit.config_file import FORMS

    schema = audit.config_schema()["properties"]
    sections = [(form, name) for form, names in FORMS.items() for name in (*names, "report")]
    return [(form, name, key) for form, name in sections for key in schema[name]["properties"]]


def test_a_wrong_key_names_itself_and_its_file(tmp_path: Path) -> None:
    """Each key in turn has a value of a type that no key has; the command says so, and so does the library."""
    from click.testing import CliRunner

    from leakcore import audit
    from leakcore.cli.root import main

    path = tmp_path / "input.toml"
    forms = _forms()
    assert len(forms) > 80
    for form, section, key in forms:
        needed = "" if section != "report" else "[claim]\n" if form == "claim" else f"[{form}]\n"
        path.write_text(f"{needed}[{section}]\n{key} = [[[1]]]\n", encoding="utf-8")
        done = CliRunner().invoke(main, ["audit", form, "--config", str(path)])
        assert done.exit_code == 2, (form, section, key, done.output)
        assert "input.toml" in done.stderr, done.stderr
        assert f"{section}.{key}" in done.stderr, done.stderr
        if form == "claim" and section != "report":
            with pytest.raises((ValueError, TypeError), match=rf"(?s)input\.toml.*`{section}\.{key}"):
                audit.ClaimConfig.from_toml(path)
    path.write_text("[run]\nsteps = 3\n", encoding="utf-8")
    done = CliRunner().invoke(main, ["audit", "run", "--config", str(path), "--delta", "2"])
    assert (done.exit_code, "input.toml" in done.stderr) == (2, False), "the option is wrong, the file is not"


# Codecs: every class that is read from a dict


def _instances() -> dict[str, Any]:
    from tests.audit import samples as reports
    from tests.public import test_results

    out: dict[str, Any] = {}
    for whole in (reports.trace(), reports.scores(), reports.canaries(), *test_results._others()):
        for record in test_results._records(whole):
            out.setdefault(type(record).__name__, record)
    return out


@pytest.mark.full
def test_dicts_are_read_or_refused_as_values() -> None:
    """from_dict of every record that reports, experiments and lists are made of: ValueError, and nothing else."""
    instances = _instances()
    assert len(instances) > 25
    for name, record in instances.items():
        tree = json.loads(json.dumps(record.to_dict()))
        for seed in range(FEW // 2):
            rng = random.Random(f"{name} {seed}")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    type(record).from_dict(mutants.mutated_tree(tree, rng))
                except Exception as error:
                    if type(error) is not ValueError:
                        raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
        deep: Any = []
        for _ in range(5000):
            deep = [deep]
        for key in tree:
            with contextlib.suppress(ValueError):  # reports hold more than is read of them
                type(record).from_dict({**tree, key: deep})


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"array": [300], "dtype": "int8", "shape": [1]}, "beyond int8"),
        ({"array": [1.5], "dtype": "int64", "shape": [1]}, "another kind"),
        ({"array": [True], "dtype": "int64", "shape": [1]}, "another kind"),
        ({"array": [2], "dtype": "bool", "shape": [1]}, "another kind"),
        ({"array": ["12"], "dtype": "int64", "shape": [1]}, "another kind"),
        ({"array": ["abc"], "dtype": "<U1", "shape": [1]}, "longer than"),
        ({"array": [1e300], "dtype": "float32", "shape": [1]}, "beyond float32"),
        ({"array": [[1.0]], "dtype": "float64", "shape": [1]}, "deeper than its shape"),
        ({"array": [1.0], "dtype": "float64", "shape": ["1"]}, "not a list of at most"),
        ({"array": [1.0], "dtype": "longdouble", "shape": [1]}, "is none of a number"),
        ({"array": [], "dtype": "f8,(2", "shape": [0]}, "is none of a number"),
        ({"cells": [[0, 1], [0, 2]], "dtype": "int64", "shape": [3]}, "gives a cell twice"),
        ({"cells": [[-1, 1]], "dtype": "int64", "shape": [3]}, "places from 0 to 2"),
        ({"items": [[1, "a"], [1.0, "b"]]}, "gives a key twice"),
        ({"class": "ExperimentResult"}, "must be an object of a class that is known here"),
    ],
)
def test_a_value_that_would_become_another_is_refused(tree: dict[str, Any], words: str) -> None:
    from leakcore._base.codec import from_plain

    with pytest.raises(ValueError, match=r"`\[0\]` must be|must be a list"):
        from_plain({"tuple": [1]}, tuple[str, ...])

    with pytest.raises(ValueError, match=words):
        from_plain({"x": tree}, dict[str, Any])


# The lists: a new reader is missing here


def _public() -> Iterator[tuple[str, Any]]:
    import leakcore

    packages = ["", *(name for name in leakcore.__all__ if inspect.ismodule(getattr(leakcore, name)))]
    inner = ["attacks.labels", "attacks.text", "attacks.inversion", "attacks.membership", "attacks.tensor"]
    for package in (*packages, *inner):
        module = importlib.import_module(f"leakcore.{package}".rstrip("."))
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            where = f"{package}.{name}".lstrip(".")
            if inspect.isclass(value):
                for method in ("load", "from_toml", "from_json", "from_file", "read"):
                    if callable(getattr(value, method, None)):
                        yield f"{where}.{method}", getattr(value, method)
            elif inspect.isfunction(value):
                yield where, value


def _takes_a_path(call: Any) -> bool:
    parameters = inspect.signature(call).parameters.values()
    words = ("Path", "PathLike", "Folder")
    return any(
        any(word in str(p.annotation) for word in words) or p.name in ("path", "file", "folder") for p in parameters
    )


def test_every_public_reader_is_a_member() -> None:
    readers = {name for name, call in _public() if _takes_a_path(call)}
    covered = {name for member in MEMBERS.values() for name in member.covers}
    assert readers - covered - ONLY_WRITES - TRUSTED == set(), "give it a member in tests/conformance/reader_files.py"
    assert (covered | TRUSTED) - readers <= {"audit.read_config"}, "no longer public"
    security = (HERE.parents[1] / "SECURITY.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in security for name in TRUSTED)


def _commands(command: Any, words: tuple[str, ...], context: click.Context) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _commands(command.get_command(context, name), (*words, name), context)
    else:
        for parameter in command.params:
            if isinstance(parameter.type, (click.Path, click.File)):
                yield " ".join(words), parameter


def test_every_file_of_a_command_is_tried() -> None:
    from leakcore.cli.root import main

    tried = {(tuple(w for w in words if w[0] != "-" and w.islower()), *_named(words)) for words, _ in COMMANDS.values()}
    for command, parameter in _commands(main, (), click.Context(main)):
        if parameter.name in WRITTEN or (parameter.name in FOLDERS and command != "attack membership"):
            continue
        named = parameter.opts[0] if parameter.opts[0].startswith("--") else None
        of_command = {name for name, (words, _) in COMMANDS.items() if " ".join(words).startswith(command)}
        assert any(
            (named in words and words[words.index(named) + 1] == "FILE") if named else "FILE" in words
            for words in (COMMANDS[name][0] for name in of_command)
        ), f"{command} {parameter.opts[0]}: give it a line in tests/conformance/reader_commands.py"  # fmt: skip
    assert tried


def _named(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word.startswith("--"))


def test_every_record_is_read_by_the_codec() -> None:
    """A class with a `from_dict` of its own hands it to the codec, which bounds memory and depth."""
    import leakcore

    package = Path(leakcore.__file__).parent
    own = {
        path.relative_to(package).as_posix(): text
        for path in package.rglob("*.py")
        if "def from_dict" in (text := path.read_text(encoding="utf-8"))
    }  # fmt: skip
    words = ("from_plain", "from_fields", "super().from_dict", "checked_sections", "checked(")
    assert [where for where, text in own.items() if not any(word in text for word in words)] == []


@dataclasses.dataclass
class _Wide:
    """An array whose type is stored: what is sparse is written sparse until the value is too large to be read again."""

    arrays: list[np.ndarray]


def test_what_is_written_is_read_again_however_much_it_expands_to() -> None:
    from leakcore._base.codec import from_plain, to_plain

    wide = _Wide([np.zeros(2**20, np.int64) for _ in range(9)])
    plain = to_plain(wide)
    assert [sorted(a) for a in plain["arrays"]].count(["cells", "dtype", "shape"]) == 8
    back = from_plain(plain, _Wide)
    assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(wide.arrays, back.arrays, strict=True))


# What is shown: nothing of a file is obeyed by a browser, by Markdown, by a terminal or by a build server


HOSTILE = (
    "ok\n\n# All gates passed\n\n<img src=https://evil.example/x.png> @org/a [click](https://evil.example) <!-- ",
    "`|`<details><summary>", "``` `` ` \\| \\\\| | a", "www.evil.example GH-1 #12 https://evil.example",
    "1. item", "- item", "+ item", "> quote", "===", "---", "[a]: https://evil.example", "![a](https://evil.example)",
    "<script>alert(1)</script>", '" onmouseover="alert(1)', "' onload='alert(1)", "</td></table></style></title><h1>ok",
    "::error::x", " ::set-output name=a::b", "##[error]x", "\x1b]0;title\x07\x1b[2J", "\u202egnp.exe", "a\r\nb",
    "\udcff",
    "=cmd|' /C calc'!A0", "\x85next", "&lt;b&gt;", "*a* _b_ ~~c~~ $x$", "    code", "\tcode", "@", "<!--", "]]>",
    "{{ 7*7 }}",
)  # fmt: skip


def _hostile_report(text: str) -> dict[str, Any]:
    from tests.conformance.reader_files import report_text

    tree: dict[str, Any] = json.loads(report_text())
    tree["contradictions"] = [text, "x" * 5000]
    tree["version"] = text
    tree["config"] = {"x": {"note": text}, text: text, "deep": {text: [text]}}
    tree["area"]["quantity"] = text
    tree["area"]["value"] = 0.123
    tree["area"]["interval"] = None
    tree["report"]["area"]["method"] = text
    tree[text] = tree["area"]
    return tree


def _shown_outside_code(markdown: str) -> str:
    """What is left of Markdown without its code spans, which end at as many backticks as they begin with."""
    out, at = [], 0
    runs = list(re.finditer(r"`+", markdown))
    number = 0
    while number < len(runs):
        first = runs[number]
        close = next(
            (i for i in range(number + 1, len(runs)) if len(runs[i][0]) == len(first[0])
             and "\n" not in markdown[first.end() : runs[i].start()]), None,
        )  # fmt: skip
        if close is None:
            number += 1
            continue
        out.append(markdown[at : first.start()])
        at, number = runs[close].end(), close + 1
    return "".join([*out, markdown[at:]])


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_and_terminal_show_text_and_obey_none(text: str, tmp_path: Path) -> None:
    from leakcore import audit
    from tests.conformance.reader_files import report_text

    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(report_text(), encoding="utf-8")
    bad.write_bytes(mutants.as_json(_hostile_report(text)))
    compared = audit.compare(good, bad)
    assert audit.Comparison.from_dict(json.loads(json.dumps(compared.to_dict()))) == compared
    markdown = compared.to_markdown()
    plain = _shown_outside_code(markdown)
    assert not re.search(r"[<>@&#*_~$\\!{}`]|https?:|www\.|GH-\d|\]\(|\]:", plain.replace("**", "", 2)), plain
    lines = markdown.splitlines()
    assert all(line.startswith(("- ", "| ", "|-", "**")) or not line for line in lines), markdown
    assert not any(re.match(r"- (\d+[.)]|[-+*>]|\[)", line) for line in lines)
    cells = [re.sub(r"\\.", "", line).count("|") for line in lines if line.startswith("|")]
    assert set(cells) <= {4, 6}, "a cell ends within its text"
    texts = (markdown, compared.to_text(), str(compared), repr(compared))
    assert all(t.isprintable() or set("".join(c for c in t if not c.isprintable())) == {"\n"} for t in texts)
    assert not any(line.lstrip().startswith(("::", "##[")) for line in compared.to_text().splitlines())


class _Page(html.parser.HTMLParser):
    """Elements and attributes of a page, as a browser makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.policy: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attributes]
        of = dict(attributes)
        if of.get("http-equiv") == "Content-Security-Policy":
            self.policy.append(str(of["content"]))
            assert self.tags <= {"html", "head", "meta"}, "what stands before the policy is not under it"

    def handle_comment(self, data: str) -> None:
        assert not re.search(r"[<>]|--", data), data  # matplotlib's, of what a path spells


def _check_page(text: str) -> None:
    page = _Page()
    page.feed(text)
    assert page.policy == [
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    ]
    assert not page.tags & {"script", "img", "iframe", "object", "embed", "form", "base", "link", "foreignobject"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    links = [value for name, value in page.attributes if name in ("href", "xlink:href", "src")]
    assert all(link.startswith(("#", "data:image/png;base64,")) or re.fullmatch(r"[\w%./-]+", link) for link in links)
    assert "url(" not in re.sub(r"url\(#[\w.-]+\)", "", text)
    assert "@import" not in text
    assert text.isprintable() or set("".join(c for c in text if not c.isprintable())) <= {"\n", "\t"}
    text.encode()


@pytest.mark.full
def test_pages_show_text_and_obey_none(tmp_path: Path) -> None:
    """Reports with every hostile text in their parts, and folders of every hostile name, on one page each."""
    from leakcore import audit
    from leakcore.audit.shared import elements

    svg = (
        '<svg onload="alert(1)" style="position:fixed"><script>alert(1)</script><style>body{display:none}</style>'
        '<image href="https://evil.example"/><a href="javascript:alert(1)"><path d="M 0 0"/></a><use href="https://e#a"/>'
        '<foreignObject><h1 xmlns="http://www.w3.org/1999/xhtml">ok</h1></foreignObject>'
        '<g class="verdict" style="fill:url(https://evil.example);stroke:red"><title>&lt;/title&gt;&lt;h1&gt;</title></g></svg>'
    )
    for number, text in enumerate(HOSTILE):
        figure = {"svg": svg, "alt": text, "caption": text}
        tree = json.loads(mutants.as_json(_hostile_report(text)))
        tree["report"]["parts"] = [{
            "key": "k", "findings": [[text, text, text]], "sections": [{"title": text, "tables": [], "figure": figure}],
            "assumptions": [text], "contradictions": [text], "content": {"a": text},
        }]  # fmt: skip
        folder = tmp_path / "all" / re.sub(r"[/\0\udcff]", "_", f"{number} {text}")[:60]
        folder.mkdir(parents=True)
        (folder / "report.json").write_bytes(mutants.as_json(tree))
        if number % 10 == 0:
            _check_page(audit.AuditReport.from_dict(tree).to_html())
    (folder / "report.html").touch()
    (Path(os.fsdecode(os.fsencode(tmp_path / "all") + b"/\xff\n<b>"))).mkdir()
    (Path(os.fsdecode(os.fsencode(tmp_path / "all") + b"/\xff\n<b>")) / "report.json").write_bytes(
        mutants.as_json(tree)
    )
    (Path(os.fsdecode(os.fsencode(tmp_path / "all") + b"/\xff\n<b>")) / "report.html").touch()
    listed = audit.list_reports(tmp_path / "all")
    assert len(listed.reports) == len(HOSTILE) + 1, listed.problems
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        _check_page(listed.to_html())
    assert any(r.link.endswith("%FF%0A%3Cb%3E/report.html") for r in listed.reports)
    text = listed.to_text()
    assert set("".join(c for c in text if not c.isprintable())) == {"\n"}
    assert not any(line.lstrip().startswith(("::", "##[")) for line in text.splitlines())
    audit.ReportList.from_dict(json.loads(listed.to_json().encode("utf-8", "replace"))).to_text()
    assert elements.Part.from_dict(tree["report"]["parts"][0]).sections[0].figure.svg.count("<script") == 0  # type: ignore[union-attr]


# What is written: nothing outside the folder, and no report hides the others


def test_a_link_does_not_lead_out_of_a_folder(tmp_path: Path) -> None:
    from leakcore import experiments
    from leakcore._base.run_folder import PartialResults
    from leakcore._base.writing import CannotWrite, place_in

    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    (inside / "below").mkdir(parents=True)
    for number, target in enumerate(("../outside/x", str(outside / "x"), "below/../../outside/x", "chain")):
        (inside / f"out-{number}").symlink_to(target)
        with pytest.raises(CannotWrite, match=r"is a link that leads out of|symbolic links"):
            place_in(inside, f"out-{number}") if target != "chain" else _chained(inside)
    (inside / "in").symlink_to("below/x")
    assert place_in(inside, "in") == (inside / "below" / "x")
    assert place_in(inside, "new") == inside / "new"
    os.mkfifo(inside / "pipe")
    with pytest.raises(CannotWrite, match="is a pipe"):
        place_in(inside, "pipe")
    name = "reconstruction-table2"
    for ending in ("json", "svg", "png"):
        out = tmp_path / f"figures-{ending}"
        out.mkdir()
        (out / f"{name}.{ending}").symlink_to(outside / "x")
        with pytest.raises(ValueError, match="is a link that leads out of"):
            experiments.run(name, scale="tiny", out=out)
    for link in ("partial", "partial/run"):
        out = tmp_path / link.replace("/", "-")
        (out / link).parent.mkdir(parents=True, exist_ok=True)
        (out / link).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ValueError, match="is a link that leads out of"):
            PartialResults(out, "run", {})
    (tmp_path / "locked" / "partial" / "run").mkdir(parents=True)
    (tmp_path / "locked" / "partial" / "run" / "lock").symlink_to(outside / "lock")
    with pytest.raises((OSError, ValueError)), PartialResults(tmp_path / "locked", "run", {}) as pieces:
        pieces.begin()
    assert not outside.exists()
    assert not (tmp_path / "elsewhere").exists()


STRANGE: dict[str, Any] = {
    **{f"manifest {kind.__name__}": lambda folder, kind=kind: kind(folder / "run.json") for kind in NOT_FILES},
    **{f"piece {kind.__name__}": lambda folder, kind=kind: kind(folder / "x.json") for kind in NOT_FILES},
    "lock": lambda folder: (folder / "lock").mkdir(),
    "a half-written folder": lambda folder: (folder / ".x.json.abcdefgh").mkdir(),
    "a name of controls": lambda folder: (folder / os.fsdecode(b"\xff\x1b[2J\n::error::")).write_text("{}"),
    "deep": lambda folder: (folder / "run.json").write_bytes(b"[" * 100_000),
    "the folder is a pipe": lambda folder: (folder.rmdir(), os.mkfifo(folder)),
    "the folder above is a loop": lambda folder: (folder.rmdir(), folder.parent.rmdir(), loop(folder.parent)),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_run_folder_of_strange_things_is_refused_by_name_and_stays(name: str, tmp_path: Path) -> None:
    from leakcore._base.run_folder import PartialResults

    folder = tmp_path / "partial" / "run"
    folder.mkdir(parents=True)
    STRANGE[name](folder)
    before = sorted(os.fsencode(path) for path in tmp_path.rglob("*"))
    with pytest.raises((ValueError, OSError)) as refused, PartialResults(tmp_path, "run", {}) as pieces:
        pieces.begin()
    said = str(refused.value)
    assert str(folder.parent) in said
    assert not said.startswith("[Errno"), said
    assert said.isprintable(), said
    lock = os.fsencode(folder / "lock")
    assert sorted({os.fsencode(path) for path in tmp_path.rglob("*")} - {lock}) == sorted({*before} - {lock})


def _chained(folder: Path) -> Path:
    from leakcore._base.writing import place_in

    (folder / "chain").symlink_to("out-0")
    return place_in(folder, "out-3")


def _outputs() -> dict[str, tuple[tuple[str, ...], Any]]:
    """Names that leakcore gives to files of a folder that the user names, and what writes them there."""
    from click.testing import CliRunner

    from leakcore import audit, experiments
    from leakcore.cli.root import main
    from tests.conformance.reader_commands import MODEL, prepared

    def command(*words: str) -> Any:
        def run(folder: Path) -> None:
            more = ["--json", "--out", str(folder)] if words[0] == "attack" else ["--out", str(folder)]
            done = CliRunner().invoke(main, [*prepared(words, folder.parent), *more])
            if done.exit_code == 2:
                raise ValueError(done.stderr)

        return run

    rows, batch, weights = ("--data", "ROWS.npz"), ("--batch", "BATCH.npz"), ("--weights", "WEIGHTS.safetensors")
    return {
        "audit": (("report.json", "report.html"), audit.require_report_folder),
        "experiment": (
            tuple(f"reconstruction-table2.{ending}" for ending in ("json", "png", "svg")),
            lambda folder: experiments.run("reconstruction-table2", scale="tiny", out=folder),
        ),
        "experiments": (("index.html",), lambda folder: experiments.run_all(scale="tiny", out=folder)),
        "scores": (("report.json", "report.html"), command("audit", "scores", "ROWS.npz", "--values", "targets",
                                                           "--labels", "members", "--coins")),
        "inversion": (("inversion.npz", "inversion.png"), command("attack", "inversion", *MODEL, *batch)),
        "membership": (("loss.npz",), command("attack", "membership", *MODEL, *weights, *rows)),
        "leakage": (("leakage.json",), command("leakage", MODEL[1], *rows)),
        "prior-aware": (("prior-aware.json",), command("attack", "prior-aware", "--steps", "2", "--runs", "600")),
    }  # fmt: skip


@pytest.mark.parametrize("name", _outputs())
def test_what_is_somebody_elses_is_not_overwritten(name: str, tmp_path: Path) -> None:
    """Before any work, and each file in turn: none of ours is there, and our report is."""
    names, write = _outputs()[name]
    folder = tmp_path / "folder"
    folder.mkdir()
    contents = [b"somebody's", b"", b"{}", b"<!doctype html><title>leakcore</title>", bytes(5000)]
    for target in names:
        for content in contents:
            for ours in (False, True):
                report = folder / names[0]
                if ours and (target == names[0] or not names[0].endswith(".json") or not target.endswith(".html")):
                    continue
                if ours:
                    report.write_text('{"schema": "leakcore.x/1"}', encoding="utf-8")
                (folder / target).write_bytes(content)
                with pytest.raises(ValueError, match=rf"{re.escape(target)}: is not a \w+ of leakcore's"):
                    write(folder)
                assert (folder / target).read_bytes() == content
                for path in folder.iterdir():
                    path.unlink()


@pytest.mark.parametrize("kind", NOT_FILES, ids=lambda kind: kind.__name__)
def test_an_index_that_is_not_a_file_neither_waits_nor_is_written_through(kind: Any, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from leakcore.cli.root import main
    from tests.conformance.reader_files import report_text

    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "report.json").write_text(report_text(), encoding="utf-8")
    kind(tmp_path / "all" / "index.html")
    before = sorted(p.name for p in tmp_path.iterdir())
    done = CliRunner().invoke(main, ["reports", str(tmp_path / "all")])
    if kind.__name__ == "dangling":  # to a place in the folder
        assert (done.exit_code, (tmp_path / "all" / "nowhere").is_file()) == (0, True)
    else:
        assert done.exit_code == 2
        assert "index.html" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_one_bad_report_hides_no_other(tmp_path: Path) -> None:
    """A folder of everything that a report.json may be instead."""
    from leakcore import audit
    from tests.conformance.reader_files import report_text

    good = report_text()
    bad = {kind.__name__: kind for kind in NOT_FILES if kind.__name__ != "folder"}
    for name, kind in bad.items():
        (tmp_path / name).mkdir()
        kind(tmp_path / name / "report.json")
    for number, data in enumerate(mutants.json_bombs(good.encode())):
        (tmp_path / f"bomb-{number}").mkdir()
        (tmp_path / f"bomb-{number}" / "report.json").write_bytes(data)
    deep = tmp_path
    for _ in range(300):
        deep = deep / "d"
        deep.mkdir()
    for folder in (deep, tmp_path / "a b", Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe"))):
        folder.mkdir(exist_ok=True)
        (folder / "report.json").write_text(good, encoding="utf-8")
    listed = audit.list_reports(tmp_path)
    assert len(listed.reports) == 3
    assert len(listed.problems) == len(bad) + number + 1
    assert all(name.endswith("report.json") for name, _ in listed.problems)
    listed.to_text().encode()
    listed.to_html(tmp_path / "index.html")
