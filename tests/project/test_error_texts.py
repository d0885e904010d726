"""Errors have one form: "`steps` must be at least 1, got 0", never "steps=0: must be at least 1"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import leakcore

PACKAGE = Path(leakcore.__file__).parent
OLD = re.compile(
    r"[:,;] must\b"  # whatever stands before it, "must" has no subject
    r"|^(\{\}: )?[\w.\[\]{}-]+=(?:[^:`]|'[^']*')*: "  # name=value: ...
    r"|^[^`]*\b(is an? \{\}|has (shape|dtype|type) \{\}): "  # name is a list: ...
)


def _template(node: ast.expr) -> str | None:
    """The text of a literal, {} for whatever is filled in; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join("{}" if isinstance(v, ast.FormattedValue) else str(v.value) for v in node.values)  # type: ignore[attr-defined]
    return None


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Literals with their lines, outside docstrings: what an exception is raised with may be put together elsewhere."""
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return
    if isinstance(tree, ast.expr) and (text := _template(tree)) is not None:
        yield tree.lineno, text
        return
    for child in ast.iter_child_nodes(tree):
        yield from _texts(child)


def _old(source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in _texts(ast.parse(source)) if OLD.search(text)]


def test_no_error_text_has_the_old_form() -> None:
    old = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in _old(path.read_text())
    ]
    assert not old, "\n".join(["write “`name` must be …, got …” instead of", *old])


@pytest.mark.parametrize(
    "text",
    [
        'f"{name}={value!r}: must be in [0, 1]"',
        '"steps=0: must be at least 1"',
        'f"{kernel}: {name} has shape {shape}: must be (n, D)"',
        'f"{name} is a {kind}: must be a sequence"',
        '"`fault`: must be a dpsgd.Fault"',
        'f"row {number} has {n} entries, must have {m}"',
        '"audit.contrast=true: needs images"',
        "\"method='power': whitening needs order 2\"",
    ],
)
def test_the_old_form_is_recognised(text: str) -> None:
    assert _old(f"def f():\n    raise ValueError({text})") == [(2, _template(ast.parse(text, mode="eval").body))]


@pytest.mark.parametrize(
    "text",
    [
        'f"`{name}` must be in [0, 1], got {value!r}"',
        'f"{kernel}: `{name}` must have shape (n, D), got {shape}"',
        "\"`method='power'` needs order 2\"",
        'f"the privacy loss is too rough, at noise_multiplier={sigma}"',
    ],
)
def test_the_new_form_passes(text: str) -> None:
    assert not _old(f"raise ValueError({text})")


def test_docstrings_may_quote_either() -> None:
    assert not _old('def f():\n    """steps=0: must be at least 1"""')
