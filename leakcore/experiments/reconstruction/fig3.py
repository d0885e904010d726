"""Figure 3: the size of the prior."""

from __future__ import annotations

import numpy as np

from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult, Panel, Series
from leakcore.experiments.reconstruction import _data, _games, _mechanism, _report


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """One panel per ε, success over prior sizes 2 to 2,048."""
    epsilons = context.pick(tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    sizes = context.pick(tiny=(2, 8), quick=(2, 8, 32, 128), paper=tuple(2**k for k in range(1, 12)))
    runs = context.pick(tiny=32, quick=256, paper=10_000)
    split = _data.mnist(context, context.pick(tiny=49, quick=999, paper=999))
    stated, panels, gaps = [], [], {}
    for epsilon in epsilons:
        setting = _games.Setting(epsilon=epsilon)
        noise = _mechanism.noise_for(context, epsilon, 1.0, setting.steps)
        games = []
        for n in sizes:
            game = _games.play(context, split, setting, prior_size=n, runs=runs, task=f"prior {n}, ε = {epsilon:g}")[
                "sum"
            ]
            games.append(game)
            stated.append(_games.gap(context, setting, game, "falls with the prior's size"))
            gaps[epsilon, n] = _mechanism.upper(noise, 1.0, setting.steps, n) - float(game.value)
        beside = [_mechanism.Beside.at(noise, setting.steps, n) for n in sizes]
        x = np.array(sizes, dtype=float)
        panels.append(
            Panel(
                title=f"ε = {epsilon:g}", x_label="prior size n", y_label=_games.SUCCESS, log_x=True,
                series=(
                    Series(name="upper bound, exact", role="bound", x=x, y=np.array([b.bound for b in beside])),
                    Series(name="optimum, orthogonal candidates", role="orthogonal", x=x,
                           y=np.array([b.orthogonal for b in beside])),
                    _games.series("prior-aware attack", "attack", tuple(x), games),
                ),
            )
        )  # fmt: skip
    return _report.report(
        experiment, context,
        conclusion="Bound and attack fall as the prior grows. Bound minus attack at the largest prior "
        f"({sizes[-1]}): " + ", ".join(f"{gaps[e, sizes[-1]]:+.3f} (ε = {e:g})" for e in epsilons) + ".",
        stated=stated, panels=panels, splits=[split], setting=setting, runs=runs, prior_sizes=sizes,
    )  # fmt: skip
