"""Read every report.json below a folder; what cannot be read is named."""

from __future__ import annotations

import datetime
import math
import os
from pathlib import Path
from typing import Any

from leakcore._base import validate
from leakcore._base.progress import timed
from leakcore._base.reading import read_json
from leakcore._base.text import line_of, name_of, printable
from leakcore.audit.claim.report import ClaimReport
from leakcore.audit.hyperparameters.report import RunReport
from leakcore.audit.report.cards import EPSILON, PROVED, Card
from leakcore.audit.report.format import number
from leakcore.audit.report.report import AuditReport
from leakcore.audit.report_list.listed import ListedNumber, ListedReport
from leakcore.audit.report_list.report_list import ReportList

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
    folders = [os.fspath(root)]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.name == _FILE:
                        paths.append(Path(entry.path))
        except OSError as why:
            problems.append((_name(Path(folder).relative_to(root)), f"cannot be read ({printable(why.strerror)})"))
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
        word=printable(report.word),
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
