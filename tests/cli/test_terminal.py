"""Text of strangers never commands the terminal or reorders a page, wherever it comes in."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from leakcore import audit
from leakcore._base.text import LONGEST_MESSAGE, escape_controls, name_of, names_of, printable
from leakcore.audit.progress import progress_bars
from leakcore.audit.shared.elements import Card, Cell, Column, Page, Row, Section, Table
from leakcore.audit.shared.report import to_html, to_text
from leakcore.cli import main
from leakcore.cli.exit_codes import checked
from leakcore.cli.output import RawStream, escaped_streams, indented

EVIL = "a\x1b]0;owned\x07b\x1b[2J\x9b1m\x85c\u202ed\u2066e\u2028f\x7f\r\ngate: PASSED\u200b"
"""Title, clear screen, C1 forms, overrides, separators, a line of its own."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
FORGED = re.compile("^gate: PASSED", re.MULTILINE)


def test_escapes() -> None:
    assert printable("σ ≤ 1e-5 × Σ — naïve 日本 🙂") == "σ ≤ 1e-5 × Σ — naïve 日本 🙂"
    assert printable(EVIL).isprintable()
    assert printable("\x1b\x9b\u202e\n\t\x7f") == "\\u001b\\u009b\\u202e\\n\\t\\u007f"
    assert printable("\udcff") == "\\udcff"
    assert printable("\U000e0041") == "\\udb40\\udc41"
    assert escape_controls("a\n\tb\x1b") == "a\n\tb\\u001b"
    assert name_of("x" * 5000) == "x" * 100 + "… (4,900 more characters)"
    assert names_of(["a"] * 25) == ", ".join(["a"] * 20) + " and 5 more"
    assert names_of([]) == "none"
    assert len(printable("x" * 10**6)) < LONGEST_MESSAGE + 50


def test_escaped_json() -> None:
    value = {EVIL: [EVIL, "\U000e0041"]}
    assert json.loads(escape_controls(json.dumps(value, ensure_ascii=False, indent=2))) == value


def test_lines_of_an_error() -> None:
    lines = indented("first\n  second\ngate: PASSED" + "\nx" * 100)
    assert lines.startswith("first\n  second\n  gate: PASSED\n  x")
    assert len(lines.splitlines()) == 41


def _npz(path: Path, names: list[str]) -> Path:
    content = io.BytesIO()
    np.save(content, np.arange(9.0))
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(f"{name}.npy", content.getvalue())
    return path


