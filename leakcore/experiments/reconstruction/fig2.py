"""Figure 2: prior-aware attack, prior-oblivious attack and bounds on CIFAR-10, last layer trained."""

from __future__ import annotations

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, mechanism, notes, oblivious, swept
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Stated, ours
from leakcore.experiments.verdict import APART, Check, lies_below


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """C = 1, the last layer on frozen features; the learning rate is swept for each ε."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 100.0), paper=(1.0, 10.0, 100.0))
    runs = context.pick("runs of each game", tiny=32, quick=4096, paper=10_000)
    tries = context.pick("targets of the gradient attack", tiny=2, quick=64, paper=1000)
    split = data.cifar10(context, context.pick("known rows", tiny=49, quick=499, paper=499))
    sweep_runs = context.pick(tiny=(32, 32), quick=(128, 512), paper=swept.AT_PAPER_SCALE)
    cells, stated, guesses, better = [], [], [], []
    for epsilon in epsilons:
        cell = swept.play(
            context, split, _games.GameSetting(epsilon=epsilon, hidden=(), max_grad_norm=1.0), runs=runs,
            methods=("sum",), by="sum", sweep_runs=sweep_runs,
            name=f"ε = {epsilon:g}",
        )  # fmt: skip
        cells.append(cell)
        at_noise = mechanism.BoundsAtNoise.at(
            mechanism.noise_for(context, epsilon, 1.0, cell.setting.steps), cell.setting.steps, 10
        )
        better.append(at_noise.bound < at_noise.rdp)
        stated += swept.stated(cell, {"sum": ""}, {"sum": "very close to the bound"})
        stated.append(
            Stated(what=f"ε = {epsilon:g}: RDP bound", paper="trivial" if epsilon >= 10 else "above ours",
                   ours=at_noise.rdp, kind="upper", comment=f"ours {at_noise.bound:.4f}")
        )  # fmt: skip
        guess = oblivious.attack(context, split, cell.setting, targets=tries)
        guesses.append(guess.named(split, 10))
        stated.append(
            Stated(what=f"ε = {epsilon:g}: prior-oblivious attack", paper="substantially below prior-aware",
                   **ours(guesses[-1]))
        )  # fmt: skip
    games = [cell.after["sum"] for cell in cells]
    drawn = (
        _games.series(
            "prior-aware attack, fixed learning rate", "attack-3", epsilons, [c.before["sum"] for c in cells]
        ),
        _games.series("prior-aware attack", "attack", epsilons, games),
        oblivious.series("gradient-based attack, prior-oblivious", epsilons, guesses),
    )
    limit = [cell.bound for cell in cells]
    findings = Findings(
        checks=[
            Check(says="our bound is below the RDP bound", holds=sum(better), cases=len(better)),
            Check(
                says="the prior-oblivious attack is below the prior-aware one, intervals apart",
                holds=sum(map(lies_below, guesses, games)),
                cases=len(games),
                chance=APART,
            ),
            Check(
                says="the prior-aware attack is within 0.05 of the bound",
                holds=sum(b - float(g.value) < 0.05 for g, b in zip(games, limit, strict=True)),
                cases=len(games),
                about="size",
            ),
        ],
        conclusion="The prior-aware attack succeeds with probability "
        + ", ".join(
            f"{g.value:.3f} where the bound is {b:.3f} (ε = {e:g})"
            for e, g, b in zip(epsilons, games, limit, strict=True)
        )
        + f". {swept.sentence(cells, 'sum')} Our bound is below "
        f"the RDP bound at {sum(better)} of {len(better)} values of ε. The prior-oblivious attack ({tries} targets) "
        "names the target with probability " + ", ".join(f"{float(g.value):.3f}" for g in guesses) + ".",
        stated=stated,
        panels=[_games.panel(context, f"CIFAR-10, {split.classes} classes", epsilons, 10, drawn)],
        tables=[swept.table(cells, {"sum": ""})],
        notes=()
        if split.classes == 10
        else ("the paper's test accuracies (61.88%, 89.09%, 91.27%) are of ten classes and do not compare",),
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=[pair for cell in cells for pair in cell.attacked],
        splits=[split],
        setting=cells[-1].setting,
        runs=runs,
        learning_rate_note=swept.NOTE,
        learning_rates=swept.settings(cells),
        oblivious=oblivious.settings(context),
        targets=tries,
    )
