"""What changed from one report to another: settings, numbers beyond their intervals or not, and the verdict."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from leakcore._base.codec import from_plain
from leakcore._base.reading import read_json
from leakcore._base.results import Kind, Record
from leakcore._base.tables import Rows
from leakcore._base.text import line_of, markdown, name_of, printable, repr_of
from leakcore.audit.shared.report import AuditReport, Document

_RESULT = "leakcore.result/"
_ALSO = frozenset({"report", "environment", "seconds", "limit", "config"})
"""Keys of report.json that repeat its numbers, or are of the machine."""
_ROUNDING = 1e-9
_LONGEST = 400
"""Characters of a setting, or of a name, that are shown."""
CHANGES = ("not comparable", "beyond its interval", "changed", "within its interval", "only before", "only after")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Change(Record):
    """One number that differs.

    Attributes:
        where: keys of report.json that lead to it.
        quantity: what it is.
        kind: "upper", "lower" or "estimate".
        before: as it is printed, with its interval; empty where there was none.
        after: the same of the other report.
        how: "not comparable" if the two say different things: under another adjacency, or of another kind, confidence,
            δ or family; "beyond its interval" if the two intervals do not meet; "within its interval" if they do;
            "changed" for a number without an interval (an exact one, or a bound that another seed would move); "only
            before"; "only after".
    """

    where: str
    quantity: str
    kind: str
    before: str
    after: str
    how: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(Document):
    """What changed from one report to another, as `audit.compare` returns it.

    Attributes:
        passed: whether the gate passed before, and after; None where it was not decided.
        contradictions: sentences of the second report that the first one does not have.
        settings: key, value before and value after, of settings that differ.
        changes: numbers that differ, those that say different things first, then those beyond their intervals.
        same: how many numbers are equal.
    """

    schema: ClassVar[str] = "leakcore.comparison/1"

    passed: tuple[bool | None, bool | None]
    contradictions: tuple[str, ...]
    settings: tuple[tuple[str, str, str], ...]
    changes: tuple[Change, ...]
    same: int

    @property
    def sentence(self) -> str:
        """The verdict and the counts."""
        words = {True: "passes", False: "fails", None: "is not decided"}
        before, after = (words[value] for value in self.passed)
        gate = f"The gate {after}, as before." if before == after else f"The gate {after}; before, it {before}."
        counts = [f"{n} {how}" for how in CHANGES if (n := sum(c.how == how for c in self.changes))]
        return f"{gate} Numbers: {', '.join([*counts, f'{self.same} equal'])}."

    def table_rows(self) -> Rows:
        """The verdict, settings and numbers that differ."""
        return [
            ("verdict", " ".join([self.sentence, *self.contradictions])),
            *((key, f"{before} → {after}") for key, before, after in self.settings),
            *((f"{c.quantity} ({c.where})", f"{c.before} → {c.after}: {c.how}") for c in self.changes),
        ]

    def to_text(self) -> str:
        """For a terminal."""
        lines = [self.sentence, *map(line_of, self.contradictions)]
        rows = [f"{key}: {_cut(before)} → {_cut(after)}" for key, before, after in self.settings]
        rows += [f"{c.quantity} [{c.kind}] {c.before} → {c.after}: {c.how}  ({c.where})" for c in self.changes]
        return "\n".join([*lines, *(f"  {line_of(row)}" for row in rows)])

    def to_markdown(self) -> str:
        """For a comment on a change of the code. Text of the reports is shown, and nothing of it is obeyed."""
        lines = [f"**{self.sentence}**", *(f"- {markdown(text)}" for text in self.contradictions)]
        if self.settings:
            lines += ["", "| setting | before | after |", "|---|---|---|"]
            lines += [f"| {' | '.join(map(_cell, row))} |" for row in self.settings]
        if self.changes:
            lines += ["", "| number | kind | before | after | |", "|---|---|---|---|---|"]
            for c in self.changes:
                number = f"{_cell(c.quantity)} ({_cell(c.where)})"
                lines.append(f"| {' | '.join([number, *map(_cell, (c.kind, c.before, c.after, c.how))])} |")
        return "\n".join(lines)


def compare(before: AuditReport | str | Path, after: AuditReport | str | Path) -> Comparison:
    """What changed from one report to another.

    Numbers are matched by their place in report.json. Two numbers with intervals differ beyond them if the intervals do
    not meet: where nothing changed and both hold with 95%, that happens in less than one of ten comparisons.

    Args:
        before: a report, or the path of a report.json.
        after: another of the same form.

    Returns:
        A `Comparison`.

    Raises:
        ValueError: for files that are not reports of leakcore, with the key that is damaged, or two forms that cannot
            be compared.
        FileNotFoundError: for a path where nothing is.

    Example:
        >>> from leakcore import audit
        >>> few, many = (audit.from_scores([5.0] * n, [0.0] * n, coins=True) for n in (50, 500))
        >>> {change.where: change.how for change in audit.compare(few, many).changes}["epsilon"]
        'changed'
    """
    first, second = _content("before", before), _content("after", after)
    if first.schema != second.schema:
        raise ValueError(
            f"`after` must be a report of the same form as `before`, {printable(first.schema, 60)}, got "
            f"{printable(second.schema, 60)}"
        )
    old, new = first.numbers, second.numbers
    changes = [c for where in {**old, **new} if (c := _change(where, old.get(where), new.get(where))) is not None]
    known = set(first.contradictions)
    return Comparison(
        passed=(first.passed, second.passed),
        contradictions=tuple(text for text in second.contradictions if text not in known),
        settings=tuple(_settings(first.settings, second.settings)),
        changes=tuple(sorted(changes, key=lambda c: CHANGES.index(c.how))),
        same=len({**old, **new}) - len(changes),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Number:
    """What is compared of a result."""

    quantity: str
    kind: Kind
    confidence: float | None
    delta: float | None
    family: str | None
    adjacency: str | None
    value: np.ndarray
    interval: tuple[np.ndarray, np.ndarray] | None

    def __post_init__(self) -> None:
        for end in self.interval or ():
            if end.shape != self.value.shape:
                raise ValueError(f"`interval` must have two ends of shape {self.value.shape}, got {end.shape}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Content:
    """What is compared of a report, checked."""

    schema: str
    passed: bool | None
    contradictions: tuple[str, ...]
    settings: dict[str, Any]
    numbers: dict[str, _Number]


def _content(name: str, report: Any) -> _Content:
    if isinstance(report, AuditReport):
        where, content = f"`{name}`", json.loads(report.to_json())
    elif isinstance(report, str | Path):
        where, content = printable(report), read_json(Path(report))
    else:
        raise TypeError(f"`{name}` must be a report or the path of a report.json, got {type(report).__name__}")
    if not isinstance(content, dict) or not str(content.get("schema", "")).startswith("leakcore."):
        raise ValueError(f"`{name}` must be a report of leakcore, got {where}")
    try:
        settings = {} if content.get("config") is None else content["config"]
        if not isinstance(settings, dict):
            raise ValueError(f"`config` must be values by name, got {repr_of(settings, 60)}")
        return _Content(
            schema=content["schema"],
            passed=_typed(content, "passed", bool | None),
            contradictions=_typed(content, "contradictions", tuple[str, ...]) if "contradictions" in content else (),
            settings=settings,
            numbers=dict(_results(content)),
        )
    except ValueError as why:
        raise ValueError(f"{where}: {why}: damaged") from why


def _typed(content: dict[str, Any], key: str, kind: Any) -> Any:
    try:
        return from_plain(content.get(key), kind)
    except ValueError as why:
        raise ValueError(f"`{key}`: {why}") from None


def _results(content: Any, where: str = "") -> Iterator[tuple[str, _Number]]:
    """Every number with a kind, by its place."""
    if isinstance(content, dict):
        if str(content.get("schema", "")).startswith(_RESULT) and "value" in content:
            yield where, _number(content, where)
            return
        for key, value in content.items():
            if where or key not in _ALSO:
                yield from _results(value, f"{where}.{key}" if where else key)
    elif isinstance(content, list):
        for i, value in enumerate(content):
            yield from _results(value, f"{where}[{i}]")


def _number(content: dict[str, Any], where: str) -> _Number:
    ends, assumed = content.get("interval"), content.get("assumptions")
    try:
        if not isinstance(assumed, dict):
            if assumed is not None:
                raise ValueError(f"`assumptions` must be values by name, got {repr_of(assumed, 60)}")
            assumed = {}
        if not (ends is None or (isinstance(ends, list) and len(ends) == 2)):
            raise ValueError(f"`interval` must be a list of 2 values, got {repr_of(ends, 60)}")
        return _Number(
            quantity=_typed(content, "quantity", str | None) or "",
            kind=_typed(content, "kind", Kind),
            confidence=_typed(content, "confidence", float | None),
            delta=_typed(content, "delta", float | None) if "delta" in content else None,
            family=_typed(content, "family", str | None) if "family" in content else None,
            adjacency=_typed(assumed, "adjacency", str | None) if "adjacency" in assumed else None,
            value=_values("value", content["value"]),
            interval=None if ends is None else (_values("interval[0]", ends[0]), _values("interval[1]", ends[1])),
        )
    except ValueError as why:
        raise ValueError(f"`{name_of(where)}`: {why}" if where else str(why)) from None


def _values(key: str, plain: Any) -> np.ndarray:
    """A number or an array of them, as float64."""
    if plain == []:
        return np.zeros(0)
    array = np.asarray(_typed({key: plain}, key, float | np.ndarray))
    if array.dtype.kind not in "biuf":
        raise ValueError(f"`{key}` must be numbers, got {array.dtype}")
    return array.astype(np.float64)


def _change(where: str, old: _Number | None, new: _Number | None) -> Change | None:
    """How two numbers differ; None if they are equal."""
    one = old or new
    assert one is not None
    before, after, how = _printed(old), _printed(new), "changed"
    if old is None or new is None:
        how = "only after" if old is None else "only before"
    elif apart := _apart(old, new):
        before, after = (f"{r} ({', '.join(words)})" for r, words in zip((before, after), apart, strict=True))
        how = "not comparable"
    elif old.value.shape == new.value.shape:
        if np.allclose(old.value, new.value, rtol=_ROUNDING, atol=0, equal_nan=True):
            return None
        if old.interval and new.interval and old.confidence is not None:
            (low, high), (least, most) = old.interval, new.interval
            how = "beyond its interval" if bool(((high < least) | (most < low)).any()) else "within its interval"
    return Change(where=where, quantity=one.quantity, kind=one.kind, before=before, after=after, how=how)


def _apart(old: _Number, new: _Number) -> tuple[list[str], list[str]] | None:
    """In what two numbers say different things, in words of each; None where they say the same."""
    keys = [key for key in ("kind", "confidence", "delta", "family", "adjacency") if vars(old)[key] != vars(new)[key]]
    if not keys:
        return None
    one, other = ([f"{key} = {vars(n)[key]}".removeprefix("adjacency = ") for key in keys] for n in (old, new))
    return one, other


def _printed(result: _Number | None) -> str:
    if result is None:
        return ""
    value = result.value
    if value.ndim:
        return f"{value.size} values, {value.min():.4g} to {value.max():.4g}" if value.size else "no values"
    ends = result.interval
    return f"{float(value):.4g}" + ("" if ends is None else f" [{float(ends[0]):.4g}, {float(ends[1]):.4g}]")


def _settings(old: dict[str, Any], new: dict[str, Any], where: str = "") -> Iterator[tuple[str, str, str]]:
    for key in {**old, **new}:
        name, a, b = f"{where}.{key}" if where else key, old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _settings(a, b, name)
        elif a != b:
            yield name, _said(old, key), _said(new, key)


def _said(settings: dict[str, Any], key: str) -> str:
    return json.dumps(settings[key], ensure_ascii=False) if key in settings else "—"


def _cut(text: str) -> str:
    return printable(text, _LONGEST)


def _cell(text: str) -> str:
    return markdown(text, _LONGEST, cell=True)
