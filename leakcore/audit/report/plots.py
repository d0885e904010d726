"""Figures of the reports: attack ≤ bound over ε, a test's ROC below its bound, two histograms, layers by measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.pictures import Tips
from leakcore.audit.report.drawing import ATTACK, BOUND, INK, MIDDLE, RDP, drawing_style, svg_of
from leakcore.audit.report.format import ADJACENCY, interval, number, percent, power

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leakcore.audit.hyperparameters.reconstruction_section import BoundCurve, ReconstructionPoint
    from leakcore.leakage import LeakageByLayer


def sandwich_svg(curve: BoundCurve, points: Sequence[ReconstructionPoint]) -> str:
    """Probability of naming the target over ε: attacks, bounds and the optimum between them.

    Points that are not drawable are left out; at least one must be.
    """
    from matplotlib.figure import Figure

    points, inside = [p for p in points if p.drawable], curve.drawable
    over = curve.epsilon[inside]
    with drawing_style():
        figure = Figure(figsize=(4.7, 4.9), layout="constrained")
        axes, tips = figure.subplots(), Tips()
        thin = {"lw": 1.6}
        drawn: list[tuple[np.ndarray | None, str, dict[str, Any]]] = [
            (curve.bound_rdp, "upper bound from RDP", {"color": RDP, "ls": "--", **thin}),
            (
                curve.bound,
                f"{'exact ' * (curve.bound_lower is None)}upper bound: no attacker beats it",
                {"color": BOUND, "lw": 2.4},
            ),
            (curve.bound_lower, "lower end of that bound", {"color": BOUND, "ls": "--", **thin}),
            (curve.poisson_claim, "if batches were Poisson: not proved", {"color": RDP, "ls": ":", **thin}),
            (curve.reference, "best attack if gradients were orthogonal", {"color": MIDDLE, "ls": "-.", **thin}),
        ]
        lines = [(values[inside], name, style) for values, name, style in drawn if values is not None]
        for values, name, style in lines:
            axes.plot(over, values, label=name, **style)
        at = [float(p.epsilon.value) for p in points]
        rate = [float(p.attack.value) for p in points]
        low = [r - float(p.attack.interval[0]) for r, p in zip(rate, points, strict=True) if p.attack.interval]
        high = [float(p.attack.interval[1]) - r for r, p in zip(rate, points, strict=True) if p.attack.interval]
        level = f"{100 * (points[0].attack.confidence or 0):g}%"
        axes.errorbar(
            at,
            rate,
            yerr=[low, high],
            fmt="o",
            color=ATTACK,
            capsize=4,
            ms=6,
            label=f"attack that we ran, {level} interval",
        )
        axes.axhline(curve.chance, color=INK, lw=0.9, ls=":", label="guessing")
        axes.set_xscale("log")
        axes.set_xticks(at, [f"{e:.3g}" for e in at], minor=False)
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.set_ylim(0, 1.02)
        adjacency = ADJACENCY[points[0].epsilon.adjacency]
        axes.set_xlabel(
            f"ε at δ = {power(curve.delta)}, {adjacency} ({'exact' if curve.bound_lower is None else 'upper'})"
        )
        axes.set_ylabel("probability of naming the target")
        _plain(axes)
        for values, name, _ in lines:
            tips.points(
                axes,
                over,
                values,
                [f"ε = {number(e, 3)}: {percent(v)}, {name}" for e, v in zip(over, values, strict=True)],
            )
        tips.points(
            axes,
            at,
            rate,
            [
                f"ε = {number(p.epsilon)}: the attack reached {percent(p.attack)} ({level} interval "
                f"{interval(p.attack)}); no attacker beats {percent(p.bound)}"
                for p in points
            ],
        )
        figure.legend(frameon=False, loc="outside lower left")
        return svg_of(figure, tips)


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
            axes.errorbar(
                at,
                np.maximum(rate, low),
                yerr=[np.maximum(rate, low) - low, high - np.maximum(rate, low)],
                fmt="s",
                color=INK,
                ms=4,
                capsize=4,
                lw=1.2,
                label=intervals_name,
            )
        axes.plot(fpr, fpr, color=INK, lw=0.9, ls=":", label="guessing")
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda rate, _: percent(rate) if rate < 0.1 else f"{100 * rate:g}%")
        axes.set_xlim(least, 1.05)
        axes.set_ylim(least, 1.15)
        axes.set_xlabel("false-positive rate")
        axes.set_ylabel("true-positive rate")
        _plain(axes)
        every = slice(None, None, 1 + int(drawn.sum()) // 60)
        for rates, values, name in (
            *([(fpr, bound, bound_name)] if bound is not None else []),
            (roc[0][drawn][every], roc[1][drawn][every], found_name),
        ):
            said = zip(rates, values, strict=True)
            tips.points(axes, rates, values, [f"{percent(v)} at {percent(f)} false positives: {name}" for f, v in said])
        tips.points(
            axes,
            [f for f, *_ in intervals],
            [max(rate, low, least) for _, rate, low, _ in intervals],
            [
                f"{percent(rate)} at {percent(f)} false positives, interval {percent(low, 'lower')}–"
                f"{percent(high, 'upper')}: {found_name}"
                for f, rate, low, high in intervals
            ],
        )
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
        axes.set_xlabel(statistic)
        axes.set_ylabel(shares_of)
        _plain(axes)
        tips.areas(
            axes,
            edges,
            [
                f"{statistic} {number(a)} to {number(b)}: {percent(w)} with the rows, {percent(wo)} without"
                for a, b, wo, w in zip(edges[:-1], edges[1:], *shares, strict=True)
            ],
        )
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


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
