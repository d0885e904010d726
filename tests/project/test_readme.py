"""The README's example runs as printed and gives the numbers that its comments state."""

from __future__ import annotations

import contextlib
import io
import math
import re
from pathlib import Path

import pytest

from tests.project.script import load

README = Path(__file__).resolve().parents[2] / "README.md"


def test_python_example() -> None:
    block = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    assert len(block[1].splitlines()) <= 10
    printed = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(printed):
        exec(compile(block[1], "README.md", "exec"), names)
    epsilon, bound, audited = (line.split() for line in printed.getvalue().splitlines())
    assert re.findall(r"  # [^\n]*?(\d+\.\d+)", block[1]) == ["4.01", "0.187", "1.59"]
    assert round(float(epsilon[0]), 2) == 4.01
    assert round(float(bound[0]), 3) == 0.187
    assert float(bound[0]) <= 0.187
    assert float(audited[0]) >= 1.59
    assert (epsilon[1:], bound[1:], audited[1:]) == (["upper", "add-remove"], ["upper"], ["lower"])


def test_length_and_links() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (README.parent / target).exists(), target


def test_picture() -> None:
    """The bounds by their functions, the attack by the verdict that the README quotes from the same audit."""
    from leakcore import accounting, bounds

    cover = load("docs/hooks/cover.py")
    rows = cover.carried(cover.PICTURE)
    for row in rows:
        bound = bounds.reconstruction(row["sigma"], 1.0, cover.STEPS, kappa=row["guessing"])
        assert bound.value == pytest.approx(row["bound"], rel=1e-9)
        epsilon = accounting.epsilon(row["sigma"], 1.0, cover.STEPS, delta=cover.DELTA)
        assert epsilon.value == pytest.approx(row["epsilon"], rel=1e-5)
        assert row["low"] < row["attack"] < row["high"]
        assert row["attack"] < row["bound"]
    (claimed,) = (row for row in rows if row["epsilon"] == 10.0)
    quoted = re.findall(r"[\d.]+(?=%)", README.read_text(encoding="utf-8").split("```text")[1].split("```")[0])
    rounded = {"bound": math.ceil, "attack": round, "low": math.floor, "high": math.ceil}
    assert quoted == [f"{to_integer(1000 * claimed[name]) / 10:.1f}" for name, to_integer in rounded.items()]


def test_make_targets() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", README.read_text(encoding="utf-8"), re.MULTILINE)) <= targets


def test_opacus_lines() -> None:
    readme = README.read_text(encoding="utf-8")
    example = (README.parent / "examples" / "opacus_digits.py").read_text(encoding="utf-8")
    match = re.search(r"^with leakcore\.record\(.*$", readme, re.MULTILINE)
    assert match is not None
    assert match[0] in example
