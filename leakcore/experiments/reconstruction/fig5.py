"""Figure 5: σ against q at (4, 1e-5)-DP, coloured by the bound and by the attack."""

from __future__ import annotations

import numpy as np

from leakcore.attacks import ReconstructionGame
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, games, mechanism, notes, swept
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import APART, Check, lies_below

_PRINTED = {0.01: ("about 0.20", "about 0.15"), 0.99: ("about 0.35", "about 0.32")}
_ATTACK = {0.01: 0.15, 0.99: 0.32}
_ABOUT = 0.01
"""What "about" leaves open."""
_NAMES = {"top": "improved attack", "likelihood": "likelihood attack"}


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """T = 100, prior of 10, C = 1; the learning rate is swept for each q."""
    rates = context.pick(
        "sampling rates q",
        tiny=(0.2, 0.99),
        quick=(0.01, 0.1, 0.5, 0.99),
        paper=(0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.99),
    )
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    sweep_runs = context.pick(tiny=(32, 32), quick=(64, 128), paper=swept.AT_PAPER_SCALE)
    cells, stated = [], []
    for q in rates:
        cell = swept.play(
            context, split, games.GameSetting(epsilon=4.0, sample_rate=q, max_grad_norm=1.0), runs=runs,
            methods=tuple(_NAMES), by="top", sweep_runs=sweep_runs,
            name=f"q = {q:g}",
        )  # fmt: skip
        cells.append(cell)
        printed = _PRINTED.get(q, ("not stated", "not stated"))
        stated.append(Stated(what=f"q = {q:g}: upper bound", paper=printed[0], ours=cell.bound, kind="upper"))
        stated += swept.stated(cell, _NAMES, {"top": printed[1]})
    bounds, attacks = [c.bound for c in cells], [c.after["top"] for c in cells]
    x = np.array(rates)
    y = np.array([mechanism.noise_for(context, 4.0, q, cells[0].setting.steps) for q in rates])
    panels = [
        Panel(
            title=title,
            x_label="sampling rate q",
            y_label="noise multiplier σ",
            y_range=None,
            colour_label="success",
            series=(Series(name=title, role="bound", x=x, y=y, colour=np.array(colour)),),
        )
        for title, colour in (
            ("upper bound", bounds),
            ("improved prior-aware attack", [float(game.value) for game in attacks]),
        )
    ]
    compared = [q for q in rates if q in _ATTACK]
    off = [
        f"q = {q:g} the paper says {_PRINTED[q][1]}, and we measure {float(game.value):.3f} with "
        f"{100 * game.clipped_share:.0f}% of the gradients clipped"
        for q, game in zip(rates, attacks, strict=True)
        if q in _ATTACK and not _holds(game, _ATTACK[q])
    ]
    findings = Findings(
        checks=[
            Check(
                says="the bound is larger at the largest q than at the smallest",
                holds=int(bounds[0] < bounds[-1]),
                cases=1,
            ),
            Check(
                says="the attack is, too, intervals apart",
                holds=int(lies_below(attacks[0], attacks[-1])),
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
        conclusion=f"At ε = 4 the bound goes from {bounds[0]:.3f} (q = {rates[0]:g}) to {bounds[-1]:.3f} (q = "
        f"{rates[-1]:g}), and the attack from {attacks[0].value:.3f} to {attacks[-1].value:.3f}."
        + (f" At {'; at '.join(off)}." if off else "")
        + f" {swept.sentence(cells, 'top')} "
        + swept.also(cells, "likelihood", "likelihood attack"),
        stated=stated,
        panels=panels,
        tables=[swept.table(cells, _NAMES)],
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=[pair for cell in cells for pair in cell.attacked],
        splits=[split],
        setting=cells[-1].setting,
        runs=runs,
        learning_rate_note=swept.NOTE,
        learning_rates=swept.settings(cells),
    )


def _holds(game: ReconstructionGame, stated: float) -> bool:
    low, high = games.interval(game) or (float(game.value),) * 2
    return low - _ABOUT <= stated <= high + _ABOUT
