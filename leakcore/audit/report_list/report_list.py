"""What the reports of a folder say, newest first: for a terminal, as JSON, and as one page with links."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import ClassVar

from leakcore._base.pages import own_names, rendered
from leakcore._base.results import Record
from leakcore._base.tables import Rows
from leakcore._base.text import line_of, printable, visible
from leakcore._base.writing import write_atomically
from leakcore.audit.report_list.listed import ListedReport

_TONES = ("bad", "neutral", "good")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ReportList(Record):
    """The reports of a folder, as `audit.list_reports` returns them.

    Attributes:
        folder: the listed folder's name.
        reports: newest first.
        problems: files that cannot be read as a report: path and reason.
    """

    schema: ClassVar[str] = "leakcore.report-list/1"

    folder: str
    reports: tuple[ListedReport, ...]
    problems: tuple[tuple[str, str], ...]

    @property
    def word(self) -> str:
        """How many gates fail, in a few words."""
        failed, all_ = sum(r.tone == "bad" for r in self.reports), len(self.reports)
        if failed:
            return f"{failed} of {all_} audits {'fails' if failed == 1 else 'fail'}."
        tested = sum(r.tone == "good" for r in self.reports)
        return f"No audit fails. {tested} of {all_} tested a claim that held."

    @property
    def tone(self) -> str:
        """The worst of the reports' tones; "neutral" where a file could not be read."""
        tones = {r.tone for r in self.reports} | ({"neutral"} if self.problems else set())
        return min(tones, key=_TONES.index, default="neutral")

    def sentences(self) -> list[str]:
        """What the list says: its failures by name, and what could not be read."""
        failed = [f"{r.name}: {r.verdict}" for r in self.reports if r.tone == "bad"]
        unread = len(self.problems)
        more = [f"{unread} {'file' if unread == 1 else 'files'} could not be read."] if unread else []
        return [*failed, *more] or ["What each of them proves, and under which adjacency, is in the table."]

    def table_rows(self) -> Rows:
        """The verdict of each report, and the problems."""
        return [
            *((r.name, f"{r.date[:10]}, {r.audit}: {r.word} {_numbers(r)}") for r in self.reports),
            *((path, f"not read: {why}") for path, why in self.problems),
        ]

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as strict JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    def to_text(self, width: int = 110) -> str:
        """For a terminal, a paragraph for each report."""
        lines = [self.word]
        for r in self.reports:
            about = printable(f"({r.date[:16].replace('T', ' ')}, {r.audit}, leakcore {r.version})")
            lines.append(f"\n{line_of(r.name)}  {about}")
            lines += textwrap.wrap(
                printable(f"{r.word} {_numbers(r)}"), width, initial_indent="  ", subsequent_indent="  "
            )
        if self.problems:
            lines.append("\nNot read:")
            lines += [f"  {line_of(path)}: {printable(why)}" for path, why in self.problems]
        return visible("\n".join(lines))

    def to_html(self, path: str | Path | None = None) -> str:
        """One self-contained page, also written to `path` (atomically) when one is given. Its links lead to the pages
        of the reports from within the listed folder.
        """
        from leakcore.audit.report_list.picture import epsilons_svg

        drawn = [r for r in self.reports if r.proved is not None or r.accountant is not None]
        html = rendered(
            "index.html",
            "leakcore.audit.report_list",
            reports=self,
            picture=own_names(epsilons_svg(drawn[:_MOST_DRAWN]), "f1") if drawn else "",
            drawn=min(len(drawn), _MOST_DRAWN),
            alt="; ".join(f"{r.name}: {_numbers(r)}" for r in drawn[:_MOST_DRAWN]),
        )
        if path is not None:
            write_atomically(Path(path), html)
        return html


_MOST_DRAWN = 40
"""Rows of the picture: the newest ones."""


def _numbers(report: ListedReport) -> str:
    """Its three numbers with what is guaranteed of them."""
    named = (("claimed", report.claimed), ("proved", report.proved), ("accountant", report.accountant))
    return "; ".join(f"{name} {n.text} ({n.guarantee})" for name, n in named if n is not None)
