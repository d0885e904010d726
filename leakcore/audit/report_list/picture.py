"""The picture of a list of reports: for each of them what is claimed, what is proved, and what the accountant says."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakcore._base.pictures import Tips
from leakcore._base.text import printable
from leakcore.audit.report.drawing import ATTACK, BOUND, INK, drawing_style, svg_of

if TYPE_CHECKING:
    from leakcore.audit.report_list.listed import ListedNumber, ListedReport

_LEAST, _MOST = 1e-3, 1e3
"""ε that is drawn; beyond, at the edge."""
_WIDEST = 34
"""Letters of a name."""


def epsilons_svg(reports: Sequence[ListedReport]) -> str:
    """One line for each report, newest first; on it its three numbers on a logarithmic axis. Only numbers of the
    adjacency that the line is labelled with stand on it.
    """
    from matplotlib.figure import Figure

    with drawing_style():
        figure = Figure(figsize=(6.6, 1.1 + 0.36 * len(reports)), layout="constrained")
        axes, tips = figure.subplots(), Tips()
        axes.set_xscale("log")
        points: list[tuple[list[float], list[float], list[str]]] = []
        marks = (
            ("claimed", "claimed", "|", INK, 13.0),
            ("proved", "proved: at least", ">", ATTACK, 7.0),
            ("accountant", "accountant: at most", "<", BOUND, 7.0),
        )
        for field, label, mark, colour, size in marks:
            drawn = [(at, n) for at, r in enumerate(reports) if (n := _on_the_line(r, field)) is not None]
            at = [float(a) for a, _ in drawn]
            values = [min(max(n.value, _LEAST), _MOST) for _, n in drawn]
            axes.plot(values, at, ls="", marker=mark, ms=size, mew=2, color=colour, label=label)
            said = [f"{reports[a].name}: {label.partition(':')[0]}, {n.text} ({n.guarantee})" for a, n in drawn]
            points.append((values, at, said))
        ends = [value for values, _, _ in points for value in values]
        axes.set(xlim=(min(ends) / 1.5, max(ends) * 1.5), ylim=(len(reports) - 0.5, -0.5))
        for values, at, said in points:
            tips.points(axes, values, at, said)
        names = [f"{_cut(r.name)}  ({_cut(_adjacency(r))})".replace("$", r"\$") for r in reports]
        axes.set_yticks(range(len(reports)), names)
        axes.grid(axis="y", alpha=0.3, lw=0.8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("ε, logarithmic")
        figure.legend(frameon=False, loc="outside lower left", ncols=3)
        return svg_of(figure, tips)


def _cut(name: str) -> str:
    """A name that leaves room for the picture, however long it is, and whatever script it is written in."""
    text = printable(name)
    widths = itertools.accumulate(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
    fits = sum(width <= _WIDEST for width in widths)
    return text if fits == len(text) else f"{text[:fits]}…"


def _adjacency(report: ListedReport) -> str:
    """Of the line: the adjacency of what is proved, else of the accountant's ε."""
    first = report.proved or report.accountant
    return "" if first is None else first.adjacency.removesuffix(" adjacency")


def _on_the_line(report: ListedReport, field: str) -> ListedNumber | None:
    number: ListedNumber | None = getattr(report, field)
    if number is None or number.adjacency.removesuffix(" adjacency") != _adjacency(report):
        return None
    return number
