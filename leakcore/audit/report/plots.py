"""Figures of the reports: attack ≤ bound over ε with the optimum between them; a test's ROC below its bound."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.figure_style import figure_style
from leakcore.audit.report.format import power

if TYPE_CHECKING:
    from leakcore.audit.hyperparameters.reconstruction_section import BoundCurve, ReconstructionPoint
    from leakcore.leakage import LeakageByLayer

INK, BOUND, RDP, MIDDLE, ATTACK = "#1f2430", "#b3261e", "#d98a86", "#5f6b7a", "#0b57a4"


def sandwich_svg(curve: BoundCurve, points: Sequence[ReconstructionPoint]) -> str:
    """The figure as an SVG element with text drawn as paths (it looks the same everywhere and loads nothing)."""
    from matplotlib.figure import Figure

    with figure_style({"svg.hashsalt": "leakcore", "svg.fonttype": "path", "font.size": 10.5}):
        figure = Figure(figsize=(5.4, 5.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(curve.epsilon, curve.bound_rdp, color=RDP, ls="--", lw=1.6, label="upper bound from RDP")
        axes.plot(curve.epsilon, curve.bound, color=BOUND, lw=2.4, label="exact upper bound: no attacker beats it")
        if curve.reference is not None:
            axes.plot(
                curve.epsilon,
                curve.reference,
                color=MIDDLE,
                ls="-.",
                lw=1.6,
                label="best attack if gradients were orthogonal",
            )
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
            label=f"prior-aware attack, {level} interval",
        )
        axes.axhline(curve.chance, color=INK, lw=0.9, ls=":", label="guessing")
        axes.set_xscale("log")
        axes.set_xticks(at, [f"{e:.3g}" for e in at], minor=False)
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel(f"ε at δ = {power(curve.delta)}, add/remove (exact accountant)")
        axes.set_ylabel("probability of naming the target")
        axes.grid(alpha=0.25, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, loc="outside lower left")
        return _svg(figure)


def roc_svg(
    fpr: np.ndarray,
    bound: np.ndarray | None,
    found: tuple[np.ndarray, np.ndarray],
    *,
    bound_name: str = "bound: no attacker beats it",
    found_name: str = "membership test on this run",
    intervals: Sequence[tuple[float, float, float, float]] = (),
) -> str:
    """A membership test's ROC below the curve that no attacker beats (None: no such curve), both axes logarithmic, as
    an SVG element. intervals: (false-positive rate, rate, low, high) drawn as bars.
    """
    from matplotlib.figure import Figure

    with figure_style({"svg.hashsalt": "leakcore", "svg.fonttype": "path", "font.size": 10.5}):
        figure = Figure(figsize=(5.4, 5.4), layout="constrained")
        axes = figure.subplots()
        if bound is not None:
            axes.plot(fpr, bound, color=BOUND, lw=2.4, label=bound_name)
        least = float(fpr[0])
        shown = (found[0] >= least) & (found[1] >= least)
        few = int(shown.sum()) <= 400
        style = {"marker": "o", "ls": "", "ms": 3.5} if few else {"lw": 1.6}
        axes.plot(found[0][shown], found[1][shown], color=ATTACK, label=found_name, **style)
        if intervals:
            at, rate, low, high = (np.array(v) for v in zip(*intervals, strict=True))
            low = np.maximum(low, least)
            axes.errorbar(
                at, np.maximum(rate, low), yerr=[np.maximum(rate, low) - low, high - np.maximum(rate, low)],
                fmt="s", color=INK, ms=4, capsize=4, lw=1.2, label="its interval",
            )  # fmt: skip
        axes.plot(fpr, fpr, color=INK, lw=0.9, ls=":", label="guessing")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(least, 1.05)
        axes.set_ylim(least, 1.15)
        axes.set_xlabel("false-positive rate")
        axes.set_ylabel("true-positive rate")
        axes.grid(alpha=0.25, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, loc="outside lower left")
        return _svg(figure)


def heat_map_svg(measures: LeakageByLayer) -> str:
    """Layers by measures, as an SVG element."""

    with figure_style({"svg.hashsalt": "leakcore", "svg.fonttype": "path"}):
        return _svg(measures.figure())


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]
