"""Refuse the words of words.toml in names, comments, docstrings, texts and pages: `python tests/project/words.py`."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
CHECKED = ("leakcore", "csrc", "tests", "bench", "examples", "docs")
SUFFIXES = (".py", ".md", ".toml", ".h", ".cpp", ".cu", ".cuh")
LIST = "tests/project/words.toml"
NOT_PROSE = (LIST, "tests/project/words.py", "tests/project/test_words.py", "tests/fuzz/corpus")


class Words(NamedTuple):
    """What words.toml holds."""

    not_yet: tuple[str, ...]
    names: dict[str, str]
    phrases: dict[str, str]


class Use(NamedTuple):
    """A refused word in a file."""

    path: str
    line: int
    word: str
    better: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: {self.better}"


def read_words() -> Words:
    table = tomllib.loads((ROOT / LIST).read_text(encoding="utf-8"))
    return Words(tuple(table["not_yet"]), table["names"], table["phrases"])


def uses(path: str, text: str, words: Words) -> Iterator[Use]:
    """Every refused word of a Python file or a page."""
    if path.endswith(".py"):
        yield from _names(path, text, words)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield from _phrases(path, token.string, token.start[0], words)
    else:
        if path.endswith(".md"):
            for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
                first = text.count("\n", 0, block.start(1))
                yield from (use._replace(line=use.line + first) for use in _names(path, block[1], words))
        yield from _phrases(path, text, 1, words)


def _names(path: str, text: str, words: Words) -> Iterator[Use]:
    """Variables and parameters, not fields; phrases in names of functions and classes."""
    tree = ast.parse(text)
    fields = {id(part.target) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
              for part in node.body if isinstance(part, ast.AnnAssign)}  # fmt: skip
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _phrases(path, node.name.replace("_", " "), node.lineno, words)
        if name in words.names:
            yield Use(path, node.lineno, name, words.names[name])


def _phrases(path: str, text: str, first: int, words: Words) -> Iterator[Use]:
    for number, line in enumerate(text.splitlines(), first):
        for phrase, better in words.phrases.items():
            for match in re.finditer(phrase, line):
                yield Use(path, number, match.group().strip(), better)


def all_uses(words: Words) -> dict[str, list[Use]]:
    """{folder: its refused words}, of every folder that is checked. README.md and its neighbours are of folder `.`."""
    out: dict[str, list[Use]] = {}
    for files in (ROOT.glob("*.md"), *(sorted((ROOT / top).rglob("*")) for top in CHECKED)):
        for file in files:
            path = file.relative_to(ROOT).as_posix()
            if file.suffix not in SUFFIXES or "__pycache__" in path or path.startswith(NOT_PROSE):
                continue
            folder = out.setdefault(file.parent.relative_to(ROOT).as_posix(), [])
            folder += uses(path, file.read_text(encoding="utf-8"), words)
    return out


def problems(words: Words, uses_by_folder: dict[str, list[Use]]) -> list[str]:
    """Refused words outside the folders that are not clean yet, and folders that should leave that list."""
    out = []
    for folder, refused in uses_by_folder.items():
        if folder not in words.not_yet:
            out += [str(use) for use in refused]
        elif not refused:
            out.append(f"{folder}: is clean; take it off not_yet in {LIST}")
    out += [f"{folder}: no such folder; take it off not_yet in {LIST}"
            for folder in words.not_yet if folder not in uses_by_folder]  # fmt: skip
    return out


if __name__ == "__main__":
    _words = read_words()
    _problems = problems(_words, all_uses(_words))
    sys.stdout.writelines(f"{problem}\n" for problem in _problems)
    sys.exit(1 if _problems else 0)
