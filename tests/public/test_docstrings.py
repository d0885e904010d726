"""Every public name says what it is, in at most 250 words, with one entry per parameter and an example that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

PACKAGES = [
    "leakcore",
    *(
        f"leakcore.{p}"
        for p in "accounting attacks audit bounds datasets mechanisms defenses dpsgd experiments".split()
    ),
    *(f"leakcore.{p}" for p in "kernels leakage models numerics bounds.laplace bounds.methods".split()),
    *(f"leakcore.attacks.{p}" for p in "attributes imprint inversion labels membership poisoning tensor text".split()),
]

MOST_WORDS = 250
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Guarantees", "Example", "Note")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def members(package: str) -> Iterator[tuple[str, Any]]:
    """The functions and classes that a package offers, except what another package defines and lists."""
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]:
        member = getattr(module, name)
        if not (inspect.isfunction(member) or inspect.isclass(member)):
            continue
        if hasattr(module, "__all__") or member.__module__ == package:
            yield f"{package}.{name}", member


def sections(text: str) -> dict[str, str]:
    """The body of each section of a Google docstring by its name; the text before them under the empty name."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def entries(section: str) -> list[str]:
    """The names that a section explains: its lines that are indented once and begin with a name and a colon."""
    return [name.lstrip("*") for name in re.findall(r"^    (\*{0,2}\w+)(?: \([^)]*\))?:", section, flags=re.MULTILINE)]


def faults(name: str, member: Any) -> list[str]:
    """What the docstring of a public function or class lacks."""
    text = inspect.getdoc(member) or ""
    parts = sections(text)
    prose = text.replace(parts.get("Example", ""), "")
    listed = []
    if not text.partition("\n")[0].strip().endswith((".", "?")):
        listed.append("its first line is not a sentence")
    if (words := len(prose.split())) > MOST_WORDS:
        listed.append(f"{words} words without its example, more than {MOST_WORDS}")
    wanted = _parameters(member)
    documented = entries(parts.get("Args", "")) + entries(parts.get("Attributes", ""))
    listed += [f"`{parameter}` has no entry" for parameter in wanted if parameter not in documented]
    if inspect.isfunction(member):
        listed += [f"no section {section}" for section in ("Returns", "Example") if section not in parts]
        known = {*wanted, *inspect.signature(member).parameters}
        listed += [f"its entry `{entry}` is not a parameter" for entry in documented if entry not in known]
    if "Example" in parts and ">>> " not in parts["Example"]:
        listed.append("its example does not run")
    return [f"{name}: {fault}" for fault in listed]


def _parameters(member: Any) -> list[str]:
    """The parameters that need an entry: for classes those of `__init__`, exceptions and enumerations aside."""
    if inspect.isclass(member) and (issubclass(member, BaseException) or hasattr(member, "__members__")):
        return []
    try:
        parameters = inspect.signature(member).parameters
    except ValueError:
        return []
    inherited = _inherited(member)
    return [name for name in parameters if name not in ("self", "args", "kwargs") and name not in inherited]


def _inherited(member: Any) -> set[str]:
    """Fields that a base class documents."""
    if not inspect.isclass(member):
        return set()
    named: set[str] = set()
    for base in member.__mro__[1:]:
        named |= set(entries(sections(inspect.getdoc(base) or "").get("Attributes", "")))
    return named


@pytest.mark.parametrize("package", PACKAGES)
def test_sections(package: str) -> None:
    problems = [fault for name, member in members(package) for fault in faults(name, member)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("package", PACKAGES)
def test_examples(package: str) -> None:
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=FLAGS)
    for name, member in members(package):
        for test in finder.find(member, name, globs={}):
            report: list[str] = []
            runner.run(test, out=report.append)
            assert not report, "".join(report)


def test_negative_control() -> None:
    def shift(values: list[float], by: float) -> list[float]:
        """Values moved

        Args:
            values: numbers.
            distance: how far.
        """
        return [value + by for value in values]

    assert faults("shift", shift) == [
        "shift: its first line is not a sentence",
        "shift: `by` has no entry",
        "shift: no section Returns",
        "shift: no section Example",
        "shift: its entry `distance` is not a parameter",
    ]
