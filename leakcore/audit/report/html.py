"""A report as one self-contained HTML page: no network, no script."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from leakcore._base.installed import PAGE, need
from leakcore._base.printable import visible
from leakcore._base.version import __version__
from leakcore.audit.report.page import Figure, Page, Section, about, follows

SYMBOLS = {"good": "✓", "neutral": "○", "bad": "✗"}
"""The verdict's colour as a sign, for readers who do not see the colour."""
_UNBROKEN = re.compile(r"\b[εδσκCkqT] (?:[=≥≤]|&lt;|&gt;) [\d.,e∞-]*[\d∞]|\b[\d.]+e-\d+|[\d.]+%–[\d.]+%")


def to_html(page: Page) -> str:
    """The page as HTML; its first figure stands under the four numbers, all tables are folded."""
    need(*PAGE)
    import jinja2

    loader = jinja2.PackageLoader("leakcore.audit.report", ".")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_plain
    )  # fmt: skip
    templates.filters["unbroken"] = _unbroken
    sections = _drawn(page.sections)
    picture = next((s.figure for s in sections if s.figure is not None), None)
    html: str = templates.get_template("report.html").render(
        page=page,
        symbol=SYMBOLS[page.tone],
        picture=picture,
        findings=[(about(f), _sentence(str(f).partition(": ")[2]), *follows(f)) for f in page.findings],
        sections=[s if s.figure is not picture else dataclasses.replace(s, figure=None) for s in sections],
        version=__version__,
        elapsed=f"{page.seconds:.0f} s",
        config=json.dumps(page.settings, indent=2, ensure_ascii=False),
        environment=json.dumps(page.environment, indent=2, ensure_ascii=False),
    )
    return html


def _plain(value: Any) -> Any:
    """Texts with control characters spelt out: bidirectional ones reorder a page as they do a terminal."""
    return type(value)(visible(value)) if isinstance(value, str) else value


def _unbroken(text: str) -> Any:
    """Escaped, with numbers such as 1e-5 and short equations such as ε = 4 kept on one line."""
    import markupsafe

    escaped = str(markupsafe.escape(visible(text)))
    return markupsafe.Markup(_UNBROKEN.sub(r'<span class="unbroken">\g<0></span>', escaped))


def _sentence(text: str) -> str:
    """With a capital, except for Greek letters, which are symbols."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def _drawn(sections: tuple[Section, ...]) -> list[Section]:
    """Sections with drawn figures. Every drawing names its parts alike; on one page the names must differ."""

    def own(i: int, figure: Figure) -> Figure:
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>f{i}-", figure.markup())
        return dataclasses.replace(figure, svg=svg)

    return [
        s if s.figure is None else dataclasses.replace(s, figure=own(i, s.figure)) for i, s in enumerate(sections, 1)
    ]
