"""Figure 10: the attack without subtraction of known gradients."""

from __future__ import annotations

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, notes
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Stated, ours
from leakcore.experiments.verdict import Check


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """|D₋| of 4, 128 and 999, with and without subtraction."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    known = context.pick("rows that are not subtracted", tiny=(4, 32), quick=(4, 128, 999), paper=(4, 128, 999))
    runs = context.pick("runs of each game", tiny=32, quick=256, paper=10_000)
    whole = data.mnist(context, 999)
    stated, panels, attacked, informed, blind = [], [], [], {}, {}
    above: list[str] = []
    for rows in known:
        split, drawn = whole.cut(rows), []
        for subtract, name, role in (
            (True, "known gradients subtracted", "attack"),
            (False, "not subtracted", "attack-2"),
        ):
            games = []
            for epsilon in epsilons:
                setting = _games.GameSetting(epsilon=epsilon)
                game = _games.play(
                    context, split, setting, num_candidates=10, runs=runs, subtract_known=subtract,
                    task=f"|D₋| = {rows}, ε = {epsilon:g}, {name}",
                )["sum"]  # fmt: skip
                games.append(game)
                attacked.append((game, _games.bound(context, setting, 10)))
                if subtract:
                    informed[rows, epsilon] = float(game.value)
                if not subtract:
                    blind[rows, epsilon] = float(game.value)
                    low, _ = _games.interval(game) or (0.0, 1.0)
                    if rows >= 128 and low > 0.1:
                        above.append(f"|D₋| = {rows} at ε = {epsilon:g}")
                    stated.append(
                        Stated(what=f"|D₋| = {rows}, ε = {epsilon:g}, not subtracted",
                               paper={4: "minor effect", 128: "chance, 0.1"}.get(rows, "chance, 0.1"),
                               **ours(game),
                               comment=f"subtracted {informed[rows, epsilon]:.4f}, bound {attacked[-1][1]:.4f}")
                    )  # fmt: skip
            drawn.append(_games.series(name, role, epsilons, games))
        panels.append(_games.panel(context, f"|D₋| = {rows}", epsilons, 10, tuple(drawn)))
    last = epsilons[-1]
    few, many = min(known), max(r for r in known if r <= 128)
    lost = {r: informed[r, last] - blind[r, last] for r in known}
    fails = not above and blind[many, last] - 0.1 < 0.1 * (informed[many, last] - 0.1)
    minor = lost[few] < 0.25 * (informed[few, last] - 0.1)
    findings = Findings(
        checks=[
            Check(
                says=f"with |D₋| = {many} it keeps less than a tenth of what subtraction gains",
                holds=int(fails),
                cases=1,
            ),
            Check(says=f"with |D₋| = {few} it loses less than a quarter", holds=int(minor), cases=1),
        ],
        conclusion=f"At ε = {last:g} the attack that does not subtract known gradients succeeds with probability "
        + ", ".join(f"{blind[r, last]:.3f} (|D₋| = {r}; with subtraction {informed[r, last]:.3f})" for r in known)
        + ". A guess succeeds with probability 0.1."
        + (f" The attack is above guessing, interval and all, with {', '.join(above)}." if above else ""),
        stated=stated,
        panels=panels,
        notes=("with few rows the step is shortened in proportion, since noise moves the parameters by σ·step/rows",),
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=attacked,
        splits=[whole],
        setting=setting,
        runs=runs,
        known_rows=known,
    )
