"""Figure 4: Algorithms 2 and 3 and the likelihood attack at q = 0.02."""

from __future__ import annotations

import numpy as np

from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.reconstruction import _data, _games, _mechanism, _report


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """T = 1,000 steps, 500 rows; all three attacks on the same runs."""
    epsilons = context.pick(tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 4.0, 10.0, 20.0, 40.0))
    runs = context.pick(tiny=32, quick=192, paper=10_000)
    steps = context.pick(tiny=50, quick=1000, paper=1000)
    split = _data.mnist(context, context.pick(tiny=49, quick=499, paper=499))
    names = {"sum": "plain (Algorithm 2)", "top": "improved (Algorithm 3)", "likelihood": "likelihood (Appendix G)"}
    stated, games, bounds = [], [], []
    for epsilon in epsilons:
        setting = _games.Setting(epsilon=epsilon, sample_rate=0.02, steps=steps, step=0.3)
        game = _games.play(
            context, split, setting, prior_size=10, runs=runs, methods=tuple(names), task=f"ε = {epsilon:g}"
        )
        games.append(game)
        bounds.append(_mechanism.upper(_mechanism.noise_for(context, epsilon, 0.02, steps), 0.02, steps, 10))
        for method, name in names.items():
            one = game[method]
            stated.append(
                Stated(what=f"ε = {epsilon:g}, {name}", paper="improved above plain, near the bound",
                       ours=float(one.value), interval=_games.interval(one), comment=f"bound {bounds[-1]:.4f}")
            )  # fmt: skip
    x = np.array(epsilons)
    drawn = [
        _games.series(name, role, epsilons, [g[method] for g in games])
        for (method, name), role in zip(names.items(), ("attack", "attack-2", "attack-3"), strict=True)
    ]
    panel = Panel(
        title=f"q = 0.02, T = {steps:,}, prior of 10", x_label=_games.EPSILON, y_label=_games.SUCCESS, log_x=True,
        series=(Series(name="upper bound, exact", role="bound", x=x, y=np.array(bounds)), *drawn,
                _mechanism.chance(x, 10)),
    )  # fmt: skip
    last = games[-1]
    return _report.report(
        experiment, context,
        conclusion=f"At ε = {epsilons[-1]:g}: bound {bounds[-1]:.3f}, plain {last['sum'].value:.3f}, improved "
        f"{last['top'].value:.3f}, likelihood {last['likelihood'].value:.3f}.",
        stated=stated, panels=[panel], splits=[split], setting=setting, runs=runs,
    )  # fmt: skip
