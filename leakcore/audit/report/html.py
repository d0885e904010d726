"""A report as one self-contained HTML page: no network, no script."""

from __future__ import annotations

import dataclasses
import json

from leakcore._base.pages import own_names, rendered
from leakcore.audit.report.page import Figure, Page, Section, about, follows


def to_html(page: Page, run: str = "") -> str:
    """The page as HTML; its first figure stands under the four numbers, all tables are folded. run: its folder."""
    sections = _drawn(page.sections)
    picture = next((s.figure for s in sections if s.figure is not None), None)
    return rendered(
        "report.html",
        "leakcore.audit.report",
        page=page,
        run=run,
        picture=picture,
        findings=[(about(f), _sentence(str(f).partition(": ")[2]), *follows(f)) for f in page.findings],
        sections=[s if s.figure is not picture else dataclasses.replace(s, figure=None) for s in sections],
        elapsed=f"{page.seconds:.0f} s",
        config=json.dumps(page.settings, indent=2, ensure_ascii=False),
        environment=json.dumps(page.environment, indent=2, ensure_ascii=False),
    )


def _sentence(text: str) -> str:
    """With a capital, except for Greek letters, which are symbols."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def _drawn(sections: tuple[Section, ...]) -> list[Section]:
    """Sections with drawn figures. Every drawing names its parts alike; on one page the names must differ."""

    def own(i: int, figure: Figure) -> Figure:
        return dataclasses.replace(figure, svg=own_names(figure.markup(), f"f{i}"))

    return [
        s if s.figure is None else dataclasses.replace(s, figure=own(i, s.figure)) for i, s in enumerate(sections, 1)
    ]
