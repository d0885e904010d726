"""The glossary, which the docs show as a page and `leakcore explain` entry by entry."""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

_SECTION = re.compile(r"^## (.+)$")
_WORD = re.compile(r"^\*\*(.+)\*\*$")
_NAME = re.compile(r"`(?:\[\w+\] )?(?:--)?([^`]+)`")


class GlossaryEntry(NamedTuple):
    """One word: its section, what it means, and the names that it has where it is typed (empty where it is not)."""

    section: str
    word: str
    meaning: str
    names: str

    @property
    def spellings(self) -> set[str]:
        """What a person may type for the word: itself, and each of its names."""
        typed = {name.rpartition(".")[2] for name in _NAME.findall(self.names)}
        return {plain(spelling) for spelling in (self.word, *typed)}


def plain(word: str) -> str:
    """The word without case; hyphens and underscores are spaces."""
    return " ".join(word.strip().lower().lstrip("-").replace("-", " ").replace("_", " ").split())


def entries() -> list[GlossaryEntry]:
    """Every entry, in the page's order."""
    text = resources.files("leakcore.cli").joinpath("glossary.md").read_text(encoding="utf-8")
    out: list[GlossaryEntry] = []
    section = word = ""
    lines: list[str] = []
    for line in [*text.splitlines(), "## end"]:
        if line.startswith(": "):
            lines.append(line[2:])
            continue
        if word and lines:
            out.append(GlossaryEntry(section, word, lines[0], " ".join(lines[1:])))
            word, lines = "", []
        if heading := _SECTION.match(line):
            section = heading[1]
        elif bold := _WORD.match(line):
            word = bold[1]
    return out
