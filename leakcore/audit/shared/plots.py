"""Figures of the reports, drawn by matplotlib as SVG inside a page, in the page's colours; points show their values."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.pictures import Tips, figure_style
from leakcore.audit.shared.format import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leakcore.leakage import LeakageByLayer

INK, BOUND, RDP, MIDDLE, ATTACK = "#1f2430", "#b3261e", "#c2615b", "#5f6b7a", "#0b57a4"
_VARIABLES = {INK: "--ink", BOUND: "--upper", RDP: "--rdp", MIDDLE: "--middle", ATTACK: "--estimate"}
"""CSS variables of page.css by the colour that they have in the light scheme."""
_STYLE = {
    "svg.hashsalt": "leakcore",
    "svg.fonttype": "path",
    "font.size": 10.5,
    "grid.color": MIDDLE,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **{f"{part}.facecolor": "none" for part in ("figure", "axes", "savefig", "legend")},
}


@contextmanager
def drawing_style() -> Iterator[None]:
    """matplotlib's settings for a drawing inside a page."""
    with figure_style(_STYLE):
        yield


def svg_of(figure: Any, tips: Tips | None = None, *, opaque: bool = False) -> str:
    """The figure as an SVG element. opaque: keeps its own colours and a white ground, as a heat map must."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    if tips is not None:
        svg = tips.written(svg)
    if opaque:
        return svg.replace("<svg", '<svg class="opaque"', 1)
    return re.sub("|".join(_VARIABLES), lambda colour: f"var({_VARIABLES[colour[0]]}, {colour[0]})", svg)


def roc_svg(
    fpr: np.ndarray,
    bound: np.ndarray | None,
    roc: tuple[np.ndarray, np.ndarray],
    *,
    bound_name: str = "bound: no attacker beats it",
    found_name: str = "membership test on this run",
    intervals: Sequence[tuple[float, float, float, float]] = (),
    intervals_name: str = "its intervals",
) -> str:
    """A membership test's ROC below the curve that no attacker beats (None: no such curve), both axes logarithmic.

    intervals: (false-positive rate, rate, low, high) drawn as bars.
    """
    from matplotlib.figure import Figure

    with drawing_style():
        figure = Figure(figsize=(4.7, 5.0), layout="constrained")
        axes, tips = figure.subplots(), Tips()
        if bound is not None:
            axes.plot(fpr, bound, color=BOUND, lw=2.4, label=bound_name)
        least = float(fpr[0])
        drawn = (roc[0] >= least) & (roc[1] >= least)
        few = int(drawn.sum()) <= 400
        style = {"marker": "o", "ls": "", "ms": 3.5} if few else {"lw": 1.6}
        axes.plot(roc[0][drawn], roc[1][drawn], color=ATTACK, label=found_name, **style)
        if intervals:
            at, rate, low, high = (np.array(v) for v in zip(*intervals, strict=True))
            low = np.maximum(low, least)
            shown = np.maximum(rate, low)
            bars: dict[str, Any] = {"fmt": "s", "color": INK, "ms": 4, "capsize": 4, "lw": 1.2}
            axes.errorbar(at, shown, yerr=[shown - low, high - shown], label=intervals_name, **bars)
        axes.plot(fpr, fpr, color=INK, lw=0.9, ls=":", label="guessing")
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda rate, _: percent(rate) if rate < 0.1 else f"{100 * rate:g}%")
        axes.set(xlim=(least, 1.05), ylim=(least, 1.15))
        axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
        plain_axes(axes)
        every = slice(None, None, 1 + int(drawn.sum()) // 60)
        for rates, values, name in (
            *([(fpr, bound, bound_name)] if bound is not None else []),
            (roc[0][drawn][every], roc[1][drawn][every], found_name),
        ):
            said = zip(rates, values, strict=True)
            tips.points(axes, rates, values, [f"{percent(v)} at {percent(f)} false positives: {name}" for f, v in said])
        bars_said = [
            f"{percent(rate)} at {percent(f)} false positives, interval {percent(low, 'lower')}–"
            f"{percent(high, 'upper')}: {found_name}"
            for f, rate, low, high in intervals
        ]
        heights = [max(rate, low, least) for _, rate, low, _ in intervals]
        tips.points(axes, [f for f, *_ in intervals], heights, bars_said)
        figure.legend(frameon=False, loc="outside lower left")
        return svg_of(figure, tips)


def histograms_svg(inside: np.ndarray, outside: np.ndarray, statistic: str, shares_of: str) -> str:
    """The attacker's statistic with and without the attacker's rows; statistic, shares_of: the axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with drawing_style():
        figure = Figure(figsize=(4.7, 3.7), layout="constrained")
        axes, tips = figure.subplots(), Tips()
        both = np.concatenate([inside, outside])
        edges = np.linspace(both.min(), both.max() + 1e-12 + 1e-6 * abs(both.max()), 41)
        shares = []
        for values, name, colour in ((outside, "without the rows", MIDDLE), (inside, "with the rows", BOUND)):
            weights = np.full(len(values), 1 / len(values))
            share, _, _ = axes.hist(
                values, edges.tolist(), weights=weights, histtype="stepfilled", alpha=0.45, color=colour, label=name
            )
            shares.append(np.asarray(share))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set(xlabel=statistic, ylabel=shares_of)
        plain_axes(axes)
        said = [
            f"{statistic} {number(a)} to {number(b)}: {percent(w)} with the rows, {percent(wo)} without"
            for a, b, wo, w in zip(edges[:-1], edges[1:], *shares, strict=True)
        ]
        tips.areas(axes, edges, said)
        figure.legend(frameon=False, loc="outside lower left")
        return svg_of(figure, tips)


def heat_map_svg(measures: LeakageByLayer) -> str:
    """Layers by measures."""
    with drawing_style():
        figure, tips = measures.figure(), Tips()
        axes = figure.axes[0]
        layers = measures.layers
        names = [text.get_text().replace("\n", " ") for text in axes.get_xticklabels()]
        values = iter([text.get_text() for text in axes.texts])
        for j, name in enumerate(names):
            for i, layer in enumerate(layers):
                tips.box(axes, (j - 0.5, i - 0.5), (1.0, 1.0), f"layer {layer}, {name}: {next(values)}")
        return svg_of(figure, tips, opaque=True)


def plain_axes(axes: Axes) -> None:
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
