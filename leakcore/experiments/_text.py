"""A result in a terminal: the paper's numbers beside ours."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakcore.experiments._result import ExperimentResult, Stated

_WIDTH = 100


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


def number(value: float) -> str:
    """Four decimals for probabilities, four digits for what is much smaller or larger."""
    if not math.isfinite(value):
        return "∞" if value > 0 else ("−∞" if value < 0 else "undefined")
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 100 else f"{value:.4g}"


def _ours(stated: Stated) -> str:
    if stated.ours is None:
        return "see below" if stated.comment else "–"
    shown = number(stated.ours)
    if stated.interval is not None:
        shown += f" [{number(stated.interval[0])}, {number(stated.interval[1])}]"
    return shown


def _folded(label: str, text: str) -> list[str]:
    first = f"{label:<11} "
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
