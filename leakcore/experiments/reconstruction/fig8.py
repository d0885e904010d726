"""Figure 8: gradient-based against prior-aware attack."""

from __future__ import annotations

from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult, Stated
from leakcore.experiments.reconstruction import _data, _games, _oblivious, _pair, _report


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Priors of 2, 8 and 128; the gradient attack runs once and is judged against every prior."""
    epsilons = context.pick(tiny=(10.0,), quick=(10.0, 40.0), paper=(1.0, 10.0, 40.0, 100.0))
    sizes = (2, 8, 128)
    runs = context.pick(tiny=32, quick=192, paper=10_000)
    targets = context.pick(tiny=2, quick=12, paper=1000)
    split = _data.mnist(context, context.pick(tiny=49, quick=999, paper=999))
    found = _pair.attacked(context, split, (10,), 0.1, epsilons, targets)
    stated, panels, told = [], [], []
    for n in sizes:
        games, guesses = [], [f.named(split, n) for f in found]
        for epsilon, guess in zip(epsilons, guesses, strict=True):
            setting = _games.Setting(epsilon=epsilon)
            game = _games.play(context, split, setting, prior_size=n, runs=runs, task=f"prior {n}, ε = {epsilon:g}")[
                "sum"
            ]
            games.append(game)
            stated.append(Stated(what=f"prior {n}, ε = {epsilon:g}: gradient-based", paper="an order of magnitude less",
                                 ours=float(guess.value), interval=(float(guess.interval[0]), float(guess.interval[1])),
                                 comment=f"prior-aware {game.value:.4f}"))  # fmt: skip
        told.append(f"{n}: {guesses[-1].value:.3f} against {games[-1].value:.3f}")
        drawn = (_games.series("prior-aware attack", "attack", epsilons, games),
                 _oblivious.series("gradient-based attack", epsilons, guesses))  # fmt: skip
        panels.append(_games.panel(context, f"prior of {n}", epsilons, n, drawn))
    return _report.report(
        experiment, context,
        conclusion=f"At ε = {epsilons[-1]:g}, gradient-based against prior-aware by prior size: "
        + "; ".join(told) + ".",
        stated=stated, panels=panels, splits=[split], setting=setting, runs=runs, targets=targets,
        optimiser=_oblivious.settings(context),
    )  # fmt: skip