def _text(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _safetensors(path: Path, header: str) -> Path:
    raw = header.encode()
    return _text(path, len(raw).to_bytes(8, "little") + raw)


def _trace(folder: Path) -> Path:
    source = Path(__file__).parents[1] / "fuzz" / "corpus" / "trace" / "good.npz"
    out = folder / "t.npz"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "facts.npy":
                content = io.BytesIO()
                np.save(content, np.array(json.dumps({"schema": EVIL}, ensure_ascii=False)))
                data = content.getvalue()
            new.writestr(name, data)
    return out


_LABELS = ("attack", "labels", "--model", "leakcore.models:digits_mlp")
DOORS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "names in npz": lambda f: ("audit", "scores", str(_npz(f / "s.npz", [EVIL, "b"]))),
    "long names in npz": lambda f: ("audit", "scores", str(_npz(f / "s.npz", [f"{i}" * 500 for i in range(99)]))),
    "asked names": lambda f: ("audit", "scores", str(_npz(f / "s.npz", ["a"])), "--values", EVIL, "--labels", "a"),
    "header of csv": lambda f: ("audit", "scores", str(_text(f / "s.csv", f'"{EVIL}",b\n1,2\n'))),
    "cell of csv": lambda f: ("audit", "scores", str(_text(f / "s.csv", f'score,member\n1,"{EVIL}"\n'))),
    "schema of a trace": lambda f: ("audit", "trace", str(_trace(f))),
    "section of toml": lambda f: ("audit", "run", "--config", str(_text(f / "a.toml", f'["{_toml()}"]\n'))),
    "key of toml": lambda f: ("audit", "run", "--config", str(_text(f / "a.toml", f'[run]\n"{_toml()}" = 1\n'))),
    "value of toml": lambda f: (
        "audit", "run", "--config", str(_text(f / "a.toml", f'[run]\nactivation = "{_toml()}"\n')),
    ),
    "path in toml": lambda f: (
        "audit", "scores", "--config", str(_text(f / "a.toml", f'[scores]\nfile = "{_toml()}"\n')),
    ),
    "raw bytes in toml": lambda f: ("audit", "run", "--config", str(_text(f / "a.toml", f"[run]\n{EVIL} = 1\n"))),
    "names in safetensors": lambda f: (
        *_LABELS, "--batch", str(_safetensors(f / "b.safetensors", json.dumps({EVIL: {"dtype": EVIL}}))),
        "--gradient", str(_npz(f / "g.npz", ["a"])),
    ),
    "header of safetensors": lambda f: (
        *_LABELS, "--batch", str(_safetensors(f / "b.safetensors", EVIL)), "--gradient", str(_npz(f / "g.npz", ["a"])),
    ),
    "names of weights": lambda f: (
        *_LABELS, "--batch", str(_npz(f / "b.npz", ["inputs"])), "--gradient", str(_npz(f / "g.npz", ["a"])),
        "--weights", str(_safetensors(f / "w.safetensors", json.dumps(
            {EVIL: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}))),
    ),
    "names in a gradient": lambda f: (
        *_LABELS, "--batch", str(_npz(f / "b.npz", ["inputs"])), "--gradient", str(_npz(f / "g.npz", [EVIL])),
    ),
    "names in a batch": lambda f: (
        *_LABELS, "--batch", str(_npz(f / "b.npz", [EVIL])), "--gradient", str(_npz(f / "g.npz", ["a"])),
    ),
    "a parameter": lambda f: (
        *_LABELS, "--batch", str(_npz(f / "b.npz", ["inputs"])), "--gradient", str(_npz(f / "g.npz", ["a"])),
        "--parameter", EVIL,
    ),
    "name of a file": lambda f: ("audit", "scores", str(f / f"{EVIL.replace('/', '')}.npz")),
    "file that is there": lambda f: ("audit", "scores", str(_text(f / f"{EVIL}.npz", b"x"))),
    "name of a configuration": lambda f: ("audit", "run", "--config", str(f / f"{EVIL}.toml")),
    "place of a report": lambda f: ("audit", "run", "--json", str(_text(f / EVIL, b"") / "r.json")),
    "a model": lambda f: ("leakage", f"{EVIL}:{EVIL}", "--data", "digits"),
    "a data set": lambda f: ("leakage", "leakcore.models:digits_mlp", "--data", EVIL),
    "an attribute": lambda f: (
        "leakage", "leakcore.models:digits_mlp", "--data", str(_npz(f / "d.npz", ["inputs", "targets"])),
        "--attribute", EVIL,
    ),
    "a command": lambda f: (EVIL,),
    "an option": lambda f: ("bound", f"--{EVIL}"),
    "an argument too many": lambda f: ("doctor", EVIL),
    "a number": lambda f: ("bound", "--steps", EVIL),
    "a real number": lambda f: ("bound", "--noise-multiplier", EVIL),
    "a choice": lambda f: ("audit", "claim", EVIL),
    "a sweep": lambda f: ("audit", "run", "--sweep", EVIL),
    "a defence": lambda f: ("audit", "run", "--defense", EVIL),
    "a shape": lambda f: ("attack", "inversion", "--model", "a:b", "--gradient", str(f), "--shape", EVIL),
    "a figure": lambda f: ("reproduce", EVIL),
}  # fmt: skip


def _toml() -> str:
    return "".join(f"\\U{ord(c):08x}" for c in EVIL)


def _is_plain(done: Result) -> None:
    for text in (done.stdout, done.stderr):
        assert OBEYED.search(text) is None, ascii(text)
        assert FORGED.search(text) is None, text


@pytest.mark.parametrize("door", DOORS)
def test_foreign_names(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, DOORS[door](tmp_path))
    assert done.exit_code == 2, done.output
    assert len(done.stderr) < 6000
    _is_plain(done)


FACTORIES = {
    "what it raises": f"def build(): raise RuntimeError({EVIL!r})",
    "what its import raises": f"raise OSError({EVIL!r})",
    "what it prints": f"import sys\ndef build():\n print({EVIL!r}); print({EVIL!r}, file=sys.stderr); raise ValueError",
    "what it logs": f"import logging\ndef build():\n logging.error({EVIL!r}); raise ValueError",
    "a class's name": f"def build(): return type({EVIL!r}, (), {{}})()",
}


