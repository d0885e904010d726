"""Figure 9: digits or noise as prior."""

from __future__ import annotations

import dataclasses

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, notes
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult
from leakcore.experiments.verdict import Check


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """The training rows are digits; target and candidates are digits, or noise at the digits' distances."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    digits = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    noise = data.noise_pool(context, digits, context.pick(tiny=200, quick=2000, paper=9000))
    stated, drawn, attacked, rates = [], [], [], {}
    for name, role, split in (("prior of digits", "attack", digits), ("prior of noise", "attack-2", noise)):
        games = []
        for epsilon in epsilons:
            setting = _games.GameSetting(epsilon=epsilon)
            game = _games.play(context, split, setting, num_candidates=10, runs=runs, task=f"{name}, ε = {epsilon:g}")[
                "sum"
            ]
            games.append(game)
            attacked.append((game, _games.bound(context, setting, 10)))
            row = _games.gap(context, setting, game, "little difference")
            stated.append(dataclasses.replace(row, what=f"{name}: {row.what}"))
            rates[name, epsilon] = float(game.value)
        drawn.append(_games.series(name, role, epsilons, games))
    differ = {e: rates["prior of digits", e] - rates["prior of noise", e] for e in epsilons}
    widest = max(bound - float(game.value) for game, bound in attacked)
    findings = Findings(
        checks=[
            Check(
                says="success with digits and with noise differs by less than 0.05",
                holds=sum(abs(d) < 0.05 for d in differ.values()),
                cases=len(differ),
            ),
            Check(
                says="the attack is within 0.15 of the bound",
                holds=sum(b - float(g.value) < 0.15 for g, b in attacked),
                cases=len(attacked),
                about="size",
            ),
        ],
        conclusion="Success with a prior of digits minus success with a prior of noise is "
        + ", ".join(f"{d:+.3f} (ε = {e:g})" for e, d in differ.items())
        + f". The attack stays at most {widest:.3f} below the bound.",
        stated=stated,
        panels=[_games.panel(context, "prior of 10", epsilons, 10, tuple(drawn))],
        notes=("noise is uniform at the digits' mean squared distance, with uniform labels",),
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=attacked,
        splits=[digits],
        setting=setting,
        runs=runs,
    )
