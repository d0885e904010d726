"""The reports of a folder in one list: read, drawn, and written as text, JSON and one page with links."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import os
import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from leakcore._base import validate
from leakcore._base.pages import own_names, rendered
from leakcore._base.pictures import Tips
from leakcore._base.progress import timed
from leakcore._base.reading import read_json
from leakcore._base.results import Record
from leakcore._base.tables import Rows
from leakcore._base.text import escape_controls, line_of, name_of, printable
from leakcore._base.writing import write_atomically
from leakcore.audit.claim.report import ClaimReport
from leakcore.audit.hyperparameters.report import RunReport
from leakcore.audit.shared.elements import EPSILON, PROVED, Card
from leakcore.audit.shared.format import number
from leakcore.audit.shared.plots import ATTACK, BOUND, INK, drawing_style, svg_of
from leakcore.audit.shared.report import AuditReport, Document


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ListedNumber(Record):
    """An ε of a report.

    Attributes:
        value: the number.
        text: as the report prints it, rounded to its safe side.
        kind: "lower", "upper", or "parameter" for a claim.
        guarantee: confidence and adjacency in words.
        adjacency: in words.
    """

    value: float
    text: str
    kind: str
    guarantee: str
    adjacency: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ListedReport(Record):
    """One report of a folder.

    Attributes:
        name: its folder, as seen from the listed folder; "." for a report in that folder itself.
        date: when its file was last written, UTC, ISO 8601.
        audit: what kind of audit it is.
        title: what was audited.
        headline: the verdict in a few words.
        tone: "good", "neutral" or "bad", as on the report's page.
        verdict: the verdict's first sentence.
        claimed: the claimed ε, under the audit's adjacency; None without a claim.
        proved: the lower bound on ε; None where nothing proves one.
        accountant: the accountant's ε; None where the audit knows no mechanism.
        version: version of leakcore that wrote it.
        page: path of its report.html, as seen from the listed folder; empty without one.
    """

    name: str
    date: str
    audit: str
    title: str
    headline: str
    tone: str
    verdict: str
    claimed: ListedNumber | None
    proved: ListedNumber | None
    accountant: ListedNumber | None
    version: str
    page: str

    @property
    def link(self) -> str:
        """The page's path as an address."""
        return quote(os.fsencode(self.page)).lstrip("/")  # a name need not be UTF-8; it never leaves the folder


_SMALLEST, _LARGEST = 1e-3, 1e3
"""ε that is drawn; beyond, at the edge."""
_WIDEST = 34
"""Letters of a name."""


