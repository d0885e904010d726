"""Figure 7: does the size of the model matter to the prior-aware attack?"""

from __future__ import annotations

from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult
from leakcore.experiments.reconstruction import _data, _games, _report


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Hidden layers of 10, 100 and 1,000."""
    epsilons = context.pick(tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    widths = context.pick(tiny=(10, 20), quick=(10, 100), paper=(10, 100, 1000))
    runs = context.pick(tiny=32, quick=256, paper=10_000)
    split = _data.mnist(context, context.pick(tiny=49, quick=999, paper=999))
    stated, panels, rates = [], [], {}
    for width in widths:
        games = []
        for epsilon in epsilons:
            setting = _games.Setting(epsilon=epsilon, hidden=(width,))
            game = _games.play(
                context, split, setting, prior_size=10, runs=runs, task=f"width {width}, ε = {epsilon:g}"
            )
            games.append(game["sum"])
            rates[width, epsilon] = float(game["sum"].value)
            stated.append(_games.gap(context, setting, game["sum"], "no difference between widths"))
        drawn = (_games.series("prior-aware attack", "attack", epsilons, games),)
        panels.append(_games.panel(context, f"hidden layer of {width}", epsilons, 10, drawn))
    worst = max(max(rates[w, e] for w in widths) - min(rates[w, e] for w in widths) for e in epsilons)
    return _report.report(
        experiment, context,
        conclusion=f"Between hidden layers of {widths[0]} and {widths[-1]} success differs by at most "
            f"{worst:.3f} at one ε.",
        stated=stated, panels=panels, splits=[split], setting=setting, runs=runs, widths=widths,
    )  # fmt: skip
