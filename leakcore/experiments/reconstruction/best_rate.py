"""Figures 2, 4 and 5: attacks at the learning rate with which they succeed most often, chosen on runs of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore.attacks import ReconstructionGame
from leakcore.experiments.driver.context import Context, listed
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated, TextTable, ours
from leakcore.experiments.driver.verdict import APART, Check, lies_below
from leakcore.experiments.reconstruction import data, games, learning_rate, pictures
from leakcore.experiments.reconstruction.data import Split

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The paper's range (Appendix A) in half decades."""
_CANDIDATES = 10
_FIRST_RUN = 1_000_000
"""Of the sweep. The reported runs begin at 0 and are fewer, so no run chooses a rate and is counted as well."""
FINALISTS = 3
AT_PAPER_SCALE = (512, 2048)
"""Runs of every rate, and of each of the best three."""
NOTE = (
    "the learning rate is swept from 0.001 to 100 in half decades at every setting, as the paper sweeps; the rate with "
    "the attack's largest success is taken (the larger of two equals). Success is measured on runs that nothing else "
    "uses: all rates first, then the best three. The reported success is of other runs, so its interval has no bias of "
    "selection. T is the paper's (Table 1), which it does not sweep"
)

_SEE_TABLE = "The table has attack ÷ bound before and after the sweep of the learning rate, and what the rest is."


