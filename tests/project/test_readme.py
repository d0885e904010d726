"""The README's example runs as printed and gives the numbers that its comments state."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_python_example_runs_and_its_comments_are_true() -> None:
    block = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    printed = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(printed):
        exec(compile(block[1], "README.md", "exec"), names)
    epsilon, bound, _, audited = printed.getvalue().splitlines()
    assert re.findall(r"  # [^\n]*?(\d+\.\d+)", block[1]) == ["4.01", "0.187", "99.9", "1.59"]
    assert round(float(epsilon), 2) == 4.01
    assert round(float(bound.split()[0]), 3) == 0.187
    assert float(audited.split()[0]) >= 1.59


def test_every_make_target_named_exists() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", README.read_text(encoding="utf-8"), re.MULTILINE)) <= targets


def test_the_two_lines_for_opacus_are_those_of_the_example() -> None:
    readme = README.read_text(encoding="utf-8")
    example = (README.parent / "examples" / "opacus_digits.py").read_text(encoding="utf-8")
    shown = re.search(r"^with leakcore\.record\(.*$", readme, re.MULTILINE)
    assert shown is not None
    assert shown[0] in example
