"""A result in a terminal: the conclusion, then the paper's numbers compared with ours."""

from __future__ import annotations

import decimal
import math
import textwrap
from collections.abc import Sequence

_WIDTH = 100
_ROUNDING = {"lower": decimal.ROUND_FLOOR, "upper": decimal.ROUND_CEILING}


def render(
    head: str,
    conclusion: str,
    statement: str,
    stated: Sequence[tuple[str, str, str, str]],
    remarks: Sequence[tuple[str, str]],
) -> str:
    """Head, conclusion, what the paper says, a table of (what, paper, ours, comment), remarks with their labels."""
    lines = [head, "", *_folded("conclusion", conclusion), "", *_folded("the paper says", statement), ""]
    if stated:
        top, rule, *rows = _aligned([("stated", "paper", "ours"), *(row[:3] for row in stated)])
        lines += [top, rule]
        for line, (*_, comment) in zip(rows, stated, strict=True):
            lines.append(line)
            if comment:
                lines += textwrap.wrap(comment, _WIDTH, initial_indent="    ", subsequent_indent="    ")
        lines.append("")
    for label, text in remarks:
        lines += _folded(label, text)
    return "\n".join(lines)


def table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A table under its title; the first row is its head."""
    return "\n".join([title, "", *_aligned(rows)])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows in columns, with a rule under the first."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    top, *rest = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    return [top, "  ".join("─" * w for w in widths), *rest]


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
