"""Figure 13: clipping norms of 0.1 and 1."""

from __future__ import annotations

import numpy as np

from leakcore import dpsgd
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, notes
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import APART, Check, lies_below


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Success and the mean norm of the candidates' clipped gradients at both clipping norms."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    stated, drawn, norms, attacked, rates, short, played = [], [], [], [], {}, {}, {}
    printed = {(1.0, 1.0): "0.9", (1.0, 40.0): "0.5"}
    for clip, role in ((0.1, "attack"), (1.0, "attack-2")):
        games, mean = [], []
        for epsilon in epsilons:
            setting = _games.GameSetting(epsilon=epsilon, max_grad_norm=clip)
            game = _games.play(
                context, split, setting, num_candidates=10, runs=runs, task=f"C = {clip:g}, ε = {epsilon:g}"
            )["sum"]
            games.append(game)
            attacked.append((game, _games.bound(context, setting, 10)))
            rates[clip, epsilon], played[clip, epsilon] = float(game.value), game
            mean.append(_mean_norm(context, split, setting))
            short[clip, epsilon] = mean[-1] / clip
            stated.append(_games.gap(context, setting, game, "tight" if clip < 1 else "larger gap"))
            stated.append(
                Stated(what=f"ε = {epsilon:g}, C = {clip:g}: mean norm of clipped gradients",
                       paper=printed.get((clip, epsilon), "0.1" if clip < 1 else "between 0.9 and 0.5"), ours=mean[-1],
                       comment="of candidates, over all steps of 32 runs")
            )  # fmt: skip
        drawn.append(_games.series(f"C = {clip:g}", role, epsilons, games))
        norms.append(Series(name=f"C = {clip:g}", role=role, x=np.array(epsilons), y=np.array(mean)))
    panels = [
        Panel(title="gradient norm after clipping", x_label=_games.EPSILON, y_label="mean norm", series=tuple(norms),
              log_x=True, y_range=(0.0, 1.1)),
        _games.panel(context, "success of the prior-aware attack", epsilons, 10, tuple(drawn)),
    ]  # fmt: skip
    bound = {e: attacked[i][1] for i, e in enumerate(epsilons)}
    top = epsilons[-1]
    wide = epsilons[1:] or epsilons
    falls = short[1.0, top] < short[1.0, epsilons[0]] or len(epsilons) == 1
    findings = Findings(
        checks=[
            Check(
                says="the attack succeeds more often with C = 0.1 than with C = 1, intervals apart",
                holds=sum(lies_below(played[1.0, e], played[0.1, e]) for e in wide),
                cases=len(wide),
                chance=APART,
            ),
            Check(says="with C = 1 the mean norm falls from the smallest ε to the largest", holds=int(falls), cases=1),
            Check(
                says="with C = 0.1 the attack is within 0.1 of the bound",
                holds=sum(bound[e] - rates[0.1, e] < 0.1 for e in epsilons),
                cases=len(epsilons),
                about="size",
            ),
        ],
        conclusion="The attack is below the bound by "
        + ", ".join(
            f"{bound[e] - rates[0.1, e]:.3f} with C = 0.1 and {bound[e] - rates[1.0, e]:.3f} with C = 1 (ε = {e:g})"
            for e in epsilons
        )
        + f". At ε = {top:g} the mean norm of clipped gradients is {short[0.1, top]:.2f} C with C = 0.1 (paper: 1) "
        f"and {short[1.0, top]:.2f} C with C = 1 (paper: 0.5). The bound allows for gradients of norm C; shorter ones "
        "are weaker signals.",
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
    )


def _mean_norm(context: Context, split: data.Split, setting: _games.GameSetting) -> float:
    def measure() -> dict[str, float]:
        trained = _games.ensemble(context, split, setting).run(
            split.known_features,
            split.known_labels,
            runs=32,
            per_run=dpsgd.PerRun(dpsgd.Rows(split.pool_features[:1], split.pool_labels[:1])),
            observer=dpsgd.Observer(dpsgd.Rows(split.pool_features[:100], split.pool_labels[:100])),
        )
        assert trained.clipped_norms is not None
        return {"norm": float(trained.clipped_norms.mean(dtype=np.float64))}

    name = f"norm-{setting.max_grad_norm:g}-{setting.epsilon:g}-{split.content[:20]}"
    return float(context.pieces.get_or_run(name, measure)["norm"])
