"""Figure 5: σ against q at (4, 1e-5)-DP, coloured by the bound and by the attack."""

from __future__ import annotations

import numpy as np

from leakcore.attacks import ReconstructionGame
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, games, notes
from leakcore.experiments.reconstruction.setting import rates as _rates
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated, ours
from leakcore.experiments.verdict import APART, Check, lies_below

_PRINTED = {0.01: ("about 0.20", "about 0.15"), 0.99: ("about 0.35", "about 0.32")}
_ATTACK = {0.01: 0.15, 0.99: 0.32}
_ABOUT = 0.01
"""What "about" leaves open."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """T = 100, prior of 10, C = 1."""
    rates = context.pick(
        "sampling rates q",
        tiny=(0.2, 0.99),
        quick=(0.01, 0.1, 0.5, 0.99),
        paper=(0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.99),
    )
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    curves = _rates.sweep(context, split, 4.0, 10, rates, runs)
    stated = []
    for q, bound, top, best in zip(rates, curves.bound, curves.top, curves.likelihood, strict=True):
        printed = _PRINTED.get(q, ("not stated", "not stated"))
        stated.append(Stated(what=f"q = {q:g}: upper bound", paper=printed[0], ours=bound, kind="upper"))
        stated.append(
            Stated(what=f"q = {q:g}: improved attack", paper=printed[1], **ours(top),
                   comment=f"{100 * top.clipped_share:.1f}% of candidates' gradients clipped at C = 1")
        )  # fmt: skip
        stated.append(
            Stated(what=f"q = {q:g}: likelihood attack", paper="not shown", **ours(best))
        )  # fmt: skip
    x, y = np.array(rates), np.array(curves.noise)
    inside = (
        ("upper bound", np.array(curves.bound)),
        ("improved prior-aware attack", np.array([float(g.value) for g in curves.top])),
    )
    panels = [
        Panel(
            title=title,
            x_label="sampling rate q",
            y_label="noise multiplier σ",
            y_range=None,
            colour_label="success",
            series=(Series(name=title, role="bound", x=x, y=y, colour=colour),),
        )
        for title, colour in inside
    ]
    rising = curves.bound[0] < curves.bound[-1]
    compared = [q for q in rates if q in _ATTACK]
    off = [
        f"q = {q:g} the paper says {_PRINTED[q][1]}, and we measure {float(top.value):.3f} with "
        f"{100 * top.clipped_share:.0f}% of the gradients clipped"
        for q, top in zip(rates, curves.top, strict=True)
        if q in _ATTACK and not _holds(top, _ATTACK[q])
    ]
    findings = Findings(
        checks=[
            Check(says="the bound is larger at the largest q than at the smallest", holds=int(rising), cases=1),
            Check(
                says="the attack is, too, intervals apart",
                holds=int(lies_below(curves.top[0], curves.top[-1])),
                cases=1,
                chance=APART,
            ),
            Check(
                says="the attack's interval holds the printed success",
                holds=len(compared) - len(off),
                cases=len(compared),
                about="size",
            ),
        ],
        conclusion=f"At ε = 4 the bound goes from {curves.bound[0]:.3f} (q = {rates[0]:g}) to "
        f"{curves.bound[-1]:.3f} (q = {rates[-1]:g}), and the attack from {curves.top[0].value:.3f} to "
        f"{curves.top[-1].value:.3f}." + (f" At {'; at '.join(off)}." if off else ""),
        stated=stated,
        panels=panels,
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=curves.attacked,
        splits=[split],
        setting=curves.setting,
        runs=runs,
    )


def _holds(game: ReconstructionGame, stated: float) -> bool:
    low, high = games.interval(game) or (float(game.value),) * 2
    return low - _ABOUT <= stated <= high + _ABOUT
