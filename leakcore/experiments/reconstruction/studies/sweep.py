"""What the learning rate does to accuracy and to the improved attack at (4, 1e-5)-DP, for Figure 5's two ends."""

from __future__ import annotations

import numpy as np

from leakcore.attacks import ReconstructionGame
from leakcore.bounds import orthogonal_success
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import (
    data,
    learning_rate,
    mechanism,
    notes,
)
from leakcore.experiments.reconstruction.setting import (
    games as _games,
)
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated, ours
from leakcore.experiments.verdict import Check

_PRINTED = {0.01: (0.20, 0.15), 0.99: (0.35, 0.32)}
"""Bound and attack by sampling rate, as stated in Section 4.3, each "about"."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """784–10–10, |D| = 1,000, T = 100, C = 1, prior of 10; a panel per sampling rate."""
    rates = context.pick("learning rates", tiny=(0.1, 10.0), quick=(0.01, 0.1, 1.0, 3.0), paper=learning_rate.PAPER)
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    stated, panels, summaries, attacked, agree = [], [], [], [], []
    setting = _games.GameSetting(epsilon=4.0, max_grad_norm=1.0)
    for q, (printed_bound, printed) in _PRINTED.items():
        setting = _games.GameSetting(epsilon=4.0, max_grad_norm=1.0, sample_rate=q)
        bound = _games.bound(context, setting, 10)
        tried = learning_rate.sweep(context, split, setting, rates)
        accuracies = {t.learning_rate: t.accuracy for t in tried if t.accuracy >= 0}
        chosen = learning_rate.best(tried)
        games, overflowed = [], []
        for rate in list(accuracies):
            try:
                game = _games.play(
                    context, split, learning_rate.at(setting, rate), num_candidates=10, runs=runs,
                    methods=("top", "likelihood"), task=f"q = {q:g}, learning rate {rate:g}",
                )  # fmt: skip
            except FloatingPointError:
                overflowed.append(rate)
                del accuracies[rate]
                continue
            games.append(game["top"])
            attacked += [(game["top"], bound), (game["likelihood"], bound)]
            stated.append(
                Stated(what=f"q = {q:g}, learning rate {rate:g}: improved attack", paper=f"about {printed:g}",
                       **ours(game["top"]),
                       comment=f"accuracy {accuracies[rate]:.3f}; {100 * game['top'].clipped_share:.0f}% of "
                               f"gradients clipped, cosine to the nearest candidate "
                               f"{game['top'].nearest_cosine:.2f}; likelihood attack "
                               f"{float(game['likelihood'].value):.3f}")
            )  # fmt: skip
        lost = sorted({*overflowed, *(t.learning_rate for t in tried if t.accuracy < 0)})
        if lost:
            said = ", ".join(f"{rate:g}" for rate in lost)
            stated.append(Stated(what=f"q = {q:g}, learning rates {said}", paper="not stated", comment="runs overflow"))
        noise = mechanism.noise_for(context, 4.0, q, setting.steps)
        stated.append(
            Stated(what=f"q = {q:g}: upper bound", paper=f"about {printed_bound:g}", ours=bound, kind="upper")
        )
        x = np.array(list(accuracies))
        series = [
            Series(name="upper bound, exact", role="bound", x=x, y=np.full(len(x), bound)),
            mechanism.chance(x, 10),
            _games.series("improved (Algorithm 3)", "attack-2", tuple(accuracies), games),
            Series(name="accuracy", role="baseline", x=x, y=np.array(list(accuracies.values()))),
        ]
        optimum = ""
        if q > 0.9:
            limit = float(orthogonal_success(noise, setting.steps, 10).value)
            optimum = f" Ten orthogonal, clipped candidates in full batches would give {limit:.3f}."
            series.append(
                Series(name="optimum, orthogonal candidates", role="orthogonal", x=x, y=np.full(len(x), limit))
            )
        panels.append(
            Panel(title=f"q = {q:g}, σ = {noise:.3g}", x_label="learning rate", y_label=_games.SUCCESS, log_x=True,
                  series=tuple(series))
        )  # fmt: skip
        holds = [r for r, g in zip(accuracies, games, strict=True) if _covers(_games.interval(g), printed)]
        agree.append(bool(holds))
        summaries.append(
            f"At q = {q:g} the bound is {bound:.3f}, and the attack reaches "
            + ", ".join(f"{float(g.value):.3f} (η = {r:g})" for r, g in zip(accuracies, games, strict=True))
            + f". The model is most accurate at η = {chosen.learning_rate:g} ({chosen.accuracy:.2f}).{optimum} The "
            f"paper's {printed:g} is "
            + (f"inside the interval at η = {', '.join(f'{r:g}' for r in holds)}" if holds else "inside no interval")
        )
    findings = Findings(
        checks=[
            Check(
                says="the interval at some learning rate holds the printed success", holds=sum(agree), cases=len(agree)
            ),
        ],
        conclusion=". ".join(summaries) + ". " + _by_clipping([g for g, _ in attacked[::2]]),
        stated=stated,
        panels=panels,
    )
    return notes.report(
        experiment,
        context,
        findings,
        splits=[split],
        setting=setting,
        runs=runs,
        attacked=attacked,
        learning_rate_note="every learning rate is shown; none was chosen by the attack's success",
    )


def _by_clipping(games: list[ReconstructionGame]) -> str:
    """Success where nearly all gradients are clipped, and where fewest are, at the larger sampling rate."""
    dense = [g for g in games if g.settings["sample_rate"] > 0.5]
    full = [float(g.value) for g in dense if g.clipped_share > 0.99]
    least = min(dense, key=lambda g: g.clipped_share)
    clipped = f"from {min(full):.3f} to {max(full):.3f}" if full else "not measured"
    return (
        f"At q = 0.99 the attack reaches {clipped} at learning rates that leave more than 99% of the gradients "
        f"clipped, and {float(least.value):.3f} at the one that leaves {100 * least.clipped_share:.0f}% clipped."
    )


def _covers(interval: tuple[float, float] | None, value: float) -> bool:
    """Whether a value printed to two digits rounds into the interval."""
    return interval is not None and interval[0] - 0.005 <= value <= interval[1] + 0.005