@pytest.mark.parametrize("kind", FACTORIES)
def test_factory_output(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "evil_nets", raising=False)
    (tmp_path / "evil_nets.py").write_text(FACTORIES[kind], encoding="utf-8")
    done = CliRunner().invoke(main, ["leakage", "evil_nets:build", "--data", "digits"])
    assert done.exit_code == 2, done.output
    for text in (done.stdout, done.stderr):
        assert OBEYED.search(text) is None, ascii(text)
    monkeypatch.delitem(sys.modules, "evil_nets", raising=False)


def test_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError(EVIL)

    monkeypatch.setattr("leakcore.bounds.reconstruction", failing)
    done = CliRunner().invoke(
        main, ["bound", "--noise-multiplier", "1", "--sample-rate", "1", "--steps", "1", "--num-candidates", "10"]
    )
    assert done.exit_code == 70
    assert OBEYED.search(done.output) is None
    assert "owned" in done.output


def test_reports(tmp_path: Path) -> None:
    path = tmp_path / "x\u202e\x1b[2J\x9b.npz"
    np.savez(path, members=np.arange(9.0) + 3, non_members=np.arange(9.0))
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["audit", "scores", str(path), "--adjacency", "replace", "--out", str(out)])
    assert done.exit_code == 0, done.output
    _is_plain(done)
    assert "owned" not in done.output
    result = audit.from_scores(path, adjacency="replace")
    for text in (result.to_text(), (out / "report.html").read_text(encoding="utf-8")):
        assert OBEYED.search(text) is None
        assert "x\\u202e\\u001b[2J" in text
    assert json.loads(
        CliRunner().invoke(main, ["audit", "scores", str(path), "--adjacency", "replace", "--json"]).stdout
    )


def test_page() -> None:
    table = Table(EVIL, (Column(EVIL, "upper"),), (Row((Cell(EVIL, EVIL),)),), EVIL)
    card = Card(question=EVIL, value=EVIL, kind="upper", interval=EVIL, confidence=EVIL, adjacency=EVIL, detail=EVIL)
    page = Page(
        title=EVIL, tone="good", headline=EVIL, verdict=(EVIL, EVIL), limit=EVIL, cards=(card,),
        findings=(f"{EVIL}: <b>{EVIL}",), sections=(Section(EVIL, (table,)),), assumptions=(EVIL,), seconds=1.0,
        settings={EVIL: EVIL}, environment={EVIL: EVIL},
    )  # fmt: skip
    assert OBEYED.search(to_text(page, 80)) is None
    html = to_html(page)
    assert OBEYED.search(html) is None
    assert "<b>a" not in html


def test_names_in_the_library(tmp_path: Path) -> None:
    """Python shows an error's text as it is: no command stands between."""
    for write in (
        lambda: _npz(tmp_path / "s.npz", [EVIL, "b"]),
        lambda: _text(tmp_path / "s.csv", "\x1b]0,\u202eb\n1,2\n"),
        lambda: _npz(tmp_path / f"{EVIL}.npz", ["a", "b"]),
    ):
        with pytest.raises(ValueError, match="no layout") as refused:
            audit.read_scores(write())
        assert str(refused.value).isprintable()


def test_streams(capsys: pytest.CaptureFixture[str]) -> None:
    with escaped_streams(), escaped_streams():
        click.echo(EVIL)
        print(EVIL, file=sys.stderr)  # noqa: T201
        handler = logging.StreamHandler(sys.stderr)
        handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, EVIL, None, None))
    done = capsys.readouterr()
    assert OBEYED.search(done.out + done.err) is None
    assert (done.out + done.err).count("owned") == 3
    sys.stdout.write("\x1b")
    assert capsys.readouterr().out == "\x1b"


def test_bars(capsys: pytest.CaptureFixture[str]) -> None:
    with escaped_streams():
        show = progress_bars(RawStream(sys.stderr))
        show(EVIL, 1, 2)
        show(EVIL, 2, 2)
    text = capsys.readouterr().err
    assert "\r" in text
    assert "\x1b]" not in text
    assert "\\u001b]0;owned" in text


def test_ascii_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leakcore", "bound", "--steps", "\x1b]0;owned\x07σ"], capture_output=True, check=False,
        env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"owned" in done.stderr


def test_long_message() -> None:
    def failing() -> None:
        raise ValueError("x" * 10**6)

    with pytest.raises(click.ClickException) as failed:
        checked(failing)
    assert len(indented(failed.value.message)) < LONGEST_MESSAGE + 50
