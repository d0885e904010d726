"""How numbers and their guarantees are written, in the terminal, in the page and in sentences alike."""

from __future__ import annotations

import math

from leakcore._results import Result

ADJACENCY = {"add-remove": "add/remove", "replace": "replacement", None: "—"}


def percent(value: float) -> str:
    """A probability as a percentage with three significant digits near the ends, one decimal in between."""
    if not math.isfinite(value):
        return "—"
    shown = 100 * value
    if 0 < shown < 0.1 or 99.9 < shown < 100:
        return f"{shown:.3g}%" if shown < 50 else f"{shown:.3f}%"
    return f"{shown:.1f}%"


def number(value: float, digits: int = 4) -> str:
    """A number in `digits` significant digits; ∞ as such."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}"


def interval(result: Result, form: str = "percent") -> str:
    """`low–high`, or a dash."""
    if result.interval is None:
        return "—"
    low, high = (float(v) for v in result.interval)
    write = percent if form == "percent" else number
    return f"{write(low)}–{write(high)}"


def guarantee(result: Result) -> str:
    """Kind, confidence and adjacency in brackets: the words that must follow a number."""
    sure = "deterministic" if result.confidence is None else f"{100 * result.confidence:g}% confidence"
    return f"{result.kind}, {sure}, {ADJACENCY[result.adjacency]} adjacency"
