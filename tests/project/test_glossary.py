"""The glossary is regular and names what exists."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from leakcore.audit import config_file as file
from leakcore.cli import main

GLOSSARY = Path(__file__).resolve().parents[2] / "leakcore" / "cli" / "glossary.md"
ENTRY = re.compile(r"^\*\*(.+)\*\*\n: (.+)\n(?:: (.+)\n)?", re.MULTILINE)
NAMES = re.compile(r"(Python|option|TOML) `([^`]+)`")
PACKAGES = (
    "accounting", "attacks", "audit", "bounds", "datasets", "defenses", "dpsgd", "experiments", "kernels", "leakage",
    "mechanisms", "models", "numerics",
)  # fmt: skip


def _entries() -> dict[str, tuple[str, dict[str, str]]]:
    """{word: (meaning, {where: name})}."""
    text = GLOSSARY.read_text(encoding="utf-8")
    return {word: (meaning, dict(NAMES.findall(names or ""))) for word, meaning, names in ENTRY.findall(text)}


def _offered(module: Any, known: set[int]) -> Iterator[Any]:
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if id(value) not in known:
            known.add(id(value))
            if inspect.ismodule(value):
                yield from _offered(value, known)
            else:
                yield value


def _parameters() -> set[str]:
    """Names of the parameters of every public function and class, and of the fields of results."""
    known: set[int] = set()
    names = set()
    for package in PACKAGES:
        for value in _offered(importlib.import_module(f"leakcore.{package}"), known):
            if not callable(value):
                continue
            members = [m for n, m in inspect.getmembers(value, inspect.isroutine) if n[0] != "_"]
            for function in (value, *members) if inspect.isclass(value) else (value,):
                try:
                    names |= set(inspect.signature(function).parameters)
                except (TypeError, ValueError):  # a function of another library
                    continue
            if dataclasses.is_dataclass(value):
                names |= {field.name for field in dataclasses.fields(value)}
    return names


def _options(command: click.Command) -> set[str]:
    own = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*map(_options, inner))


def _toml_keys() -> set[str]:
    return {f"[{section}] {field.name}" for section, cls in file.SECTIONS.items() for field in dataclasses.fields(cls)}


@pytest.mark.full(keep=13)
@pytest.mark.parametrize("word", _entries())
def test_names_of_entries(word: str) -> None:
    _, names = _entries()[word]
    if "option" in names:
        assert names["option"] in _options(main)
    if "TOML" in names:
        assert names["TOML"] in _toml_keys()
    if "Python" in names and "." not in names["Python"]:
        assert names["Python"] in _parameters()