def epsilons_svg(reports: Sequence[ListedReport]) -> str:
    """One line for each report, newest first; on it its three numbers on a logarithmic axis. Only numbers of the
    adjacency that the line is labelled with stand on it.
    """
    from matplotlib.figure import Figure

    with drawing_style():
        figure = Figure(figsize=(6.6, 1.1 + 0.36 * len(reports)), layout="constrained")
        axes, tips = figure.subplots(), Tips()
        axes.set_xscale("log")
        points: list[tuple[list[float], list[float], list[str]]] = []
        marks = (
            ("claimed", "claimed", "|", INK, 13.0),
            ("proved", "proved: at least", ">", ATTACK, 7.0),
            ("accountant", "accountant: at most", "<", BOUND, 7.0),
        )
        for field, label, mark, colour, size in marks:
            drawn = [(at, n) for at, r in enumerate(reports) if (n := _on_the_line(r, field)) is not None]
            at = [float(a) for a, _ in drawn]
            values = [min(max(n.value, _SMALLEST), _LARGEST) for _, n in drawn]
            axes.plot(values, at, ls="", marker=mark, ms=size, mew=2, color=colour, label=label)
            said = [f"{reports[a].name}: {label.partition(':')[0]}, {n.text} ({n.guarantee})" for a, n in drawn]
            points.append((values, at, said))
        ends = [value for values, _, _ in points for value in values]
        axes.set(xlim=(min(ends) / 1.5, max(ends) * 1.5), ylim=(len(reports) - 0.5, -0.5))
        for values, at, said in points:
            tips.points(axes, values, at, said)
        names = [f"{_cut(r.name)}  ({_cut(_adjacency(r))})".replace("$", r"\$") for r in reports]
        axes.set_yticks(range(len(reports)), names)
        axes.grid(axis="y", alpha=0.3, lw=0.8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("ε, logarithmic")
        figure.legend(frameon=False, loc="outside lower left", ncols=3)
        return svg_of(figure, tips)


def _cut(name: str) -> str:
    """A name that leaves room for the picture, however long it is, and whatever script it is written in."""
    text = printable(name)
    widths = itertools.accumulate(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
    fits = sum(width <= _WIDEST for width in widths)
    return text if fits == len(text) else f"{text[:fits]}…"


def _adjacency(report: ListedReport) -> str:
    """Of the line: the adjacency of what is proved, else of the accountant's ε."""
    first = report.proved or report.accountant
    return "" if first is None else first.adjacency.removesuffix(" adjacency")


def _on_the_line(report: ListedReport, field: str) -> ListedNumber | None:
    number: ListedNumber | None = getattr(report, field)
    if number is None or number.adjacency.removesuffix(" adjacency") != _adjacency(report):
        return None
    return number


_TONES = ("bad", "neutral", "good")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ReportList(Document):
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
    def headline(self) -> str:
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
            *((r.name, f"{r.date[:10]}, {r.audit}: {r.headline} {_numbers(r)}") for r in self.reports),
            *((path, f"not read: {why}") for path, why in self.problems),
        ]

    def to_text(self, width: int = 110) -> str:
        """For a terminal, a paragraph for each report."""
        lines = [self.headline]
        for r in self.reports:
            about = printable(f"({r.date[:16].replace('T', ' ')}, {r.audit}, leakcore {r.version})")
            lines.append(f"\n{line_of(r.name)}  {about}")
            lines += textwrap.wrap(
                printable(f"{r.headline} {_numbers(r)}"), width, initial_indent="  ", subsequent_indent="  "
            )
        if self.problems:
            lines.append("\nNot read:")
            lines += [f"  {line_of(path)}: {printable(why)}" for path, why in self.problems]
        return escape_controls("\n".join(lines))

    def to_html(self, path: str | Path | None = None) -> str:
        """One self-contained page, also written to `path` (atomically) when one is given. Its links lead to the pages
        of the reports from within the listed folder.
        """
        drawn = [r for r in self.reports if r.proved is not None or r.accountant is not None]
        html = rendered(
            "index.html",
            "leakcore.audit.shared",
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


_MOST = 10_000
"""Reports that a folder may have."""
_MOST_PROBLEMS = 1000
"""Problems that are listed one by one."""
LONGEST_PATH = 4096
"""Characters of a path."""
_FILE = "report.json"
_AUDITS = {
    "audit": "configuration",
    "trace-audit": "recorded run",
    "canary-audit": "recorded run with canaries",
    "claim-audit": "claim against an attack",
    "scores-audit": "membership scores",
}
"""Kind of audit, by the name in the report's schema."""


@timed
def list_reports(folder: str | Path) -> ReportList:
    """What the reports in a folder and below it say, newest first.

    Nothing is computed again: claims, proofs and verdicts are what each report says, under its own adjacency and
    confidence. The date is that of the file.

    Args:
        folder: every report.json in it and in the folders below it is read; links to folders are not followed.

    Returns:
        A `ReportList`. `to_html(path)` writes it as a page, with links to the pages of the reports.

    Raises:
        ValueError: if `folder` is not a folder, holds no report.json, or holds more than 10,000. A file that is not a
            report, or is damaged, is listed under `problems` instead.

    Example:
        >>> from leakcore import audit
        >>> claim = {"claimed_epsilon": 0.5, "claimed_adjacency": "add-remove"}
        >>> report = audit.from_scores([5.0] * 40, [0.0] * 40, coins=True, **claim)
        >>> report.to_json("runs/first/report.json")  # doctest: +SKIP
        >>> audit.list_reports("runs").to_html("runs/index.html")  # doctest: +SKIP
        >>> audit.list_reports("no/such/folder")
        Traceback (most recent call last):
        ValueError: `folder` must be a folder that exists, got 'no/such/folder'
    """
    validate.instance(str, Path, folder=folder)
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"`folder` must be a folder that exists, got {printable(repr(str(folder)))}")
    paths, problems = _reports_below(root)
    if not paths and not problems:
        raise ValueError(f"`folder` must hold a {_FILE}, itself or below, got {printable(repr(str(folder)))}")
    if len(paths) > _MOST:
        raise ValueError(f"`folder` must hold at most {_MOST:,} reports, got {len(paths):,}")
    reports = []
    for path in paths:
        try:
            reports.append((path.stat().st_mtime, _listed(path, root)))
        except Exception as why:  # one damaged file must not hide the others: it is listed, with the reason
            text = f"{why}".removeprefix(f"{printable(path)}: ") or type(why).__name__
            problems.append((_name(path.relative_to(root)), printable(text, 300)))
    if len(problems) > _MOST_PROBLEMS:
        more = f"{len(problems) - _MOST_PROBLEMS:,} more files or folders"
        problems = [*problems[:_MOST_PROBLEMS], (more, "could not be read either")]
    newest = sorted(reports, key=lambda pair: -pair[0])  # of one moment: by name
    return ReportList(
        folder=_name(os.path.basename(os.path.realpath(root))),
        reports=tuple(r for _, r in newest),
        problems=tuple(problems),
    )


def _reports_below(root: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """Every entry named report.json, in order, and the folders that cannot be read, with the reason."""
    paths: list[Path] = []
    problems: list[tuple[str, str]] = []

    def unread(why: OSError) -> None:
        problems.append((_name(Path(why.filename).relative_to(root)), f"cannot be read ({printable(why.strerror)})"))

    for folder, folders, files in os.walk(root, onerror=unread):
        path = Path(folder, _FILE)
        if _FILE in files or (_FILE in folders and path.is_symlink()):
            paths.append(path)
    return sorted(paths), sorted(problems)


def _name(path: object) -> str:
    return line_of(path, LONGEST_PATH)


def _listed(path: Path, root: Path) -> ListedReport:
    content = read_json(path)
    schema = str(content.get("schema", "")) if isinstance(content, dict) else ""
    kind = schema.removeprefix("leakcore.").partition("/")[0]
    if kind not in _AUDITS:
        raise ValueError(f"is not a report of an audit{f', its schema is {name_of(schema)}' if schema else ''}")
    report = AuditReport.from_dict(content)
    cards = {card.question: card for card in report.cards()}
    proved, epsilon = cards[PROVED], cards[EPSILON]
    page = path.with_name("report.html")
    written = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
    return ListedReport(
        name=_name(path.parent.relative_to(root)),
        date=written.isoformat(timespec="seconds"),
        audit=_AUDITS[kind],
        title=printable(report.title),
        headline=printable(report.headline),
        tone=report.tone,
        verdict=printable(next(iter((*report.all_contradictions, *report.exceeded, *report.verdict_sentences())))),
        claimed=_claimed(report, epsilon),
        proved=_number(proved) if proved.kind == "lower" else None,
        accountant=_number(epsilon) if epsilon.kind == "upper" else None,
        version=name_of(content.get("version", "")),
        page=page.relative_to(root).as_posix() if page.is_file() else "",
    )


def _claimed(report: AuditReport, epsilon: Card) -> ListedNumber | None:
    """The claim, under the adjacency of the audit, which the card of ε has."""
    value: Any
    if isinstance(report, RunReport):
        value = report.config.epsilon
    elif isinstance(report, ClaimReport):
        value = report.claim.epsilon
    else:
        value = getattr(report, "claimed_epsilon", None)
    if value is None or math.isnan(value):
        return None
    return ListedNumber(
        value=float(value),
        text=f"ε = {number(value)}",
        kind="parameter",
        adjacency=epsilon.adjacency,
        guarantee=", ".join(filter(None, ("claimed", epsilon.adjacency))),
    )


def _number(card: Card) -> ListedNumber | None:
    if card.number is None or math.isnan(card.number):
        return None
    return ListedNumber(
        value=card.number,
        text=card.value,
        kind=card.kind,
        guarantee=f"{card.kind}, {card.guarantee}",
        adjacency=card.adjacency,
    )
