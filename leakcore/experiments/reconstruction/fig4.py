"""Figure 4: Algorithms 2 and 3 and the likelihood attack at q = 0.02."""

from __future__ import annotations

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, mechanism, notes
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated, ours
from leakcore.experiments.verdict import APART, Check, lies_below


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """T = 1,000 steps, 500 rows; all three attacks on the same runs."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 4.0, 10.0, 20.0, 40.0))
    runs = context.pick("runs of each game", tiny=32, quick=256, paper=10_000)
    steps = context.pick("steps", tiny=50, quick=1000, paper=1000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=499, paper=499))
    names = {"sum": "plain (Algorithm 2)", "top": "improved (Algorithm 3)", "likelihood": "likelihood (Appendix G)"}
    stated, games, attacked = [], [], []
    for epsilon in epsilons:
        setting = _games.GameSetting(epsilon=epsilon, sample_rate=0.02, steps=steps, step=0.3)
        game = _games.play(
            context, split, setting, num_candidates=10, runs=runs, methods=tuple(names), task=f"ε = {epsilon:g}"
        )
        games.append(game)
        bound = _games.bound(context, setting, 10)
        for method, name in names.items():
            one = game[method]
            attacked.append((one, bound))
            stated.append(
                Stated(what=f"ε = {epsilon:g}, {name}",
                       paper={"sum": "far below improved", "top": "fairly tight to the bound"}.get(method, "not shown"),
                       **ours(one),
                       comment=f"bound {bound:.4f}; {100 * one.clipped_share:.1f}% of gradients clipped, cosine to the "
                               f"nearest candidate {one.nearest_cosine:.3f}")
            )  # fmt: skip
    drawn = [
        _games.series(name, role, epsilons, [g[method] for g in games])
        for (method, name), role in zip(names.items(), ("attack", "attack-2", "attack-3"), strict=True)
    ]
    curve = mechanism.sampled_curve(context, epsilons, 0.02, steps, 10)
    panel = Panel(
        title=f"q = 0.02, T = {steps:,}, prior of 10", x_label=_games.EPSILON, y_label=_games.SUCCESS, log_x=True,
        series=(curve, mechanism.chance(curve.x, 10), *drawn),
    )  # fmt: skip
    last, top = games[-1], attacked[-1][1]
    better = [float(g["top"].value) - float(g["sum"].value) for g in games]
    near = max(b - float(g.value) for g, b in attacked[1::3])
    findings = Findings(
        checks=[
            Check(
                says="the improved attack is above the plain one, intervals apart",
                holds=sum(lies_below(g["sum"], g["top"]) for g in games),
                cases=len(games),
                chance=APART,
            ),
            Check(
                says="it is above by more than 0.1", holds=sum(d > 0.1 for d in better), cases=len(games), about="size"
            ),
            Check(
                says="it is within 0.15 of the bound",
                holds=sum(b - float(g.value) < 0.15 for g, b in attacked[1::3]),
                cases=len(games),
                about="size",
            ),
        ],
        conclusion=f"At ε = {epsilons[-1]:g} the bound is {top:.3f}. The plain attack reaches "
        f"{last['sum'].value:.3f}, the improved one {last['top'].value:.3f} and the likelihood attack "
        f"{last['likelihood'].value:.3f}. The improvement over the plain attack is "
        + ", ".join(f"{d:+.3f} (ε = {e:g})" for e, d in zip(epsilons, better, strict=True))
        + f". The improved attack stays up to {near:.3f} below the bound.",
        stated=stated,
        panels=[panel],
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=attacked,
        splits=[split],
        setting=setting,
        runs=runs,
    )
