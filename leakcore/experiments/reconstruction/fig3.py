"""Figure 3: the number of candidates."""

from __future__ import annotations

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, mechanism, notes
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series
from leakcore.experiments.verdict import APART, Check, lies_below


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """One panel per ε, success over 2 to 2,048 candidates."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    sizes = context.pick(
        "numbers of candidates", tiny=(2, 8), quick=(2, 8, 32, 128, 512), paper=tuple(2**k for k in range(1, 12))
    )
    runs = context.pick("runs of each game", tiny=32, quick=128, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    stated, panels, attacked, fell = [], [], [], []
    gaps: dict[tuple[float, int], float] = {}
    for epsilon in epsilons:
        setting = _games.GameSetting(epsilon=epsilon)
        noise = mechanism.noise_for(context, epsilon, 1.0, setting.steps)
        games = []
        for n in sizes:
            game = _games.play(
                context, split, setting, num_candidates=n, runs=runs, task=f"prior {n}, ε = {epsilon:g}"
            )["sum"]
            games.append(game)
            attacked.append((game, mechanism.upper(noise, 1.0, setting.steps, n)))
            stated.append(_games.gap(context, setting, game, "falls with the prior's size"))
            gaps[epsilon, n] = attacked[-1][1] - float(game.value)
        fell.append(lies_below(games[-1], games[0]))
        x = np.unique(np.geomspace(min(sizes), max(sizes), 40).round())
        at_noise = [mechanism.BoundsAtNoise.at(noise, setting.steps, int(n)) for n in x]
        panels.append(
            Panel(
                title=f"ε = {epsilon:g}", x_label="candidates n", y_label=_games.SUCCESS, log_x=True,
                series=(
                    Series(name="upper bound, exact", role="bound", x=x, y=np.array([b.bound for b in at_noise])),
                    Series(name="optimum, orthogonal candidates", role="orthogonal", x=x,
                           y=np.array([b.orthogonal for b in at_noise])),
                    Series(name="guessing", role="chance", x=x, y=1 / x),
                    _games.series("prior-aware attack", "attack", tuple(map(float, sizes)), games),
                ),
            )
        )  # fmt: skip
    small = max(gap for (e, _), gap in gaps.items() if e == min(epsilons))
    wide = max(gaps, key=lambda k: gaps[k])
    findings = Findings(
        checks=[
            Check(
                says="success is lower for the largest prior than for the smallest, intervals apart",
                holds=sum(fell),
                cases=len(fell),
                chance=APART,
            ),
            Check(
                says=f"the gap is wider by 0.02 at ε = {max(epsilons):g} than at {min(epsilons):g}",
                holds=sum(gaps[max(epsilons), n] > gaps[min(epsilons), n] + 0.02 for n in sizes),
                cases=len(sizes),
            ),
            Check(
                says=f"at ε = {min(epsilons):g} it is below 0.1",
                holds=sum(gaps[min(epsilons), n] < 0.1 for n in sizes),
                cases=len(sizes),
                about="size",
            ),
        ],
        conclusion=f"Bound and attack {'fall' if all(fell) else 'do not always fall'} as the prior grows. The gap "
        f"between them is at most {small:.3f} at ε = {min(epsilons):g}. It is widest, {gaps[wide]:.3f}, at "
        f"ε = {wide[0]:g} and {wide[1]} candidates. With the most candidates ({sizes[-1]}) it is "
        + ", ".join(f"{gaps[e, sizes[-1]]:+.3f} (ε = {e:g})" for e in epsilons)
        + ". The dash-dotted curve is the best that any attack can do if the candidates' gradients are orthogonal.",
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
        runs=runs,
        candidate_counts=sizes,
    )
