"""The base of all reports: a verdict, findings and tables, as JSON, as one self-contained page and as plain text."""

from __future__ import annotations

import abc
import dataclasses
import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, overload

from leakcore._base import validate
from leakcore._base.codec import fields_to_plain, from_fields
from leakcore._base.output_folder import require_ours, require_writable
from leakcore._base.pages import own_names, rendered
from leakcore._base.results import Record, Result, jsonable, without
from leakcore._base.run_folder import PartialResults
from leakcore._base.tables import Rows, as_html
from leakcore._base.text import escape_controls, printable
from leakcore._base.version import __version__
from leakcore._base.writing import place_in, write_atomically
from leakcore.audit.shared.elements import Card, Figure, Judged, Page, Part, Section, Table, about, follows

if TYPE_CHECKING:
    from typing_extensions import Self


class Limit(TypedDict):
    """The caller's limit on ε, what it is compared with, and what is above it."""

    fail_above: float | None
    judged: list[Judged]
    exceeded: list[str]


class Verdict(TypedDict):
    """What follows from one finding, and the conditions."""

    about: str
    verdict: str
    assumes: str


class Head(TypedDict):
    """What stands before the results. config, which follows it, holds the settings."""

    schema: str
    version: str
    passed: bool | None
    undecided: str
    contradictions: list[str]
    limit: Limit
    findings: list[str]
    verdicts: list[Verdict]


class Foot(TypedDict):
    """What stands after the results. report, which follows it, holds every field of the report."""

    assumptions: list[str]
    environment: dict[str, Any]


