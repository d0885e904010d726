"""A report as terminal text: the verdict first, then the four numbers, the findings and the tables."""

from __future__ import annotations

import textwrap

from leakcore._base.text import visible
from leakcore._base.version import __version__
from leakcore.audit.report.cards import Card
from leakcore.audit.report.page import Page, follows


def to_text(page: Page, width: int) -> str:
    """The page in lines of at most `width` characters, readable without colour."""
    verdict = " ".join(filter(None, (page.word, *page.verdict, page.limit)))
    parts = [
        _wrapped(verdict, "", width),
        _wrapped(f"leakcore {__version__}: {page.title}", "", width),
        "\n".join(_card(card, width) for card in page.cards),
        "\n".join(_finding(i, finding, width) for i, finding in enumerate(page.findings, 1)),
        *(table.to_text(width) for table in page.tables),
    ]
    return visible("\n\n".join(filter(None, parts)))


def _wrapped(line: str, lead: str, width: int) -> str:
    return textwrap.fill(line, width, initial_indent=lead, subsequent_indent=" " * len(lead))


def _card(card: Card, width: int) -> str:
    kind = f" [{card.kind}]" if card.kind else ""
    number = ", ".join(filter(None, (f"{card.shown}{kind}", card.guarantee)))
    return f"{_wrapped(f'{card.question}: {number}', '', width)}\n{_wrapped(card.detail, '    ', width)}"


def _finding(index: int, finding: str, width: int) -> str:
    verdict, assumes = follows(finding)
    lines = [(finding, f"{index:>2}. "), (verdict, "    => "), (assumes and f"Provided that {assumes}", "    ")]
    return "\n".join(_wrapped(text, lead, width) for text, lead in lines if text)
