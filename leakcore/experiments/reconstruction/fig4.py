"""Figure 4: Algorithms 2 and 3 and the likelihood attack at q = 0.02."""

from __future__ import annotations

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, mechanism, notes, swept
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel
from leakcore.experiments.verdict import APART, Check, lies_below


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """T = 1,000 steps, 500 rows; all three attacks on the same runs; the learning rate is swept for each ε."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 4.0, 10.0, 20.0, 40.0))
    runs = context.pick("runs of each game", tiny=32, quick=256, paper=10_000)
    steps = context.pick("steps", tiny=50, quick=1000, paper=1000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=499, paper=499))
    names = {"sum": "plain (Algorithm 2)", "top": "improved (Algorithm 3)", "likelihood": "likelihood (Appendix G)"}
    printed = {"sum": "far below improved", "top": "fairly tight to the bound"}
    sweep_runs = context.pick(tiny=(32, 32), quick=(32, 32), paper=swept.AT_PAPER_SCALE)
    cells, stated = [], []
    for epsilon in epsilons:
        cell = swept.play(
            context, split, _games.GameSetting(epsilon=epsilon, sample_rate=0.02, steps=steps, step=0.3), runs=runs,
            methods=tuple(names), by="top", sweep_runs=sweep_runs,
            name=f"ε = {epsilon:g}",
        )  # fmt: skip
        cells.append(cell)
        stated += swept.stated(cell, names, printed)
    drawn = [
        _games.series(name, role, epsilons, [c.after[method] for c in cells])
        for (method, name), role in zip(names.items(), ("attack", "attack-2", "attack-3"), strict=True)
    ]
    curve = mechanism.sampled_curve(context, epsilons, 0.02, steps, 10)
    panel = Panel(
        title=f"q = 0.02, T = {steps:,}, prior of 10", x_label=_games.EPSILON, y_label=_games.SUCCESS, log_x=True,
        series=(curve, mechanism.chance(curve.x, 10), *drawn),
    )  # fmt: skip
    last = cells[-1]
    better = [float(c.after["top"].value) - float(c.after["sum"].value) for c in cells]
    short = [c.bound - float(c.after["top"].value) for c in cells]
    findings = Findings(
        checks=[
            Check(
                says="the improved attack is above the plain one, intervals apart",
                holds=sum(lies_below(c.after["sum"], c.after["top"]) for c in cells),
                cases=len(cells),
                chance=APART,
            ),
            Check(
                says="it is above by more than 0.1", holds=sum(d > 0.1 for d in better), cases=len(cells), about="size"
            ),
            Check(
                says="it is within 0.15 of the bound",
                holds=sum(gap < 0.15 for gap in short),
                cases=len(cells),
                about="size",
            ),
        ],
        conclusion=f"At ε = {epsilons[-1]:g} the bound is {last.bound:.3f}. The plain attack reaches "
        f"{last.after['sum'].value:.3f}, the improved one {last.after['top'].value:.3f} and the likelihood attack "
        f"{last.after['likelihood'].value:.3f}. The improvement over the plain attack is "
        + ", ".join(f"{d:+.3f} (ε = {e:g})" for e, d in zip(epsilons, better, strict=True))
        + f". The improved attack stays up to {max(short):.3f} below the bound. {swept.sentence(cells, 'top')} "
        + swept.also(cells, "likelihood", "likelihood attack"),
        stated=stated,
        panels=[panel],
        tables=[swept.table(cells, names)],
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=[pair for cell in cells for pair in cell.attacked],
        splits=[split],
        setting=last.setting,
        runs=runs,
        learning_rate_note=swept.NOTE,
        learning_rates=swept.settings(cells),
    )