@dataclasses.dataclass(frozen=True)
class Tried:
    """What the sweep saw of one learning rate; hits is −1 where a run overflowed."""

    learning_rate: float
    hits: int
    runs: int

    @property
    def success(self) -> float:
        """Below every rate where a run overflowed."""
        return self.hits / self.runs


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One setting: the games at the fixed learning rate and at the chosen one, and their limits."""

    name: str
    rates: tuple[float, float]
    setting: games.GameSetting
    before: dict[str, ReconstructionGame]
    after: dict[str, ReconstructionGame]
    accuracies: tuple[float, float]
    tried: tuple[Tried, ...]
    bound: float
    optimum: float

    def ratios(self, method: str) -> tuple[float, float]:
        """Attack ÷ bound at the fixed rate and at the chosen one."""
        return float(self.before[method].value) / self.bound, float(self.after[method].value) / self.bound

    def parts(self, method: str) -> tuple[float, float]:
        """What is left at the chosen rate: bound − optimum, and optimum − attack."""
        return self.bound - self.optimum, self.optimum - float(self.after[method].value)

    @property
    def attacked(self) -> list[tuple[ReconstructionGame, float]]:
        """Every reported game with its bound."""
        return [(game, self.bound) for each in (self.before, self.after) for game in each.values()]


def play(
    context: Context,
    split: Split,
    setting: games.GameSetting,
    *,
    runs: int,
    methods: tuple[str, ...],
    by: str,
    sweep_runs: tuple[int, int],
    name: str,
) -> Cell:
    """The reported runs at the setting's own learning rate and at the one that the sweep chooses.

    by: the method whose success chooses. sweep_runs: of every rate, and then of the best three.
    """

    def reported(one: games.GameSetting) -> dict[str, ReconstructionGame]:
        task = f"{name}, η = {games.learning_rate(split, one):g}"
        return games.play(context, split, one, num_candidates=_CANDIDATES, runs=runs, methods=methods, task=task)

    tried = _sweep(context, split, setting, by, sweep_runs, name)
    fixed = games.learning_rate(split, setting)
    rate = best(tried).learning_rate
    # A rate that is as good as equal is not played twice.
    chosen = setting if abs(rate / fixed - 1) < 1e-9 else games.with_learning_rate(split, setting, rate)
    before = reported(setting)
    after = before if chosen is setting else reported(chosen)
    noise = games.noise_for(context, setting.epsilon, setting.sample_rate, setting.steps)
    accuracy = [
        learning_rate.by_accuracy(context, split, one, (one.step / one.max_grad_norm,))[0].accuracy
        for one in (setting, chosen)
    ]
    return Cell(
        name=name,
        rates=(fixed, rate),
        setting=chosen,
        before=before,
        after=after,
        accuracies=(accuracy[0], accuracy[1]),
        tried=tuple(tried),
        bound=games.bound(context, setting, _CANDIDATES),
        optimum=games.orthogonal(context, noise, setting.sample_rate, setting.steps, _CANDIDATES),
    )


def best(tried: Sequence[Tried]) -> Tried:
    """The rate with the largest success among those tried most often; the larger of two equals."""
    most = max(t.runs for t in tried)
    return max((t for t in tried if t.runs == most), key=lambda t: (t.success, t.learning_rate))


def _sweep(
    context: Context, split: Split, setting: games.GameSetting, by: str, sweep_runs: tuple[int, int], name: str
) -> list[Tried]:
    """Every rate on a few runs, then the best of them on more."""

    def attempt(rates: Sequence[float], first: int, runs: int) -> list[Tried]:
        played = games.try_each(
            context,
            split,
            [games.with_learning_rate(split, setting, rate) for rate in rates],
            num_candidates=_CANDIDATES,
            runs=range(first, first + runs),
            methods=(by,),
            task=f"learning rates, {name}",
        )
        return [
            Tried(rate, -1 if game is None else game[by].hits, runs) for rate, game in zip(rates, played, strict=True)
        ]

    few, more = sweep_runs
    tried = attempt(context.pick(tiny=(0.1, 10.0), quick=RATES, paper=RATES), _FIRST_RUN, few)
    leading = sorted(tried, key=lambda t: (t.success, t.learning_rate))[-FINALISTS:]
    again = attempt([t.learning_rate for t in leading], _FIRST_RUN + few, more)
    for one, two in zip(leading, again, strict=True):
        hits = -1 if min(one.hits, two.hits) < 0 else one.hits + two.hits
        tried[tried.index(one)] = Tried(one.learning_rate, hits, one.runs + two.runs)
    return tried


def _table(cells: Sequence[Cell], names: dict[str, str]) -> TextTable:
    """Attack ÷ bound before and after, and what the rest is, for each cell and each attack of `names`."""
    rows = []
    for cell in cells:
        for method, attack in names.items():
            before, after = cell.before[method], cell.after[method]
            low, high = games.interval(after) or (float(after.value),) * 2
            rest = cell.parts(method)
            rows.append(
                (
                    f"{cell.name}, {attack}" if attack else cell.name,
                    f"{cell.bound:.3f}",
                    _arrow(cell.rates, "g"),
                    f"{float(before.value):.3f} → {float(after.value):.3f} [{low:.3f}, {high:.3f}]",
                    _arrow(cell.ratios(method), ".2f"),
                    f"{rest[0]:+.3f}",
                    f"{rest[1]:+.3f}",
                    _arrow((before.clipped_share, after.clipped_share), ".0%"),
                    _arrow((before.nearest_cosine, after.nearest_cosine), ".2f"),
                    _arrow(cell.accuracies, ".2f"),
                )
            )
    return TextTable(
        "Attack ÷ bound at the fixed learning rate η → at the one that the sweep chose, with 95% intervals. "
        "The rest of the gap at the chosen rate has two parts. The optimum is that of the best attack on orthogonal, "
        "clipped candidates",
        (
            "setting",
            "bound",
            "η",
            "attack",
            "attack ÷ bound",
            "bound − optimum",
            "optimum − attack",
            "gradients clipped",
            "cosine to the nearest candidate",
            "accuracy",
        ),
        tuple(rows),
    )


def _arrow(values: tuple[float, float], how: str) -> str:
    return f"{values[0]:{how}} → {values[1]:{how}}"


def _stated(cell: Cell, names: dict[str, str], printed: dict[str, str]) -> list[Stated]:
    """Both games of every attack, next to what the paper says."""
    out = []
    for method, attack in names.items():
        for when, game, rate in (("fixed", cell.before, cell.rates[0]), ("swept", cell.after, cell.rates[1])):
            one = game[method]
            what = f"{cell.name}, {attack or 'attack'}, {when} learning rate {rate:g}"
            comment = f"{float(one.value) / cell.bound:.2f} of the bound, {cell.bound:.4f}; {games.clipped(one)}"
            out.append(Stated(what, printed.get(method, "not shown"), **ours(one), comment=comment))
    return out


def _report(
    result: ExperimentResult, cells: Sequence[Cell], split: Split, runs: int, **settings: Any
) -> ExperimentResult:
    """The result with the notes and settings that the three figures share."""
    return games.report(
        result,
        attacked=[pair for cell in cells for pair in cell.attacked],
        splits=[split],
        setting=cells[-1].setting,
        runs=runs,
        learning_rate_note=NOTE,
        learning_rates={cell.name: [dataclasses.asdict(t) for t in cell.tried] for cell in cells},
        **settings,
    )


def fig2(context: Context) -> ExperimentResult:
    """CIFAR-10, C = 1, the last layer on frozen features; the learning rate is swept for each ε."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 100.0), paper=(1.0, 10.0, 100.0))
    runs = context.pick("runs of each game", tiny=32, quick=4096, paper=10_000)
    targets = context.pick("targets of the gradient attack", tiny=2, quick=64, paper=1000)
    split = data.cifar10(context, context.pick("known rows", tiny=49, quick=499, paper=499))
    sweep_runs = context.pick(tiny=(32, 32), quick=(128, 512), paper=AT_PAPER_SCALE)
    cells, stated, guesses, better = [], [], [], []
    for epsilon in epsilons:
        setting = games.GameSetting(epsilon=epsilon, hidden=(), max_grad_norm=1.0)
        cell = play(
            context,
            split,
            setting,
            runs=runs,
            methods=("sum",),
            by="sum",
            sweep_runs=sweep_runs,
            name=f"ε = {epsilon:g}",
        )
        guess = pictures.attack(context, split, cell.setting, targets=targets).named(split, 10)
        steps = cell.setting.steps
        limits = games.BoundsAtNoise.at(games.noise_for(context, epsilon, 1.0, steps), steps, 10)
        cells.append(cell)
        guesses.append(guess)
        better.append(limits.bound < limits.rdp)
        rdp = "trivial" if epsilon >= 10 else "above ours"
        stated += [
            *_stated(cell, {"sum": ""}, {"sum": "very close to the bound"}),
            Stated(f"ε = {epsilon:g}: RDP bound", rdp, limits.rdp, kind="upper", comment=f"ours {limits.bound:.4f}"),
            Stated(f"ε = {epsilon:g}: prior-oblivious attack", "substantially below prior-aware", **ours(guess)),
        ]
    fixed, swept = [c.before["sum"] for c in cells], [c.after["sum"] for c in cells]
    drawn = (
        games.series("prior-aware attack, fixed learning rate", "attack-3", epsilons, fixed),
        games.series("prior-aware attack", "attack", epsilons, swept),
        games.series("gradient-based attack, prior-oblivious", "attack-2", epsilons, guesses),
    )
    short = [c.bound - float(c.after["sum"].value) for c in cells]
    result = context.result(
        checks=[
            Check.of("our bound is below the RDP bound", better),
            Check.of(
                "the prior-oblivious attack is below the prior-aware one, intervals apart",
                map(lies_below, guesses, swept),
                chance=APART,
            ),
            Check.size("the prior-aware attack is within 0.05 of the bound", [gap < 0.05 for gap in short]),
        ],
        conclusion=f"The prior-aware attack stays {listed(short, '+.3f')} below the bound at ε = "
        f"{listed(epsilons)}, where the prior-oblivious attack ({targets} targets) names the target with "
        f"probability {listed((float(g.value) for g in guesses), '.3f')}. {_SEE_TABLE}",
        stated=stated,
        panels=[games.panel(context, f"CIFAR-10, {split.classes} classes", epsilons, 10, drawn)],
        tables=[_table(cells, {"sum": ""})],
        notes=()
        if split.classes == 10
        else ("the paper's test accuracies (61.88%, 89.09%, 91.27%) are of ten classes and do not compare",),
    )
    return _report(result, cells, split, runs, oblivious=pictures.optimiser(context), targets=targets)


