"""Figure 2: prior-aware attack, prior-oblivious attack and bounds on CIFAR-10, last layer trained."""

from __future__ import annotations

from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult
from leakcore.experiments.reconstruction import _data, _games, _oblivious, _report


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """C = 1, the last layer on frozen features."""
    epsilons = context.pick(tiny=(10.0,), quick=(1.0, 10.0, 100.0), paper=(1.0, 10.0, 100.0))
    runs = context.pick(tiny=32, quick=512, paper=10_000)
    tries = context.pick(tiny=2, quick=16, paper=1000)
    split = _data.cifar10(context, context.pick(tiny=49, quick=499, paper=499))
    stated, games, guesses = [], [], []
    for epsilon in epsilons:
        setting = _games.Setting(epsilon=epsilon, hidden=(), max_grad_norm=1.0)
        game = _games.play(context, split, setting, prior_size=10, runs=runs, task=f"ε = {epsilon:g}")["sum"]
        games.append(game)
        stated.append(_games.gap(context, setting, game, "very close to the bound"))
        found = _oblivious.attack(context, split, setting, targets=tries)
        guesses.append(found.named(split, 10))
    drawn = (
        _games.series("prior-aware attack", "attack", epsilons, games),
        _oblivious.series("gradient-based attack, prior-oblivious", epsilons, guesses),
    )
    return _report.report(
        experiment, context,
        conclusion="Attack at ε = " + ", ".join(f"{e:g}: {g.value:.3f}" for e, g in zip(epsilons, games, strict=True))
        + f". The prior-oblivious attack ({tries} targets) names the target with probability "
        + ", ".join(f"{float(g.value):.3f}" for g in guesses) + ".",
        stated=stated, panels=[_games.panel(context, "CIFAR-10, two classes", epsilons, 10, drawn)],
        splits=[split], setting=setting, runs=runs, oblivious=_oblivious.settings(context), targets=tries,
        notes=("the paper's test accuracies (61.88%, 89.09%, 91.27%) are of ten classes and do not compare",),
    )  # fmt: skip
