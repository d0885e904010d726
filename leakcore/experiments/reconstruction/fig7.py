"""Figure 7: does the size of the model matter to the prior-aware attack?"""

from __future__ import annotations

import dataclasses

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, notes
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult
from leakcore.experiments.verdict import Check

_PRINTED = (10, 100, 1000)


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Hidden layers of 10, 100 and 1,000."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    # A run costs in proportion to the width.
    widths = context.pick(
        "hidden widths, with runs",
        tiny={10: 32, 20: 32},
        quick={10: 256, 100: 48},
        paper={10: 10_000, 100: 10_000, 1000: 10_000},
    )
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    stated, panels, attacked, played = [], [], [], {}
    for width, runs in widths.items():
        games = []
        for epsilon in epsilons:
            setting = _games.GameSetting(epsilon=epsilon, hidden=(width,))
            game = _games.play(
                context, split, setting, num_candidates=10, runs=runs, task=f"width {width}, ε = {epsilon:g}"
            )["sum"]
            games.append(game)
            played[width, epsilon] = game
            attacked.append((game, _games.bound(context, setting, 10)))
            row = _games.gap(context, setting, game, "no difference between widths")
            stated.append(dataclasses.replace(row, what=f"width {width}, {row.what}"))
        drawn = (_games.series("prior-aware attack", "attack", epsilons, games),)
        panels.append(_games.panel(context, f"hidden layer of {width}: {runs} runs a point", epsilons, 10, drawn))
    rates = {e: [float(played[w, e].value) for w in widths] for e in epsilons}
    overlaps = [_overlap([_games.interval(played[w, e]) for w in widths]) for e in epsilons]
    fewest = min(widths.values())
    left_out = [w for w in _PRINTED if w not in widths]
    findings = Findings(
        checks=[
            Check(says="the 95% intervals of all widths overlap", holds=sum(overlaps), cases=len(overlaps)),
            Check(
                says="the paper's widths were compared",
                holds=len(_PRINTED) - len(left_out),
                cases=len(_PRINTED),
                about="size",
            ),
        ],
        conclusion="With hidden layers of "
        + " and ".join(map(str, widths))
        + " units the attack succeeds with probability "
        + ", ".join(" and ".join(f"{r:.3f}" for r in rates[e]) + f" (ε = {e:g})" for e in epsilons)
        + f". The 95% intervals {'overlap at every ε' if all(overlaps) else 'do not overlap at every ε'}, but {fewest} "
        f"runs cannot show differences below about {1.4 / fewest**0.5:.2f}."
        + (f" This scale leaves out the layer of {', '.join(f'{w:,}' for w in left_out)}." if left_out else ""),
        stated=stated,
        panels=panels,
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=attacked,
        splits=[split],
        setting=setting,
        runs=dict(widths),
    )


def _overlap(ends: list[tuple[float, float] | None]) -> bool:
    known = [pair for pair in ends if pair is not None]
    return max(low for low, _ in known) <= min(high for _, high in known)
