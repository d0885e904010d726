"""The learning rate by the attack's own success, on runs that are not reported: what Figures 2, 4 and 5 share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from leakcore.attacks import ReconstructionGame
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import games, learning_rate, mechanism
from leakcore.experiments.reconstruction.setting.data import Split
from leakcore.experiments.result import Stated, TextTable, ours

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
        return games.play(
            context, split, one, num_candidates=_CANDIDATES, runs=runs, methods=methods,
            task=f"{name}, η = {games.learning_rate(split, one):g}",
        )  # fmt: skip

    tried = _sweep(context, split, setting, by, sweep_runs, name)
    fixed = games.learning_rate(split, setting)
    rate = best(tried).learning_rate
    # A rate that is as good as equal is not played twice.
    chosen = setting if abs(rate / fixed - 1) < 1e-9 else games.with_learning_rate(split, setting, rate)
    before = reported(setting)
    after = before if chosen is setting else reported(chosen)
    noise = mechanism.noise_for(context, setting.epsilon, setting.sample_rate, setting.steps)
    accuracy = [
        learning_rate.sweep(context, split, one, (one.step / one.max_grad_norm,))[0].accuracy
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
        optimum=mechanism.orthogonal(context, noise, setting.sample_rate, setting.steps, _CANDIDATES),
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
            context, split, [games.with_learning_rate(split, setting, rate) for rate in rates],
            num_candidates=_CANDIDATES, runs=range(first, first + runs), methods=(by,), task=f"learning rates, {name}",
        )  # fmt: skip
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


def table(cells: Sequence[Cell], names: dict[str, str]) -> TextTable:
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
        title="Attack ÷ bound at the fixed learning rate η → at the one that the sweep chose, with 95% intervals. "
        "The rest of the gap at the chosen rate has two parts. The optimum is that of the best attack on orthogonal, "
        "clipped candidates",
        head=(
            "setting", "bound", "η", "attack", "attack ÷ bound", "bound − optimum", "optimum − attack",
            "gradients clipped", "cosine to the nearest candidate", "accuracy",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _arrow(values: tuple[float, float], how: str) -> str:
    return f"{values[0]:{how}} → {values[1]:{how}}"


def sentence(cells: Sequence[Cell], method: str) -> str:
    """What the sweep changes, and what the rest of the gap is, in words."""
    changes = "; ".join(
        f"{cell.name}: {cell.ratios(method)[0]:.2f} at η = {cell.rates[0]:g}, {cell.ratios(method)[1]:.2f} at η = "
        f"{cell.rates[1]:g}"
        for cell in cells
    )
    left = "; ".join(f"{cell.name}: {_rest(cell, method)}" for cell in cells)
    learnt = ", ".join(_arrow(cell.accuracies, ".2f") for cell in cells)
    return (
        f"Attack ÷ bound before and after the sweep of the learning rate: {changes}. The models' accuracy: {learnt}. "
        f"The rest of the gap: {left}."
    )


def also(cells: Sequence[Cell], method: str, attack: str) -> str:
    """Attack ÷ bound of another attack at the chosen rates."""
    reached = ", ".join(f"{cell.ratios(method)[1]:.2f} ({cell.name})" for cell in cells)
    return f"The {attack} reaches {reached} of the bound on the same runs."


def _rest(cell: Cell, method: str) -> str:
    unreachable, lost = cell.parts(method)
    game = cell.after[method]
    low, high = games.interval(game) or (float(game.value),) * 2
    if high >= cell.bound:
        return "none outside the interval"
    if high >= cell.optimum >= low:
        return f"{unreachable:+.3f}, bound − optimum; the interval holds the optimum"
    share = "all" if game.clipped_share >= learning_rate.CLIPPED else f"{100 * game.clipped_share:.0f}%"
    why = f"{share} of the gradients are clipped, and the nearest candidate has cosine {game.nearest_cosine:.2f}"
    return f"{unreachable:+.3f}, bound − optimum, and {lost:+.3f}, optimum − attack ({why})"


def stated(cell: Cell, names: dict[str, str], printed: dict[str, str]) -> list[Stated]:
    """Both games of every attack, next to what the paper says."""
    out = []
    for method, attack in names.items():
        for when, game, rate in (("fixed", cell.before, cell.rates[0]), ("swept", cell.after, cell.rates[1])):
            one = game[method]
            out.append(
                Stated(what=f"{cell.name}, {attack or 'attack'}, {when} learning rate {rate:g}",
                       paper=printed.get(method, "not shown"), **ours(one),
                       comment=f"{float(one.value) / cell.bound:.2f} of the bound, {cell.bound:.4f}; "
                       f"{100 * one.clipped_share:.1f}% of gradients clipped, cosine to the nearest candidate "
                       f"{one.nearest_cosine:.3f}")
            )  # fmt: skip
    return out


def settings(cells: Sequence[Cell]) -> dict[str, Any]:
    """What the sweep saw, for the result's settings."""
    return {cell.name: [dataclasses.asdict(t) for t in cell.tried] for cell in cells}
