"""The page and the terminal text that every report is shown as: verdict, findings, sections, assumptions."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from leakcore import __version__

if TYPE_CHECKING:
    from leakcore.audit._tables import Table

_WORD = {True: "Consistent with its claim.", False: "CLAIM CONTRADICTED."}


@dataclasses.dataclass(frozen=True)
class Figure:
    """svg: trusted markup of our own drawing. alt: for those who do not see it. caption: what to conclude."""

    svg: str
    alt: str
    caption: str


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading, a figure perhaps, and tables."""

    title: str
    tables: tuple[Table, ...] = ()
    figure: Figure | None = None


def render(
    *,
    title: str,
    passed: bool,
    verdict: str,
    findings: Sequence[str],
    sections: Sequence[Section],
    assumptions: Sequence[str],
    seconds: float,
    settings: dict[str, Any],
    environment: dict[str, Any],
) -> str:
    """One self-contained HTML page."""
    import jinja2

    loader = jinja2.PackageLoader("leakcore.audit", ".")
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    html: str = pages.get_template("report.html").render(
        title=title,
        passed=passed,
        word=_WORD[passed],
        verdict=verdict,
        findings=findings,
        sections=sections,
        assumptions=assumptions,
        version=__version__,
        elapsed=f"{seconds:.0f} s",
        config=json.dumps(settings, indent=2, ensure_ascii=False),
        environment=json.dumps(environment, indent=2, ensure_ascii=False),
    )
    return html


def text(
    *, title: str, passed: bool, verdict: str, findings: Sequence[str], tables: Iterable[Table], width: int
) -> str:
    """Tables and findings for a terminal, readable without colour."""

    def wrap(line: str, lead: str) -> str:
        return textwrap.fill(line, width, initial_indent=lead, subsequent_indent=" " * len(lead))

    head = f"leakcore {__version__}: {title}"
    shown = "\n\n".join(table.to_text(width) for table in tables)
    found = "\n".join(wrap(line, f"{i:>2}. ") for i, line in enumerate(findings, 1))
    return "\n\n".join([wrap(head, ""), shown, found, wrap(f"{_WORD[passed]} {verdict}", "")])