def to_html(page: Page, run: str = "") -> str:
    """The page as HTML; its first figure stands under the four numbers, all tables are folded. run: its folder."""
    sections = _drawn(page.sections)
    picture = next((s.figure for s in sections if s.figure is not None), None)
    return rendered(
        "report.html",
        "leakcore.audit.shared",
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


def to_text(page: Page, width: int) -> str:
    """The page in lines of at most `width` characters, readable without colour."""
    verdict = " ".join(filter(None, (page.headline, *page.verdict, page.limit)))
    parts = [
        _wrapped(verdict, "", width),
        _wrapped(f"leakcore {__version__}: {page.title}", "", width),
        "\n".join(_card(card, width) for card in page.cards),
        "\n".join(_finding(i, finding, width) for i, finding in enumerate(page.findings, 1)),
        *(table.to_text(width) for table in page.tables),
    ]
    return escape_controls("\n\n".join(filter(None, parts)))


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


OUTSIDE = ("environment", "seconds")
"""Fields that the JSON has outside "report"."""
GATE = 0.999
"""Confidence with which one run, or one file of scores, contradicts a claim."""
GATE_SHARE = (1 - GATE) / 2
"""Error of each of the gate's two ways to fail, where the run's own mechanism is tested as well as the claim."""
HELD = "Consistent with its claim."
"""The first words of a report whose claim was tested, and held."""
TOO_WEAK = "Not tested: this audit could not have contradicted the claim."
"""The first words if an attack that never errs would have proved no more than is claimed."""
NOTHING = "Nothing was proved: the claim is neither contradicted nor confirmed."
"""The first words if an audit that could have contradicted its claim proved no ε above 0."""


def between_levels(confidence: float) -> str:
    """The first words where a claim is contradicted at the quoted level, and not at the gate's."""
    return f"Above its claim at {100 * confidence:g}%, not at {100 * GATE:g}%: check."


def names(text: str) -> tuple[str, ...]:
    """Names that stand in a text, apart by spaces."""
    return tuple(text.split())


def same_names(text: str) -> dict[str, str]:
    """The names of fields that are called so in the JSON as well; `name=field` of one that is not."""
    return {name: field or name for name, _, field in (word.partition("=") for word in text.split())}


def headline_of(proved: Result | float, *, untested: bool) -> str:
    """The first words where a claim was not contradicted. untested: this audit could not have contradicted it."""
    if untested:
        return TOO_WEAK
    return NOTHING if float(proved.value if isinstance(proved, Result) else proved) <= 0 else HELD


class Document(Record):
    """A record that is written as strict JSON."""

    def to_json(self, path: str | Path | None = None, *, indent: int | None = None) -> str:
        """`to_dict` as strict JSON, also written to `path` (atomically) when one is given."""
        text = json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)
        if path is not None:
            write_atomically(Path(path), text + "\n")
        return text


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AuditReport(Document, abc.ABC):
    """What every report of an audit has: a verdict, findings and tables, as text, JSON and one self-contained page.

    Attributes:
        environment: versions and facts of the machine.
        seconds: wall time of the audit.
        parts: results of other studies, added by `with_parts`.
        fail_above: the caller's limit on ε, in addition to the claim; `judged` lists what it is compared with.
    """

    schema: ClassVar[str]
    result_names: ClassVar[Mapping[str, str]]
    """The results in the JSON: the name there, and the field or property. The JSON Schema is made from their types."""
    setting_names: ClassVar[tuple[str, ...]] = ()
    """Fields and properties that are the settings; none where the field `config` holds the settings."""
    timed: ClassVar[bool] = True
    """Whether the JSON says how long the audit took."""

    environment: dict[str, Any]
    seconds: float = dataclasses.field(compare=False)
    parts: tuple[Part, ...] = ()
    fail_above: float | None = None

    def with_parts(self, *parts: Part) -> Self:
        """This report with further parts at its end.

        Args:
            *parts: such as `audit.where_it_sits(...)`.

        Returns:
            A new report.

        Raises:
            ValueError: if the report already has a part or field of that name.
        """
        all_parts = (*self.parts, *parts)
        taken = [*self.to_dict(), *(p.key for p in parts)]
        for part in parts:
            if taken.count(part.key) > 1:
                raise ValueError(f"`key` must differ from the report's parts and fields, got {part.key!r}")
        return dataclasses.replace(self, parts=all_parts)

    def with_limit(self, fail_above: float) -> Self:
        """This report with a limit on ε: it fails if anything `judged` is above the limit.

        Args:
            fail_above: the limit, at least 0.

        Returns:
            A new report.

        Raises:
            ValueError: for a negative limit, or a report that proves no ε.
        """
        limit = validate.non_negative(fail_above=fail_above)
        if not self.judged() and not self.undecided:
            raise ValueError(
                f"`fail_above` must be left out, got {limit:g}: this report proves no ε, and an estimate cannot decide "
                "a gate; say how members were chosen (coins, or retrained models)"
            )
        return dataclasses.replace(self, fail_above=limit)

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """What was audited, in one line."""

    @property
    @abc.abstractmethod
    def contradictions(self) -> list[str]:
        """A sentence for each claim that an attack disproved; empty if the gate passes."""

    @property
    def undecided(self) -> str:
        """Why no result could pass a claim or a limit; empty if one could."""
        return ""

    @property
    def gated(self) -> bool:
        """Whether there is something to judge: a limit, or a claim of the audit itself."""
        return self.fail_above is not None

    @property
    def passed(self) -> bool | None:
        """Whether no attack proved more leakage than claimed, and nothing judged is above the limit.

        None if neither was exceeded and the report cannot judge (`undecided` says why).
        """
        if self.all_contradictions or self.exceeded:
            return False
        return None if self.undecided else True

    @property
    def all_contradictions(self) -> list[str]:
        """The contradictions of the report itself and of its parts."""
        return [*self.contradictions, *(text for part in self.parts for text in part.contradictions)]

    @property
    def all_findings(self) -> list[str]:
        """The findings of the report itself and of its parts, in the order of the page."""
        return [*self.findings(), *(text for part in self.parts for text in part.findings)]

    def judged(self) -> tuple[Judged, ...]:
        """Every ε that `fail_above` is compared with."""
        return ()

    @property
    def exceeded(self) -> list[str]:
        """A sentence for each ε above `fail_above`; empty without a limit."""
        limit = self.fail_above
        if limit is None:
            return []
        return ["{} is above the limit {}.".format(*j.compared(limit)) for j in self.judged() if j.value > limit]

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        if self.all_contradictions:
            return "CLAIM CONTRADICTED."
        return "ABOVE THE LIMIT." if self.exceeded else self.kept_headline()

    def kept_headline(self) -> str:
        """The verdict in a few words where nothing is contradicted, and no limit exceeded."""
        return HELD

    @property
    def tone(self) -> str:
        """How the page colours `headline`: "good" if a tested claim held, "bad" if the gate fails, else "neutral"."""
        if self.passed is False:
            return "bad"
        return "good" if self.headline == HELD else "neutral"

    def limit_kept(self) -> str:
        """What the limit was compared with, in one sentence; empty without a limit."""
        if self.fail_above is None:
            return ""
        judged = "; ".join(j.compared(self.fail_above)[0] for j in self.judged()) or "nothing"
        outcome = "EXCEEDED" if self.exceeded else "NOT DECIDED" if self.undecided else "kept"
        return f"Limit ε = {self.fail_above:g}: {outcome}. Compared with it: {judged}."

    def verdict(self) -> str:
        """What the report concludes: the verdict in one sentence, then what qualifies it."""
        return " ".join(self.verdict_sentences())

    @abc.abstractmethod
    def verdict_sentences(self) -> list[str]:
        """The verdict in one sentence, for the top of the page, and the sentences that qualify it."""

    @abc.abstractmethod
    def cards(self) -> tuple[Card, Card, Card, Card]:
        """The four numbers, in the order of `elements.QUESTIONS`."""

    @abc.abstractmethod
    def findings(self) -> list[str]:
        """Plain sentences, each with kind, confidence and adjacency; "what it is about: what was found"."""

    @abc.abstractmethod
    def tables(self) -> dict[str, Table]:
        """The tables that the page and the terminal show."""

    def figures(self) -> dict[str, Figure]:
        """The figures of the page, by the table with which they stand."""
        return {}

    def sections(self) -> tuple[Section, ...]:
        """The page's middle: figures and tables under headings."""
        figures = self.figures()
        return tuple(Section(table.title, (table,), figures.get(name)) for name, table in self.tables().items())

    @abc.abstractmethod
    def assumptions(self) -> list[str]:
        """What must hold for the report to mean what it says."""

    def settings(self) -> dict[str, Any]:
        """What it takes to run the audit again, JSON-ready."""
        return {name: jsonable(getattr(self, name)) for name in self.setting_names} or jsonable(vars(self)["config"])

    def content(self) -> dict[str, Any]:
        """The results, JSON-ready; every number with kind, confidence, interval, method, assumptions, provenance."""
        return {name: jsonable(getattr(self, attribute)) for name, attribute in self.result_names.items()}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: verdict, findings, settings, results; in "report" all fields, from which `from_dict` makes it."""
        head: Head = {
            "schema": self.schema,
            "version": __version__,
            "passed": self.passed,
            "undecided": self.undecided,
            "contradictions": self.all_contradictions,
            "limit": {"fail_above": self.fail_above, "judged": jsonable(self.judged()), "exceeded": self.exceeded},
            "findings": [str(text) for text in self.all_findings],
            "verdicts": [
                {"about": about(text), "verdict": getattr(text, "verdict", ""), "assumes": getattr(text, "assumes", "")}
                for text in self.all_findings
            ],
        }
        foot: Foot = {"assumptions": self._assumed(), "environment": self.environment}
        return {
            **head,
            "config": self.settings(),
            **self.content(),
            **{part.key: jsonable(part.content) for part in self.parts},
            **foot,
            **({"seconds": round(self.seconds, 1)} if self.timed else {}),
            "report": without(fields_to_plain(self, AuditReport), *OUTSIDE),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The report that `to_dict` was taken from, also after a trip through JSON. ValueError for anything else."""
        if not isinstance(data, dict) or not isinstance(data.get("report"), dict):
            raise ValueError("`data` must be what a report's to_dict returns, but lacks report")
        rest = {"environment": data.get("environment"), "seconds": data.get("seconds", 0.0)}
        report: Self = from_fields({**data["report"], **rest}, cls)
        return report

    def table_rows(self) -> Rows:
        """What is shown of it, as (name, value in words)."""
        return [
            ("verdict", f"{self.headline} {self.verdict()}"),
            *(("finding", str(text)) for text in self.all_findings),
        ]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({printable(self.title, 120)!r}: {printable(self.headline, 80)})"

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return as_html(self.title, self.table_rows(), widest=1000)

    @overload
    def to_html(self) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> Path: ...
    def to_html(self, path: str | Path | None = None) -> str | Path:
        """One self-contained HTML page: its text, or written to `path` (atomically), which is returned.

        The page says when it was written, and in a file also the run's name, which is that of its folder.
        """
        if path is None:
            return to_html(self._page())
        write_atomically(Path(path), to_html(self._page(), Path(os.path.realpath(path)).parent.name))
        return Path(path)

    def to_text(self, width: int = 110) -> str:
        """Verdict, four numbers, findings and tables for a terminal, readable without colour."""
        return to_text(self._page(), width)

    def _page(self) -> Page:
        claims = [text for part in self.parts for text in part.contradictions]
        return Page(
            title=self.title,
            tone=self.tone,
            headline=self.headline,
            verdict=(*claims, *self.exceeded, *self.verdict_sentences()),
            limit=self.limit_kept(),
            cards=self.cards(),
            findings=tuple(self.all_findings),
            sections=(*self.sections(), *(section for part in self.parts for section in part.sections)),
            assumptions=tuple(self._assumed()),
            seconds=self.seconds,
            settings=self.settings(),
            environment=self.environment,
        )

    def _assumed(self) -> list[str]:
        return [*self.assumptions(), *(text for part in self.parts for text in part.assumptions)]


def require_report_folder(folder: Path) -> None:
    """Refuse a folder before the work: it must accept files, and hold no report that is not leakcore's."""
    require_writable(folder)
    require_ours(folder, "report.json", "report.html")


def write_report(report: AuditReport, folder: Path, pieces: PartialResults) -> None:
    """Write report.json and report.html into the folder, and remove the finished pieces that they came from."""
    report.to_json(place_in(folder, "report.json"), indent=2)
    report.to_html(place_in(folder, "report.html"))
    pieces.remove()
