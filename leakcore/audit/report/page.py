"""The page and the terminal text that every report is shown as: verdict, findings, sections, assumptions."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from leakcore._base.printable import visible
from leakcore._base.version import __version__
from leakcore.audit.report.format import above, guarantee, number

if TYPE_CHECKING:
    from leakcore._base.results import Result
    from leakcore.audit.report.tables import Table


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


class Finding(str):
    """A finding, "what it is about: what was found", with what follows from it and what must hold for that.

    A plain string is a finding, too: one without the two.
    """

    verdict: str
    assumes: str

    def __new__(cls, text: str, *, verdict: str = "", assumes: str = "") -> Finding:
        made = super().__new__(cls, text)
        made.verdict, made.assumes = verdict, assumes
        return made


def about(finding: str) -> str:
    """What a finding is about: its first words, up to the colon."""
    return str(finding).partition(": ")[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """An ε that a limit is held against. what: in words. guarantee: kind, confidence, adjacency."""

    what: str
    value: float
    guarantee: str

    def __str__(self) -> str:
        return self._said(number(self.value, kind=self._kind))

    def beside(self, limit: float) -> tuple[str, str]:
        """Itself and the limit, in as many digits as it takes to see whether it is above it."""
        if self.value > limit:
            shown, allowed = above(self.value, limit, self._kind)
            return self._said(shown), allowed
        digits = 4
        while digits < 17 and math.isfinite(self.value) and float(number(self.value, digits, self._kind)) > limit:
            digits += 1  # an upper bound is rounded up, and must not be seen above a limit that it keeps
        return self._said(number(self.value, digits, self._kind)), f"{limit:g}"

    @property
    def _kind(self) -> str:
        return self.guarantee.partition(",")[0]

    def _said(self, shown: str) -> str:
        return f"{self.what} = {shown} ({self.guarantee})"


def judged(what: str, found: Result) -> Judged:
    """With the result's own value and guarantee."""
    return Judged(what=what, value=float(found.value), guarantee=guarantee(found))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What another study adds to a report: shown after the report's own findings, sections and assumptions.

    key: its name in the JSON, `content` what stands there (JSON-ready). contradictions: claims that it disproved; any
    fails the gate.
    """

    key: str
    findings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    assumptions: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    content: Any = None


def render(
    *,
    title: str,
    tone: str,
    word: str,
    verdict: str,
    limit: str,
    findings: Sequence[str],
    sections: Sequence[Section],
    assumptions: Sequence[str],
    seconds: float,
    settings: dict[str, Any],
    environment: dict[str, Any],
) -> str:
    """One self-contained HTML page. tone: of the head, "good", "neutral" or "bad"."""
    import jinja2

    loader = jinja2.PackageLoader("leakcore.audit.report", ".")
    pages = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_plain
    )  # fmt: skip
    html: str = pages.get_template("report.html").render(
        title=title,
        tone=tone,
        word=word,
        verdict=verdict,
        limit=limit,
        findings=[(about(f), _sentence(str(f).partition(": ")[2]), *_follows(f)) for f in findings],
        sections=_own_ids(sections),
        assumptions=assumptions,
        version=__version__,
        elapsed=f"{seconds:.0f} s",
        config=json.dumps(settings, indent=2, ensure_ascii=False),
        environment=json.dumps(environment, indent=2, ensure_ascii=False),
    )
    return html


def _plain(value: Any) -> Any:
    """Texts with control characters spelt out: bidirectional ones reorder a page as they do a terminal."""
    return type(value)(visible(value)) if isinstance(value, str) else value


def _sentence(text: str) -> str:
    """With a capital, but for Greek letters, which are symbols."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def _own_ids(sections: Sequence[Section]) -> list[Section]:
    """Every drawing names its parts alike; on one page the names must differ."""

    def own(i: int, figure: Figure) -> Figure:
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>f{i}-", figure.svg)
        return dataclasses.replace(figure, svg=svg)

    return [
        s if s.figure is None else dataclasses.replace(s, figure=own(i, s.figure)) for i, s in enumerate(sections, 1)
    ]


def _follows(finding: str) -> tuple[str, str]:
    return getattr(finding, "verdict", ""), getattr(finding, "assumes", "")


def text(*, title: str, word: str, verdict: str, findings: Sequence[str], tables: Iterable[Table], width: int) -> str:
    """Tables and findings for a terminal, readable without colour."""

    def wrap(line: str, lead: str) -> str:
        return textwrap.fill(line, width, initial_indent=lead, subsequent_indent=" " * len(lead))

    def found(i: int, finding: str) -> str:
        follows, _ = _follows(finding)
        return wrap(finding, f"{i:>2}. ") + (f"\n{wrap(follows, '    => ')}" if follows else "")

    head = f"leakcore {__version__}: {title}"
    shown = "\n\n".join(table.to_text(width) for table in tables)
    listed = "\n".join(found(i, finding) for i, finding in enumerate(findings, 1))
    return visible("\n\n".join([wrap(head, ""), shown, listed, wrap(f"{word} {verdict}", "")]))
