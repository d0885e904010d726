"""What an experiment returns: panels to draw, the paper's numbers with ours, and its text for a terminal."""

from __future__ import annotations

import dataclasses
import decimal
import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from leakcore._base import validate
from leakcore._base.results import Record, Result, without
from leakcore._base.tables import Rows, Table
from leakcore._base.version import __version__
from leakcore.experiments.driver.verdict import Check, counted, verdict

SENTENCES = {
    "reproduced": "The paper's finding is reproduced.",
    "direction only": "The direction of the paper's finding is reproduced, its size is not.",
    "not reproduced": "The paper's finding is not reproduced.",
    "not comparable": "Nothing here can be compared with the paper's finding.",
}
KINDS = ("", "upper", "lower", "estimate")
_WIDTH = 100
_ROUNDING = {"lower": decimal.ROUND_FLOOR, "upper": decimal.ROUND_CEILING}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Series(Record):
    """A line or a row of points.

    Attributes:
        name: in the legend.
        role: decides the style: "bound", "rdp", "orthogonal", "simplex", "attack", "attack-2" to "attack-7", "null",
            "baseline", "accountant" or "chance". One figure uses a role for one name in all its panels.
        x: one-dimensional.
        y: as long as x.
        low: lower end of each y's interval, or None.
        high: upper end of each y's interval, or None.
        colour: a third value for each point, drawn as its colour, or None.
    """

    name: str
    role: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    colour: np.ndarray | None = None

    def __post_init__(self) -> None:
        for field in ("x", "y", "low", "high", "colour"):
            value = getattr(self, field)
            if value is None:
                continue
            array = np.asarray(value, dtype=np.float64)
            if array.ndim != 1 or len(array) != len(np.asarray(self.x)):
                raise ValueError(
                    f"`{field}` must be one-dimensional and as long as x ({len(np.asarray(self.x))}), got shape "
                    f"{array.shape}"
                )
            object.__setattr__(self, field, array)

    @classmethod
    def of(
        cls,
        name: str,
        role: str,
        x: ArrayLike,
        y: ArrayLike,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
    ) -> Series:
        """The series of any numbers; a single y is the same at every x."""
        x = np.asarray(x, dtype=np.float64)
        y = np.broadcast_to(np.asarray(y, dtype=np.float64), x.shape) if np.ndim(y) == 0 else np.asarray(y)
        ends = [None if end is None else np.asarray(end) for end in (low, high)]
        return cls(name=name, role=role, x=x, y=y, low=ends[0], high=ends[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Panel(Record):
    """One pair of axes.

    Attributes:
        title: above the axes.
        x_label: text along the horizontal axis.
        y_label: text along the vertical axis.
        series: lines and points.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical axis is logarithmic.
        y_range: ends of the vertical axis; None lets the data decide.
        colour_label: what the colour of a series means.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    _: dataclasses.KW_ONLY
    log_x: bool = False
    log_y: bool = False
    y_range: tuple[float, float] | None = (0.0, 1.02)
    colour_label: str | None = None

    @classmethod
    def of(
        cls, texts: tuple[str, str, str], *series: Series, log: str = "", y_range: tuple[float, float] | None = None
    ) -> Panel:
        """The panel of (title, x_label, y_label). log: the axes that are logarithmic, such as "xy"."""
        return cls(*texts, series, log_x="x" in log, log_y="y" in log, y_range=y_range)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Pictures(Record):
    """Rows of pictures: images (rows, columns, height, width) or (rows, columns, height, width, 3), in [0, 1]."""

    title: str
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    images: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Stated(Record):
    """A number or sentence of the paper, with our number for comparison.

    Attributes:
        what: which quantity.
        paper: the number or sentence as it is printed.
        ours: our number, an int for a count; None if the statement has no number.
        interval: around our number; None for an exact value.
        comment: why the two differ, or what the data say about the sentence.
        kind: "upper" or "lower" for a bound, "estimate" for a measurement, "" if not stated.
        confidence: probability that the interval or the bound holds. None: the interval is a range, and `what` says of
            what.
    """

    what: str
    paper: str
    ours: int | float | None = None
    _: dataclasses.KW_ONLY
    interval: tuple[float, float] | None = None
    comment: str = ""
    kind: str = ""
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"`kind` must be {validate.either(map(repr, KINDS))}, got {self.kind!r}")

    def shown(self) -> str:
        """Our number as tables print it."""
        if self.ours is None:
            return "see below" if self.comment else "–"
        return shown(self.ours, self.interval, self.kind, self.confidence)


@dataclasses.dataclass(frozen=True, eq=False)
class TextTable(Record):
    """Rows of cells as they are printed.

    Attributes:
        title: above the table.
        head: names of the columns.
        rows: each as long as `head`.

    Raises:
        ValueError: for a row of another length.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"`rows` must have {len(self.head)} cells each, got {row!r}")


def ours(result: Result) -> dict[str, Any]:
    """The fields of `Stated` that one number fills; its interval only if it has a confidence."""
    ends = None if result.interval is None or result.confidence is None else tuple(map(float, result.interval))
    return {"ours": float(result.value), "interval": ends, "kind": result.kind, "confidence": result.confidence}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Departure(Record):
    """One thing that a run does otherwise than the paper.

    Attributes:
        what: differs.
        paper: how the paper has it, in words.
        here: how the run has it, in words.
    """

    what: str
    paper: str
    here: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ExperimentResult(Record):
    """A reproduced figure or table.

    It does not hold the time that the run took, so the JSON of an interrupted run equals that of an uninterrupted one.

    Attributes:
        name: the experiment's, such as "reconstruction-fig3".
        title: what the experiment is about.
        statement: what the paper says that it shows.
        scale: "tiny", "quick" or "paper".
        seed: what every random number follows from.
        conclusion: what our numbers say.
        stated: the paper's numbers, with ours.
        checks: what the paper says, each statement with the number of our cases in which it holds.
        panels: axes to draw.
        pictures: rows of pictures to draw.
        tables: rows of cells to print.
        departures: what the run does otherwise than the paper.
        data: the data that were used, in words.
        settings: everything that defines the run.
        notes: what a reader must know before quoting a number.
        provenance: the paper.

    Example:
        >>> from leakcore import experiments
        >>> result = experiments.ExperimentResult(
        ...     name="mine", title="A figure", statement="Success falls with noise.", scale="quick", seed=0,
        ...     conclusion="It falls.", stated=(),
        ...     checks=(experiments.Check(says="success falls", holds=4, cases=4, chance=0.5),),
        ... )
        >>> result.verdict  # four of four happen by chance in one of sixteen
        'not reproduced'
    """

    schema: ClassVar[str] = "leakcore.experiment/1"

    name: str
    title: str
    statement: str
    scale: str
    seed: int
    conclusion: str
    stated: tuple[Stated, ...]
    checks: tuple[Check, ...] = ()
    panels: tuple[Panel, ...] = ()
    pictures: tuple[Pictures, ...] = ()
    tables: tuple[TextTable, ...] = ()
    departures: tuple[Departure, ...] = ()
    data: tuple[str, ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    provenance: str = "Hayes, Mahloujifar and Balle, Bounding Training Data Reconstruction in DP-SGD, 2023"

    def __post_init__(self) -> None:
        # As JSON gives them back.
        object.__setattr__(self, "settings", json.loads(json.dumps(self.settings)))

    @property
    def verdict(self) -> str:
        """ "reproduced", "direction only", "not reproduced" or "not comparable": by one rule, from the counts."""
        return verdict(self.checks)

    @property
    def counts(self) -> str:
        """The statements with their counts, and with what chance gives."""
        return counted(self.checks)

    @property
    def caption(self) -> str:
        """Whether the paper's finding is reproduced, the counts and the conclusion."""
        return " ".join(filter(None, (SENTENCES[self.verdict], self.counts, self.conclusion)))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the fields, with leakcore's version and the verdict."""
        return {**super().to_dict(), "version": __version__, "verdict": self.verdict}

    @classmethod
    def from_dict(cls, data: Any) -> ExperimentResult:
        """The inverse of `to_dict`. ValueError for anything else."""
        return super().from_dict(without(data, "version", "verdict"))

    def table_rows(self) -> Rows:
        """What is shown of it, as (name, value in words)."""
        stated = [(s.what, f"paper: {s.paper}; here: {s.shown()}") for s in self.stated]
        return [("scale", f"{self.scale}, seed {self.seed}"), *stated, ("conclusion", self.caption)]

    def __repr__(self) -> str:
        return f"ExperimentResult(name={self.name!r}, scale={self.scale!r}, seed={self.seed}, {self.caption[:100]!r})"

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as strict JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    def to_text(self) -> str:
        """Title, conclusion, the paper's numbers compared with ours, data, notes and tables, for a terminal."""
        stated = [(s.what, s.paper, s.shown(), s.comment) for s in self.stated]
        remarks = [("data", line) for line in self.data] + [("note", line) for line in self.notes]
        head = f"{self.name}  {self.title}  (scale {self.scale}, seed {self.seed})"
        said = _text(head, self.caption, self.statement, stated, remarks)
        tables = [_table(t.title, [t.head, *t.rows]) for t in self.tables]
        if self.departures:
            rows = [(d.what, d.paper, d.here) for d in self.departures]
            tables.append(_table("What differs from the paper", [("what", "the paper", "here"), *rows]))
        return "\n\n".join([said, *tables])


def _text(
    head: str,
    conclusion: str,
    statement: str,
    stated: Sequence[tuple[str, str, str, str]],
    remarks: Sequence[tuple[str, str]],
) -> str:
    """Head, conclusion, what the paper says, a table of (what, paper, ours, comment), remarks with their labels."""
    lines = [head, "", *_folded("conclusion", conclusion), "", *_folded("the paper says", statement), ""]
    if stated:
        top, rule, *rows = Table(("stated", "paper", "ours"), [row[:3] for row in stated]).to_text().split("\n")
        lines += [top, rule]
        for line, (*_, comment) in zip(rows, stated, strict=True):
            lines.append(line)
            if comment:
                lines += textwrap.wrap(comment, _WIDTH, initial_indent="    ", subsequent_indent="    ")
        lines.append("")
    for label, text in remarks:
        lines += _folded(label, text)
    return "\n".join(lines)


def _table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A table under its title; the first row is its head."""
    return f"{title}\n\n{Table(rows[0], rows[1:]).to_text()}"


def number(value: float, kind: str = "") -> str:
    """Counts (int) plain, four decimals for probabilities, four digits for what is much smaller or larger.

    kind: a "lower" bound is rounded down, an "upper" one up.
    """
    if not math.isfinite(value):
        return "∞" if value > 0 else ("−∞" if value < 0 else "undefined")
    if isinstance(value, int):
        return str(value)
    decimals = value == 0 or 1e-3 <= abs(value) < 100
    if kind in _ROUNDING:
        exact = decimal.Decimal(repr(value))
        if decimals:
            return f"{exact.quantize(decimal.Decimal('0.0001'), _ROUNDING[kind])}"
        value = float(decimal.Context(4, _ROUNDING[kind]).create_decimal(exact))
    return f"{value:.4f}" if decimals else f"{value:.4g}"


def shown(ours: float, interval: Sequence[float] | None = None, kind: str = "", confidence: float | None = None) -> str:
    """Our number with its interval, rounded outwards, and the interval's level; or the kind of a bound."""
    sure = "" if confidence is None else f"{100 * confidence:g}%"
    if interval is not None:
        return f"{number(ours, kind)} [{number(interval[0], 'lower')}, {number(interval[1], 'upper')}] {sure}".rstrip()
    if kind in _ROUNDING:
        return f"{number(ours, kind)} ({', '.join(filter(None, (kind, sure)))})"
    return number(ours, kind)


def _folded(label: str, text: str) -> list[str]:
    first = f"{label:<11} "
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
