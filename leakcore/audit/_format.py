"""How numbers and their guarantees are written, in the terminal, in the page and in sentences alike."""

from __future__ import annotations

import math

from leakcore._results import Number, Result

ADJACENCY = {"add-remove": "add/remove", "replace": "replacement", None: "—"}


def percent(value: Number) -> str:
    """A probability as a percentage: one decimal, more near the ends so that nothing rounds to 0% or 100%."""
    shown = 100 * float(value)
    if not math.isfinite(shown):
        return "—"
    if shown in (0.0, 100.0):
        return f"{shown:.0f}%"
    if shown > 99.99:
        return "> 99.99%"
    if 0 < shown < 0.1 or 99.9 < shown < 100:
        return f"{shown:.2g}%" if shown < 50 else f"{shown:.2f}%"
    return f"{shown:.1f}%"


def number(value: Number, digits: int = 4) -> str:
    """A number in `digits` significant digits; ∞ as such."""
    value = float(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}"


def power(value: float) -> str:
    """A small parameter such as δ, as people write it: 1e-5."""
    return f"{value:g}".replace("e-0", "e-")


def interval(result: Result) -> str:
    """`low–high` in percent, or a dash."""
    if result.interval is None:
        return "—"
    low, high = (float(v) for v in result.interval)
    return f"{percent(low)}–{percent(high)}"


def guarantee(result: Result) -> str:
    """Kind, confidence and adjacency in brackets: the words that must follow a number."""
    if result.confidence is not None:
        sure = f"{100 * result.confidence:g}% confidence"
    else:
        sure = "no guarantee" if result.kind == "estimate" else "deterministic"
    return f"{result.kind}, {sure}, {ADJACENCY[result.adjacency]} adjacency"
