"""Every Python block of the documentation runs, page by page, top to bottom."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest

from tests.project.script import load

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
GALLERY = DOCS / "gallery.md"
RUN = [page for page in PAGES if page not in (GALLERY, DOCS / "how-to" / "loops.md", DOCS / "how-to" / "jax.md")]
"""The loops need packages of their own: tests/loops runs them."""


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("page", RUN, ids=lambda p: p.relative_to(DOCS).as_posix())
def test_code_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    if any("opacus" in block for block in blocks):
        pytest.importorskip("opacus")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        for i, block in enumerate(blocks, 1):
            exec(compile(block, f"{page.name}, block {i}", "exec"), names)


def test_front_page() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    block, expected = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "index.md", "exec"), {})
    assert printed.getvalue() == expected


def test_table_of_questions() -> None:
    import click

    import leakcore
    from leakcore.cli import main

    page = (DOCS / "which-function.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in page.splitlines() if re.match(r"\| (?!question|---)", line)]
    assert len(rows) > 25
    names = {name for _, python, _ in rows for name in re.findall(r"`([\w.]+)`", python)} - {"report.with_limit"}
    assert len(names) > 20
    for name in names:
        member: object = leakcore
        for part in name.removeprefix("leakcore.").split("."):
            member = getattr(member, part)
    for words in (command.strip(" `").split()[1:] for _, _, command in rows if command.strip()):
        member = main
        for word in words:
            if isinstance(member, click.Group) and not word.startswith("--"):
                member = member.commands[word]
                continue
            assert isinstance(member, click.Command)
            choices = [choice for parameter in member.params for choice in getattr(parameter.type, "choices", ())]
            assert word in [*choices, *(option for parameter in member.params for option in parameter.opts)], words


@pytest.mark.full
def test_gallery() -> None:
    gallery = load("docs/hooks/gallery.py")
    page = GALLERY.read_text(encoding="utf-8")
    sections = gallery.sections(page)
    assert len(sections) == page.count("\n## ") == page.count("```python") - 1
    assert all(len(code.splitlines()) <= 5 for code in sections.values())
    pictures = gallery.draw(page)
    assert set(pictures) == set(sections)
    for title, picture in pictures.items():
        assert "<svg" in picture, title
        assert len(picture) <= 100_000, title
    assert all(f"]({gallery.path(title)})" in gallery.shown(page) for title in sections)


def test_navigation_and_links() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert PAGES
    for page in PAGES:
        assert page.relative_to(DOCS).as_posix() in navigation, page.name
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


def test_results_on_papers_pages() -> None:
    """Every figure has its place on a page, and no page says other than results.json."""
    from leakcore import experiments

    collect = load("docs/papers/collect.py")
    results = collect.kept()
    assert set(results) <= set(experiments.names())
    pages = {page.name: page.read_text(encoding="utf-8") for page in (DOCS / "papers").glob("*.md")}
    for name, text in pages.items():
        assert collect.rewritten(text, results) == text, f"{name}: run docs/papers/collect.py"
    whole = "".join(pages.values())
    for name in experiments.names():
        if name != "reconstruction-spread":
            # An opened mark that is not closed is one that collect.py leaves empty.
            for mark in (f"<!-- {name} -->", f"<!-- /{name} -->"):
                assert mark in whole, f"put it on the page of the paper, then run docs/papers/collect.py: {mark}"


def test_results_on_the_performance_page() -> None:
    claims = load("docs/hooks/claims.py")
    page = claims.PAGE.read_text(encoding="utf-8")
    assert page.count(claims.BEGIN) == page.count(claims.END) == 1
    assert page.count(claims.BEGIN_MECHANISMS) == page.count(claims.END_MECHANISMS) == 1
    assert claims.rewritten(page, claims.read()) == page, "run docs/hooks/claims.py"


def test_results_on_the_optimizer_page() -> None:
    claims = load("docs/hooks/claims.py")
    page = claims.STEPS_PAGE.read_text(encoding="utf-8")
    assert page.count(claims.BEGIN_STEPS) == page.count(claims.END_STEPS) == 1
    assert page.count("ms (") == 6
    assert claims.rewritten(page, claims.read()) == page, "run docs/hooks/claims.py"


def test_reference_is_complete() -> None:
    import importlib

    reference = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    listed = dict(
        re.findall(r"^::: (\S+)\n    options:\n      members:\n((?:        - \w+\n)+)", reference, re.MULTILINE)
    )
    public = "accounting attacks audit bounds datasets defenses dpsgd jax kernels leakage models numerics".split()
    public += [f"attacks.{a}" for a in "attributes imprint inversion labels membership poisoning tensor text".split()]
    for name in (*public, "bounds.laplace", "bounds.methods"):
        module = importlib.import_module(f"leakcore.{name}")
        own = [n for n in vars(module) if getattr(getattr(module, n), "__module__", "") == module.__name__]
        names = getattr(module, "__all__", own)
        wanted = {n for n in names if not n.startswith("_") and callable(getattr(module, n))}
        assert wanted
        missing = wanted - set(listed[f"leakcore.{name}"].split())
        assert not missing, f"name them under leakcore.{name} in docs/reference: {sorted(missing)}"
