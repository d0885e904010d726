"""What a report shows, before it is HTML or terminal text: a verdict, four numbers, findings, tables and figures."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from leakcore._base.codec import from_plain, to_plain
from leakcore._base.pages import drawing
from leakcore.audit.shared.format import ADJACENCY, above, confidence_words, guarantee, number, power

if TYPE_CHECKING:
    from leakcore._base.results import Adjacency, Result


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Column:
    """A heading; `kind` is upper, lower, estimate or parameter (an input, a claim, or a plain count)."""

    title: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Cell:
    """A value, and its interval beneath it."""

    text: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """Cells in the order of the columns. highlight: whether it is the row that the report is about."""

    cells: tuple[Cell, ...]
    highlight: bool = False


def heads(*texts: str) -> tuple[Column, ...]:
    """Columns by their titles, with the kind in brackets, as a terminal prints it; without one it is "parameter"."""
    parts = (text.rpartition(" [") for text in texts)
    return tuple(
        Column(title, kind[:-1]) if bracket else Column(kind, "parameter" if kind else "")
        for title, bracket, kind in parts
    )


def row_of(*cells: str | tuple[str, str], highlight: bool = False) -> Row:
    """A row of texts; a pair is a text and the note beneath it."""
    return Row(tuple(Cell(c) if isinstance(c, str) else Cell(*c) for c in cells), highlight)


@dataclasses.dataclass(frozen=True)
class Table:
    """A titled table with a caption that says confidence and adjacency. marked: what the highlighted rows are."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str
    marked: str = "the audited configuration"

    def to_text(self, width: int = 110) -> str:
        """Aligned plain text, readable without colour."""
        heads = [column.title.split("\n") for column in self.columns]
        depth = max(len(h) for h in heads)
        lines = [
            [""] * (depth - len(h)) + h + [f"[{c.kind}]" if c.kind else ""]
            for h, c in zip(heads, self.columns, strict=True)
        ]
        grid = [list(line) for line in zip(*lines, strict=True)]
        body: list[list[str]] = []
        for row in self.rows:
            body.append([cell.text for cell in row.cells])
            if row.highlight:
                body[-1][0] = f"> {body[-1][0]}"
            if any(cell.note for cell in row.cells):
                body.append([cell.note for cell in row.cells])
        widths = [max(len(r[i]) for r in grid + body) for i in range(len(self.columns))]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))

        def line(cells: list[str]) -> str:
            return "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()

        marks = f"> marks {self.marked}. " if any(row.highlight for row in self.rows) else ""
        caption = textwrap.fill(f"{marks}{self.caption}", width, initial_indent="  ", subsequent_indent="  ")
        return "\n".join([self.title, rule, *map(line, grid), rule, *map(line, body), rule, caption])


def table_of(
    title: str,
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], str | tuple[str, str]]],
    caption: str,
    *,
    highlight: Callable[[T], bool] = lambda item: False,
    marked: str = Table.marked,
) -> Table:
    """A table of one row for each item, with columns by their heads, as `heads` reads them."""
    rows = (row_of(*(cell(item) for cell in columns.values()), highlight=highlight(item)) for item in items)
    return Table(title, heads(*columns), tuple(rows), caption, marked)


BEATS = "What no attacker can beat"
REACHED = "What the best attack reached"
PROVED = "What is proved"
EPSILON = "The privacy parameter ε"
QUESTIONS = (BEATS, REACHED, PROVED, EPSILON)
"""The questions that the cards answer, in the order in which they stand."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """One of the four numbers: as it is printed, or what is printed instead (absent), and what it measures (detail).

    kind: upper, lower, estimate, or parameter for a number that was only stated.
    """

    question: str
    value: str = ""
    kind: str = ""
    interval: str = ""
    confidence: str = ""
    adjacency: str = ""
    absent: str = "not audited"
    detail: str
    number: float | None = None

    @property
    def guarantee(self) -> str:
        """Interval, confidence and adjacency in one line; empty without a number."""
        interval = f"interval {self.interval}" if self.interval else ""
        return ", ".join(filter(None, (interval, self.confidence, self.adjacency)))

    @property
    def shown(self) -> str:
        """The number, or that there is none."""
        return self.value or self.absent


def adjacency_words(adjacency: Adjacency | None) -> str:
    """`add/remove adjacency`; of a number that no privacy parameter is part of, that it has none."""
    return "adjacency does not apply" if adjacency is None else f"{ADJACENCY[adjacency]} adjacency"


def card(question: str, result: Result, value: str, detail: str, *, interval: str = "") -> Card:
    """A card with the kind, confidence and adjacency of `result`. value, interval: as they are printed."""
    return Card(
        question=question,
        value=value,
        kind=result.kind,
        interval=interval,
        confidence=confidence_words(result),
        adjacency=adjacency_words(result.adjacency),
        detail=detail,
        number=float(result.value) if isinstance(result.value, int | float) else None,
    )


def epsilon_card(result: Result, delta: float, detail: str) -> Card:
    """The accountant's ε. detail: of what."""
    return card(EPSILON, result, f"ε = {number(result)}", f"At δ = {power(delta)}: {detail}")


