"""What an experiment hands back: panels to draw, and the paper's stated numbers beside ours."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import numpy as np

from leakcore._base.results import Result, jsonable
from leakcore.experiments import text

AGREEMENT = {
    "": "",
    "yes": "The paper's finding is reproduced.",
    "partly": "The paper's finding is reproduced in part.",
    "no": "The paper's finding is not reproduced.",
}
KINDS = ("", "upper", "lower", "estimate")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """A line or a row of points.

    role: decides how it looks, the same in every figure: "bound", "rdp", "orthogonal", "simplex", "attack", "attack-2",
        "attack-3", "baseline" or "chance".
    x, y: of one length. low, high: the interval of each y, None without one. colour: a third value per point, drawn as
        its colour.
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
                raise ValueError(f"{field}: must be one-dimensional and as long as x ({len(np.asarray(self.x))})")
            object.__setattr__(self, field, array)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Panel:
    """One pair of axes. log_x, log_y: logarithmic axes. y_range: None lets the data decide. colour_label: what a
    series'
    colour means."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    y_range: tuple[float, float] | None = (0.0, 1.02)
    colour_label: str | None = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Pictures:
    """Rows of pictures: images (rows, columns, height, width) or (rows, columns, height, width, 3), in [0, 1]."""

    title: str
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    images: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Stated:
    """A number or sentence of the paper, and ours beside it.

    paper: as it is printed. ours: our number, an int where it counts something, None where the statement is no number.
    interval: of ours, None for an exact value. comment: where the two differ, why; or what the data say of the
    sentence. kind: "upper" or "lower" for a bound, "estimate" for what was measured, "" where that was not said.
    confidence: of the interval, or of the bound; None where there is none: an interval is then a range, and `what`
    says of what.
    """

    what: str
    paper: str
    ours: float | None = None
    interval: tuple[float, float] | None = None
    comment: str = ""
    kind: str = ""
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: must be one of {', '.join(map(repr, KINDS))}")

    def shown(self) -> str:
        """Our number as tables print it."""
        if self.ours is None:
            return "see below" if self.comment else "–"
        return text.shown(self.ours, self.interval, self.kind, self.confidence)


def ours(result: Result) -> dict[str, Any]:
    """`Stated`'s fields of one number; its interval where that is one of a confidence, not of rounding."""
    ends = None if result.interval is None or result.confidence is None else tuple(map(float, result.interval))
    return {"ours": float(result.value), "interval": ends, "kind": result.kind, "confidence": result.confidence}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ExperimentResult:
    """A reproduced figure or table.

    name, title: of the experiment; statement: what the paper says that it shows. conclusion: what our numbers say, the
    figure's caption. agreement: whether they show what the paper says: "yes", "partly", "no", or "" where that was not
    judged. data: what was really used. settings: everything that defines the run. notes: what a reader must
    know before quoting a number. `seconds` is not kept: an interrupted run's JSON equals an uninterrupted one's.
    """

    schema: ClassVar[str] = "leakcore.experiment/1"

    name: str
    title: str
    statement: str
    scale: str
    seed: int
    conclusion: str
    stated: tuple[Stated, ...]
    agreement: str = ""
    panels: tuple[Panel, ...] = ()
    pictures: tuple[Pictures, ...] = ()
    data: tuple[str, ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    provenance: str = "Hayes, Mahloujifar and Balle, Bounding Training Data Reconstruction in DP-SGD, 2023"

    def __post_init__(self) -> None:
        if self.agreement not in AGREEMENT:
            raise ValueError(f"agreement={self.agreement!r}: must be one of {', '.join(map(repr, AGREEMENT))}")

    @property
    def caption(self) -> str:
        """Whether the paper's finding is reproduced, and the conclusion."""
        return f"{AGREEMENT[self.agreement]} {self.conclusion}".lstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready types with the schema's version."""
        return {"schema": self.schema, **{f.name: jsonable(getattr(self, f.name)) for f in dataclasses.fields(self)}}

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as strict JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    def to_text(self) -> str:
        """Title, the paper's numbers beside ours, data, conclusion and notes, for a terminal."""
        stated = [(s.what, s.paper, s.shown(), s.comment) for s in self.stated]
        remarks = [("data", line) for line in self.data] + [("note", line) for line in self.notes]
        head = f"{self.name}  {self.title}  (scale {self.scale}, seed {self.seed})"
        return text.render(head, self.statement, stated, [*remarks, ("conclusion", self.caption)])