def fig4(context: Context) -> ExperimentResult:
    """MNIST, q = 0.02, T = 1,000 steps, 500 rows; all three attacks on the same runs; the learning rate is swept for
    each ε."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 4.0, 10.0, 20.0, 40.0))
    runs = context.pick("runs of each game", tiny=32, quick=256, paper=10_000)
    steps = context.pick("steps", tiny=50, quick=1000, paper=1000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=499, paper=499))
    names = {"sum": "plain (Algorithm 2)", "top": "improved (Algorithm 3)", "likelihood": "likelihood (Appendix G)"}
    printed = {"sum": "far below improved", "top": "fairly tight to the bound"}
    sweep_runs = context.pick(tiny=(32, 32), quick=(32, 32), paper=AT_PAPER_SCALE)
    cells = [
        play(
            context,
            split,
            games.GameSetting(epsilon=epsilon, sample_rate=0.02, steps=steps, step=0.3),
            runs=runs,
            methods=tuple(names),
            by="top",
            sweep_runs=sweep_runs,
            name=f"ε = {epsilon:g}",
        )
        for epsilon in epsilons
    ]
    drawn = [
        games.series(name, role, epsilons, [c.after[method] for c in cells])
        for (method, name), role in zip(names.items(), ("attack", "attack-2", "attack-3"), strict=True)
    ]
    curve = games.sampled_curve(context, epsilons, 0.02, steps, 10)
    series = (curve, games.chance(curve.x, 10), *drawn)
    panel = Panel(f"q = 0.02, T = {steps:,}, prior of 10", games.EPSILON, games.SUCCESS, series, log_x=True)
    better = [float(c.after["top"].value) - float(c.after["sum"].value) for c in cells]
    short = [c.bound - float(c.after["top"].value) for c in cells]
    result = context.result(
        checks=[
            Check.of(
                "the improved attack is above the plain one, intervals apart",
                [lies_below(c.after["sum"], c.after["top"]) for c in cells],
                chance=APART,
            ),
            Check.size("it is above by more than 0.1", [d > 0.1 for d in better]),
            Check.size("it is within 0.15 of the bound", [gap < 0.15 for gap in short]),
        ],
        conclusion=f"At ε = {listed(epsilons)} the improved attack is {listed(better, '+.3f')} above the "
        f"plain one, and {listed(short, '+.3f')} below the bound. {_SEE_TABLE}",
        stated=[row for cell in cells for row in _stated(cell, names, printed)],
        panels=[panel],
        tables=[_table(cells, names)],
    )
    return _report(result, cells, split, runs)


_PRINTED = {0.01: (0.20, 0.15), 0.99: (0.35, 0.32)}
"""By q: bound and success of the attack, each "about"."""
_ABOUT = 0.01
"""What "about" leaves open."""


def fig5(context: Context) -> ExperimentResult:
    """MNIST, (4, 1e-5)-DP, T = 100, prior of 10, C = 1; the learning rate is swept for each q."""
    rates = context.pick(
        "sampling rates q",
        tiny=(0.2, 0.99),
        quick=(0.01, 0.1, 0.5, 0.99),
        paper=(0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.99),
    )
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    sweep_runs = context.pick(tiny=(32, 32), quick=(64, 128), paper=AT_PAPER_SCALE)
    names = {"top": "improved attack", "likelihood": "likelihood attack"}
    cells, stated = [], []
    for q in rates:
        setting = games.GameSetting(epsilon=4.0, sample_rate=q, max_grad_norm=1.0)
        cell = play(
            context, split, setting, runs=runs, methods=tuple(names), by="top", sweep_runs=sweep_runs, name=f"q = {q:g}"
        )
        cells.append(cell)
        bound, attack = (f"about {v:.2f}" for v in _PRINTED[q]) if q in _PRINTED else ("not stated", "not stated")
        stated.append(Stated(f"q = {q:g}: upper bound", bound, cell.bound, kind="upper"))
        stated += _stated(cell, names, {"top": attack})
    bounds, tops = [c.bound for c in cells], [c.after["top"] for c in cells]
    noise = [games.noise_for(context, 4.0, q, cells[0].setting.steps) for q in rates]
    coloured = {"upper bound": bounds, "improved prior-aware attack": [float(game.value) for game in tops]}
    panels = [
        Panel(
            title,
            "sampling rate q",
            "noise multiplier σ",
            y_range=None,
            colour_label="success",
            series=(Series(name=title, role="bound", x=np.array(rates), y=np.array(noise), colour=np.array(colour)),),
        )
        for title, colour in coloured.items()
    ]
    as_printed = [_covers(game, _PRINTED[q][1]) for q, game in zip(rates, tops, strict=True) if q in _PRINTED]
    result = context.result(
        checks=[
            Check.of("the bound is larger at the largest q than at the smallest", [bounds[0] < bounds[-1]]),
            Check.of("the attack is, too, intervals apart", [lies_below(tops[0], tops[-1])], chance=APART),
            Check.size("the attack's interval holds the printed success", as_printed),
        ],
        conclusion=f"At ε = 4 the bound goes from {bounds[0]:.3f} (q = {rates[0]:g}) to {bounds[-1]:.3f} (q = "
        f"{rates[-1]:g}), and the attack from {tops[0].value:.3f} to {tops[-1].value:.3f}. {_SEE_TABLE}",
        stated=stated,
        panels=panels,
        tables=[_table(cells, names)],
    )
    return _report(result, cells, split, runs)


def _covers(game: ReconstructionGame, printed: float) -> bool:
    low, high = games.interval(game) or (float(game.value),) * 2
    return low - _ABOUT <= printed <= high + _ABOUT
