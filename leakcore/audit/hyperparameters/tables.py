"""The tables and the figure of the report on a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leakcore._base.pictures import Tips
from leakcore._base.results import Result
from leakcore.audit.hyperparameters.labels import LabelStudy
from leakcore.audit.hyperparameters.reconstruction import BoundCurve, ReconstructionPoint
from leakcore.audit.shared.elements import Table, adjacency_words, table_of
from leakcore.audit.shared.format import ADJACENCY, claim_of, ends_proved, interval, number, percent, power
from leakcore.audit.shared.plots import ATTACK, BOUND, INK, MIDDLE, RDP, drawing_style, plain_axes, svg_of

_Columns = dict[str, Callable[[ReconstructionPoint], str | tuple[str, str]]]


def accounting_table(points: list[ReconstructionPoint], delta: float) -> Table:
    """ε of each noise level by the accountants that there are, and under replacement."""
    first = points[0]
    adjacency = ADJACENCY[first.epsilon.adjacency]
    sampled, replaced = first.bound_rdp is not None, any(p.epsilon_replace is not None for p in points)
    bracket, claim = first.epsilon.method == "bracket", claim_of(first.epsilon) is not None

    def or_dash(result: Result | None, absent: str) -> str:
        return absent if result is None else number(result, 5)

    columns: _Columns = {
        "ε": lambda p: number(p.epsilon),
        "noise\nmultiplier σ": lambda p: number(p.noise_multiplier, 6),
        f"ε, {'at most' if bracket else 'exact'}\n{adjacency} [upper]": lambda p: number(p.epsilon, 5),
    }
    said = [f"δ = {power(delta)}; all deterministic."]
    if sampled:
        columns |= {
            "ε, PLD\nadd/remove [upper]": lambda p: or_dash(p.epsilon_pld, "not installed"),
            "ε, RDP\nadd/remove [upper]": lambda p: or_dash(p.epsilon_rdp, "not installed"),
        }
        said.append("The exact column inverts our own privacy profile, PLD and RDP are dp-accounting's.")
    if bracket:
        low = f"ε, at least\n{adjacency} [lower]"
        columns[low] = lambda p: number(float((p.epsilon.interval or (0.0,))[0]), 5, "lower")
        said.append(f"The two ends of the bracket: {ends_proved(first.epsilon)}.")
    if claim:
        columns["ε, if batches\nwere Poisson"] = lambda p: number(claim_of(p.epsilon) or 0.0, 5)
        said.append("What Poisson accounting would print is not proved: batches are not drawn so.")
    if replaced:
        head = f"ε, {'exact' if sampled else 'at most'}\nreplacement [upper]"
        columns[head] = lambda p: or_dash(p.epsilon_replace, "—")
        said.append(
            "The last column is the same mechanism under the other adjacency: it is larger because a replaced row "
            "moves the sum twice as far, and is not to be compared with the others."
        )
    return table_of("The accountant", points, columns, " ".join(said), highlight=lambda p: p.claimed)


def reconstruction_table(points: list[ReconstructionPoint], num_candidates: int) -> Table:
    """Bounds, reference and attack for each noise level."""
    first = points[0]
    bound = "upper" if first.bound.method == "bracket" else "exact"
    columns: _Columns = {
        "ε": lambda p: number(p.epsilon),
        "guessing": lambda p: percent(1 / num_candidates),
        "prior-aware\nattack [estimate]": lambda p: (percent(p.attack), interval(p.attack)),
        "named\nthe target": lambda p: f"{p.attack.hits} / {p.attack.trials}",
        "optimum if\northogonal [estimate]": lambda p: "—" if p.reference is None else percent(p.reference),
        f"{bound}\nbound [upper]": lambda p: percent(p.bound),
    }
    if first.bound_rdp is not None:
        columns["RDP\nbound [upper]"] = lambda p: "—" if p.bound_rdp is None else percent(p.bound_rdp)
    if claim_of(first.bound) is not None:
        columns["if batches\nwere Poisson"] = lambda p: percent(claim_of(p.bound) or 0.0)
    caption = (
        f"Probability of naming the target among {num_candidates} equally likely candidates. "
        f"{adjacency_words(first.bound.adjacency).capitalize()} throughout. Bounds are deterministic; below each "
        f"attack its own {100 * (first.attack.confidence or 0):g}% Clopper–Pearson interval, for that row alone."
    )
    return table_of("Reconstruction", points, columns, caption, highlight=lambda p: p.claimed)


def labels_table(study: LabelStudy) -> Table:
    """Labels recovered from one aggregated last-layer gradient, without and with noise."""
    return table_of(
        "Labels",
        study.outcomes,
        {
            "companion run": lambda o: (
                "no noise, no clipping" if o.noise_multiplier == 0 else f"ε = {number(o.epsilon)}"
            ),
            "noise\nmultiplier σ": lambda o: number(o.noise_multiplier, 4),
            "determined\nlabels": lambda o: f"{o.determined} of {o.labels}",
            "undetermined": lambda o: str(o.labels - o.determined),
            "right, of the\ndetermined [estimate]": lambda o: (
                percent(o.recovered),
                interval(o.recovered) if o.recovered.interval else "",
            ),
            "guessing the\nmajority": lambda o: percent(o.majority),
        },
        study.caption,
        highlight=lambda o: o.claimed,
    )


def label_epsilon_table(study: LabelStudy) -> Table:
    """Label-ε lower bounds compared with the replacement ε of the same single step."""
    return table_of(
        "Label privacy of one step",
        [(o, o.replacement) for o in study.outcomes if o.replacement is not None],
        {
            "companion run": lambda pair: f"ε = {number(pair[0].epsilon)}",
            "noise\nmultiplier σ": lambda pair: number(pair[0].noise_multiplier, 4),
            "label ε,\npaper's test [lower]": lambda pair: number(pair[0].lower["paper"], 4),
            "label ε,\nbest threshold [lower]": lambda pair: number(pair[0].lower["optimal"], 4),
            "label ε,\nlikelihood ratio [lower]": lambda pair: number(pair[0].lower["likelihood-ratio"], 4),
            "replacement ε\nof one step [upper]": lambda pair: number(pair[1], 4),
        },
        study.epsilon_caption,
        highlight=lambda pair: pair[0].claimed,
    )


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
        bars: dict[str, Any] = {"fmt": "o", "color": ATTACK, "capsize": 4, "ms": 6}
        axes.errorbar(at, rate, yerr=[low, high], label=f"attack that we ran, {level} interval", **bars)
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
        plain_axes(axes)
        for values, name, _ in lines:
            said = [f"ε = {number(e, 3)}: {percent(v)}, {name}" for e, v in zip(over, values, strict=True)]
            tips.points(axes, over, values, said)
        said = [
            f"ε = {number(p.epsilon)}: the attack reached {percent(p.attack)} ({level} interval {interval(p.attack)}); "
            f"no attacker beats {percent(p.bound)}"
            for p in points
        ]
        tips.points(axes, at, rate, said)
        figure.legend(frameon=False, loc="outside lower left")
        return svg_of(figure, tips)
