"""A result in a terminal: the paper's numbers beside ours."""

from __future__ import annotations

import decimal
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakcore.experiments.result import ExperimentResult, Stated

_WIDTH = 100
_ROUNDING = {"lower": decimal.ROUND_FLOOR, "upper": decimal.ROUND_CEILING}


def render(result: ExperimentResult) -> str:
    """Title, statement, table of stated numbers, data, notes, conclusion."""
    lines = [f"{result.name}  {result.title}  (scale {result.scale}, seed {result.seed})", ""]
    lines += _folded("the paper says", result.statement)
    lines.append("")
    if result.stated:
        head = ("stated", "paper", "ours")
        rows = [(s.what, s.paper, _ours(s)) for s in result.stated]
        widths = [max(len(r[i]) for r in (head, *rows)) for i in range(3)]
        lines.append("  ".join(h.ljust(w) for h, w in zip(head, widths, strict=True)).rstrip())
        lines.append("  ".join("─" * w for w in widths))
        for stated, row in zip(result.stated, rows, strict=True):
            lines.append("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
            if stated.comment:
                lines += textwrap.wrap(stated.comment, _WIDTH, initial_indent="    ", subsequent_indent="    ")
        lines.append("")
    for data in result.data:
        lines += _folded("data", data)
    for note in result.notes:
        lines += _folded("note", note)
    lines += _folded("conclusion", result.caption)
    return "\n".join(lines)


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
    """Our number with its interval, rounded outwards, and the interval's level; or of which kind a bound is."""
    sure = "" if confidence is None else f"{100 * confidence:g}%"
    if interval is not None:
        return f"{number(ours, kind)} [{number(interval[0], 'lower')}, {number(interval[1], 'upper')}] {sure}".rstrip()
    if kind in _ROUNDING:
        return f"{number(ours, kind)} ({', '.join(filter(None, (kind, sure)))})"
    return number(ours, kind)


def _ours(stated: Stated) -> str:
    if stated.ours is None:
        return "see below" if stated.comment else "–"
    return shown(stated.ours, stated.interval, stated.kind, stated.confidence)


def _folded(label: str, text: str) -> list[str]:
    first = f"{label:<11} "
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