def claim_card(epsilon: float, delta: float, adjacency: Any, detail: str) -> Card:
    """A claimed ε. detail: how it was stated."""
    return Card(
        question=EPSILON,
        value=f"ε = {number(epsilon)}",
        kind="parameter",
        confidence="claimed",
        adjacency=adjacency_words(adjacency),
        detail=f"At δ = {power(delta)}: {detail}.",
    )


def proof_card(result: Result, delta: float, detail: str) -> Card:
    """A lower bound on ε; a bound of 0 proves nothing, and is shown so. detail: what proves it."""
    if float(result.value) <= 0:
        sure = ", ".join(filter(None, (confidence_words(result), adjacency_words(result.adjacency))))
        return Card(
            question=PROVED,
            absent="nothing",
            detail=f"At δ = {power(delta)} no ε above 0 is proved ({sure}), {detail} That does not prove privacy.",
        )
    return card(PROVED, result, f"ε ≥ {number(result)}", f"At δ = {power(delta)}: {detail}")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture, in words (alt), and what to conclude from it (caption).

    svg: trusted markup of our own drawing, or the call that draws it, because a terminal never needs the drawing.
    """

    svg: str | Callable[[], str] = dataclasses.field(compare=False)
    alt: str
    caption: str

    def markup(self) -> str:
        """The drawing."""
        return self.svg if isinstance(self.svg, str) else self.svg()


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading, perhaps a figure, and tables."""

    title: str
    tables: tuple[Table, ...] = ()
    figure: Figure | None = None


class Finding(str):
    """One finding, "subject: result", with its consequence (`verdict`) and its conditions (`assumes`).

    A plain string is a finding without these two.
    """

    verdict: str
    assumes: str

    def __new__(cls, text: str, *, verdict: str = "", assumes: str = "") -> Finding:
        finding = super().__new__(cls, text)
        finding.verdict, finding.assumes = verdict, assumes
        return finding


def about(finding: str) -> str:
    """The subject of a finding: its first words, up to the colon."""
    return str(finding).partition(": ")[0]


def follows(finding: str) -> tuple[str, str]:
    """The consequence of a finding, and its conditions; empty for a plain string."""
    return getattr(finding, "verdict", ""), getattr(finding, "assumes", "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """An ε that a limit is compared with. what: in words. guarantee: kind, confidence and adjacency."""

    what: str
    value: float
    guarantee: str

    def __str__(self) -> str:
        return self._said(number(self.value, kind=self._kind))

    def compared(self, limit: float) -> tuple[str, str]:
        """The ε and the limit, with as many digits as show whether it is above the limit."""
        if self.value > limit:
            text, allowed = above(self.value, limit, self._kind)
            return self._said(text), allowed
        digits = 4
        while digits < 17 and math.isfinite(self.value) and float(number(self.value, digits, self._kind)) > limit:
            digits += 1  # an upper bound is rounded up, and must not be seen above a limit that it keeps
        return self._said(number(self.value, digits, self._kind)), f"{limit:g}"

    @property
    def _kind(self) -> str:
        return self.guarantee.partition(",")[0]

    def _said(self, text: str) -> str:
        return f"{self.what} = {text} ({self.guarantee})"


def judged(what: str, result: Result) -> Judged:
    """An ε with the value and the guarantee of a result."""
    return Judged(what=what, value=float(result.value), guarantee=guarantee(result))


@dataclasses.dataclass(frozen=True)
class PartFields:
    """A part as its JSON holds it."""

    key: str
    findings: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]
    assumptions: tuple[str, ...]
    contradictions: tuple[str, ...]
    content: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What another study adds to a report, after the report's own findings, sections and assumptions.

    key: its name in the JSON. content: what stands there. contradictions: claims that it disproved; they fail the gate.
    """

    json_form: ClassVar[type] = PartFields

    key: str
    findings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    assumptions: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    content: Any = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, figures as their drawings."""
        drawn = tuple(
            dataclasses.replace(s, figure=s.figure and dataclasses.replace(s.figure, svg=s.figure.markup()))
            for s in self.sections
        )
        return {
            "key": self.key,
            "findings": [[str(text), *follows(text)] for text in self.findings],
            "sections": to_plain(drawn, tuple[Section, ...]),
            "assumptions": list(self.assumptions),
            "contradictions": list(self.contradictions),
            "content": to_plain(self.content, Any),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Part:
        """The inverse of `to_dict`. ValueError for anything else."""
        read = from_plain(data, PartFields)
        sections = tuple(  # the markup of a file is not trusted
            dataclasses.replace(s, figure=s.figure and dataclasses.replace(s.figure, svg=drawing(s.figure.svg)))
            for s in read.sections
        )
        texts = tuple(Finding(text, verdict=verdict, assumes=assumes) for text, verdict, assumes in read.findings)
        return cls(**{**vars(read), "findings": texts, "sections": sections})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """Everything that one report shows, in the order in which it is shown.

    tone: the colour of the headline, "good", "neutral" or "bad". verdict: sentences; the first one is the verdict.
    limit: what a limit on ε was compared with. sections: their first figure is the picture under the cards.
    """

    title: str
    tone: str
    headline: str
    verdict: tuple[str, ...]
    limit: str = ""
    cards: tuple[Card, ...] = ()
    findings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    assumptions: tuple[str, ...] = ()
    seconds: float
    settings: dict[str, Any]
    environment: dict[str, Any]

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of all sections."""
        return tuple(table for section in self.sections for table in section.tables)
