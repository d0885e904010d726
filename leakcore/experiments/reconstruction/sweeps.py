"""Figures 3, 7, 8, 9, 10, 13 and 14: the prior-aware attack in many settings.

Each figure is a table of cases, which one driver plays, and the rule by which it is judged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from leakcore import dpsgd
from leakcore.attacks import ReconstructionGame
from leakcore.experiments.driver.context import Context, listed
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated, ours
from leakcore.experiments.driver.verdict import APART, Check, lies_below
from leakcore.experiments.reconstruction import data, games, pictures
from leakcore.experiments.reconstruction.data import Split
from leakcore.experiments.reconstruction.games import GameSetting

K = TypeVar("K", bound=Hashable)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """One point of a figure.

    panel: title of its panel. curve, role: its curve in the legend. split: the known rows, and the pool of targets and
    candidates. candidates: size of the prior. methods: attacks on the same runs; the figure is about the first.
    subtract_known: whether the attacker subtracts the gradients of the known rows.
    """

    panel: str
    curve: str = "prior-aware attack"
    role: str = "attack"
    setting: GameSetting
    split: Split
    runs: int
    candidates: int = 10
    methods: tuple[str, ...] = ("sum",)
    subtract_known: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A case with its games by method, and the bound on their success."""

    case: Case
    games: dict[str, ReconstructionGame]
    bound: float

    @property
    def game(self) -> ReconstructionGame:
        """The first method's."""
        return self.games[self.case.methods[0]]

    @property
    def success(self) -> float:
        """The first method's success."""
        return float(self.game.value)

    @property
    def gap(self) -> float:
        """Bound minus success."""
        return self.bound - self.success

    @property
    def interval(self) -> tuple[float, float]:
        """The success rate's 95% interval."""
        return games.interval(self.game) or (self.success, self.success)


def play(context: Context, cases: Mapping[K, Case]) -> dict[K, Point]:
    """Play every case; its portions of runs are stored as pieces."""
    points = {}
    for key, case in cases.items():
        played = games.play(
            context,
            case.split,
            case.setting,
            num_candidates=case.candidates,
            runs=case.runs,
            methods=case.methods,
            subtract_known=case.subtract_known,
            task=f"{case.panel}, {case.curve}, ε = {case.setting.epsilon:g}, q = {case.setting.sample_rate:g}, prior "
            f"{case.candidates}",
        )
        points[key] = Point(case, played, games.bound(context, case.setting, case.candidates))
    return points


def over_epsilon(
    context: Context, points: Iterable[Point], also: Mapping[str, Sequence[Series]] | None = None
) -> list[Panel]:
    """The attacks over ε, panel by panel, with bound and reference curves. also: further curves by panel."""
    panels: dict[str, dict[str, list[Point]]] = {}
    for point in points:
        panels.setdefault(point.case.panel, {}).setdefault(point.case.curve, []).append(point)
    out = []
    for title, curves in panels.items():
        drawn = [
            games.series(
                name, curve[0].case.role, tuple(p.case.setting.epsilon for p in curve), [p.game for p in curve]
            )
            for name, curve in curves.items()
        ]
        first = next(iter(curves.values()))
        epsilons = tuple(p.case.setting.epsilon for p in first)
        more = (also or {}).get(title, ())
        out.append(games.panel(context, title, epsilons, first[0].case.candidates, (*drawn, *more)))
    return out


def stated(context: Context, point: Point, paper: str, prefix: str = "") -> Stated:
    """Attack and bound of a point, with the gap in two parts."""
    row = games.gap(context, point.case.setting, point.game, paper)
    return dataclasses.replace(row, what=prefix + row.what)


def report(
    result: ExperimentResult, points: Mapping[Any, Point], runs: int | dict[int, int], *splits: Split, **settings: Any
) -> ExperimentResult:
    """The result with the notes that all figures share; every game is held to its bound."""
    return games.report(
        result,
        attacked=[(game, p.bound) for p in points.values() for game in p.games.values()],
        splits=splits,
        setting=list(points.values())[-1].case.setting,
        runs=runs,
        **settings,
    )


def fig3(context: Context) -> ExperimentResult:
    """The number of candidates: one panel for each ε, success over 2 to 2,048 candidates."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    sizes = context.pick(
        "numbers of candidates", tiny=(2, 8), quick=(2, 8, 32, 128, 512), paper=tuple(2**k for k in range(1, 12))
    )
    runs = context.pick("runs of each game", tiny=32, quick=128, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    cases = {
        (e, n): Case(panel=f"ε = {e:g}", setting=GameSetting(epsilon=e), split=split, runs=runs, candidates=n)
        for e in epsilons
        for n in sizes
    }
    points = play(context, cases)
    low, high, few, many = min(epsilons), max(epsilons), sizes[0], sizes[-1]
    fell = [lies_below(points[e, many].game, points[e, few].game) for e in epsilons]
    widest = max(points, key=lambda key: points[key].gap)
    result = context.result(
        checks=[
            Check.of(
                "success is lower for the largest prior than for the smallest, intervals apart", fell, chance=APART
            ),
            Check.of(
                f"the gap is wider by 0.02 at ε = {high:g} than at {low:g}",
                [points[high, n].gap > points[low, n].gap + 0.02 for n in sizes],
            ),
            Check.size(f"at ε = {low:g} it is below 0.1", [points[low, n].gap < 0.1 for n in sizes]),
        ],
        conclusion=f"The gap between bound and attack is at most {max(points[low, n].gap for n in sizes):.3f} at ε = "
        f"{low:g}, and widest, {points[widest].gap:.3f}, at ε = {widest[0]:g} and {widest[1]} candidates. The "
        "dash-dotted curve is the best that any attack can do if the candidates' gradients are orthogonal.",
        stated=[stated(context, point, "falls with the prior's size") for point in points.values()],
        panels=[_over_candidates(context, [points[e, n] for n in sizes]) for e in epsilons],
    )
    return report(result, points, runs, split, candidate_counts=sizes)


def _over_candidates(context: Context, points: Sequence[Point]) -> Panel:
    case, sizes = points[0].case, tuple(float(p.case.candidates) for p in points)
    noise = games.noise_for(context, case.setting.epsilon, 1.0, case.setting.steps)
    x = np.unique(np.geomspace(min(sizes), max(sizes), 40).round())
    limits = [games.BoundsAtNoise.at(noise, case.setting.steps, int(n)) for n in x]
    orthogonal = np.array([b.orthogonal for b in limits])
    return Panel(
        case.panel,
        "candidates n",
        games.SUCCESS,
        log_x=True,
        series=(
            Series.of("upper bound, exact", "bound", x, [b.bound for b in limits]),
            Series.of("optimum, orthogonal candidates", "orthogonal", x, orthogonal),
            Series.of("guessing", "chance", x, 1 / x),
            games.series(case.curve, case.role, sizes, [p.game for p in points]),
        ),
    )


_WIDTHS = (10, 100, 1000)
"""The paper's hidden layers."""


def fig7(context: Context) -> ExperimentResult:
    """The model's size: hidden layers of 10, 100 and 1,000."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    # A run costs in proportion to the width.
    widths = context.pick(
        "hidden widths, with runs",
        tiny={10: 32, 20: 32},
        quick={10: 256, 100: 48},
        paper={10: 10_000, 100: 10_000, 1000: 10_000},
    )
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    title = "hidden layer of {}: {} runs a point"
    settings = {(width, e): GameSetting(epsilon=e, hidden=(width,)) for width in widths for e in epsilons}
    cases = {
        (width, e): Case(panel=title.format(width, widths[width]), setting=setting, split=split, runs=widths[width])
        for (width, e), setting in settings.items()
    }
    points = play(context, cases)
    spans = [np.array([points[width, e].interval for width in widths]) for e in epsilons]
    overlaps = [span[:, 0].max() <= span[:, 1].min() for span in spans]
    result = context.result(
        checks=[
            Check.of("the 95% intervals of all widths overlap", overlaps),
            Check.size("the paper's widths were compared", [width in widths for width in _WIDTHS]),
        ],
        conclusion=f"{min(widths.values())} runs cannot show differences below about "
        f"{1.4 / min(widths.values()) ** 0.5:.2f}.",
        stated=[
            stated(context, point, "no difference between widths", f"width {width}, ")
            for (width, _), point in points.items()
        ],
        panels=over_epsilon(context, points.values()),
    )
    return report(result, points, dict(widths), split)


def fig8(context: Context) -> ExperimentResult:
    """The gradient-based attack, which runs once and is judged against priors of 2, 8 and 128."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(10.0, 100.0), paper=(1.0, 10.0, 40.0, 100.0))
    sizes = (2, 8, 128)
    runs = context.pick("runs of each game", tiny=32, quick=192, paper=10_000)
    targets = context.pick("targets", tiny=2, quick=32, paper=1000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    attempts = dict(zip(epsilons, pictures.attacked(context, split, (10,), 0.1, epsilons, targets), strict=True))
    guesses = {(n, e): attempts[e].named(split, n) for n in sizes for e in epsilons}
    cases = {
        (n, e): Case(panel=f"prior of {n}", setting=GameSetting(epsilon=e), split=split, runs=runs, candidates=n)
        for n, e in guesses
    }
    points = play(context, cases)
    ratios = [points[key].success / max(float(guess.value), 1e-12) for key, guess in guesses.items()]
    guess_of = functools.partial(games.series, "gradient-based attack, nearest prior point", "attack-2", epsilons)
    drawn = {f"prior of {n}": [guess_of([guesses[n, e] for e in epsilons])] for n in sizes}
    result = context.result(
        checks=[
            Check.of(
                "the gradient-based attack is below the prior-aware one, intervals apart",
                [lies_below(guess, points[key].game) for key, guess in guesses.items()],
                chance=APART,
            ),
            Check.size("the prior-aware attack succeeds at least 8 times as often", [r >= 8 for r in ratios]),
        ],
        conclusion=f"The prior-aware attack succeeds at least {min(ratios):.1f} times as often. With two candidates a "
        "guess already succeeds half of the time, so an attack that is ten times worse would be worse than guessing.",
        stated=[
            Stated(
                f"prior {n}, ε = {e:g}: gradient-based",
                "an order of magnitude less",
                **ours(guess),
                comment=f"prior-aware {points[n, e].success:.4f}, bound {points[n, e].bound:.4f}, guessing {1 / n:.4f}",
            )
            for (n, e), guess in guesses.items()
        ],
        panels=over_epsilon(context, points.values(), drawn),
        notes=(
            (
                "the average over all priors that hold the target, in place of 1,000 drawn ones; the gradient-based "
                "attack's intervals are empirical Bernstein limits over targets"
            ),
        ),
    )
    return report(result, points, runs, split, targets=targets, optimiser=pictures.optimiser(context))


def fig9(context: Context) -> ExperimentResult:
    """The prior's distribution: target and candidates are digits, or noise at the digits' distances."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    digits = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    noise = data.noise_pool(context, digits, context.pick(tiny=200, quick=2000, paper=9000))
    case = functools.partial(Case, panel="prior of 10", runs=runs)
    cases = {
        (name, e): case(curve=f"prior of {name}", role=role, setting=GameSetting(epsilon=e), split=split)
        for name, role, split in (("digits", "attack", digits), ("noise", "attack-2", noise))
        for e in epsilons
    }
    points = play(context, cases)
    differ = [points["digits", e].success - points["noise", e].success for e in epsilons]
    gaps = [p.gap for p in points.values()]
    result = context.result(
        checks=[
            Check.of("success with digits and with noise differs by less than 0.05", [abs(d) < 0.05 for d in differ]),
            Check.size("the attack is within 0.15 of the bound", [gap < 0.15 for gap in gaps]),
        ],
        conclusion=f"At ε = {listed(epsilons)} success with digits minus success with noise is "
        f"{listed(differ, '+.3f')}. The attack stays at most {max(gaps):.3f} below the bound.",
        stated=[stated(context, p, "little difference", f"{p.case.curve}: ") for p in points.values()],
        panels=over_epsilon(context, points.values()),
        notes=("noise is uniform at the digits' mean squared distance, with uniform labels",),
    )
    return report(result, points, runs, digits)


def fig10(context: Context) -> ExperimentResult:
    """Without subtraction of known gradients: |D₋| of 4, 128 and 999, with and without."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    known = context.pick("rows that are not subtracted", tiny=(4, 32), quick=(4, 128, 999), paper=(4, 128, 999))
    runs = context.pick("runs of each game", tiny=32, quick=256, paper=10_000)
    whole = data.mnist(context, 999)
    curves = {
        True: functools.partial(Case, curve="known gradients subtracted", subtract_known=True, runs=runs),
        False: functools.partial(Case, curve="not subtracted", role="attack-2", subtract_known=False, runs=runs),
    }
    cases = {
        (rows, subtract, e): case(panel=f"|D₋| = {rows}", setting=GameSetting(epsilon=e), split=whole.cut(rows))
        for rows in known
        for subtract, case in curves.items()
        for e in epsilons
    }
    points = play(context, cases)
    last, few, many = epsilons[-1], min(known), max(rows for rows in known if rows <= 128)
    blind, informed = ({r: points[r, subtract, last].success for r in known} for subtract in (False, True))
    above = [r for r in known for e in epsilons if r >= 128 and points[r, False, e].interval[0] > 0.1]
    fails = not above and blind[many] - 0.1 < 0.1 * (informed[many] - 0.1)
    minor = informed[few] - blind[few] < 0.25 * (informed[few] - 0.1)
    result = context.result(
        checks=[
            Check.of(f"with |D₋| = {many} it keeps less than a tenth of what subtraction gains", [fails]),
            Check.of(f"with |D₋| = {few} it loses less than a quarter", [minor]),
        ],
        conclusion=f"At ε = {last:g} the attack that does not subtract known gradients succeeds with probability "
        + ", ".join(f"{blind[r]:.3f} (|D₋| = {r}; with subtraction {informed[r]:.3f})" for r in known)
        + ". A guess succeeds with probability 0.1."
        + (f" At |D₋| = {listed(dict.fromkeys(above))} it is above guessing, interval and all." if above else ""),
        stated=[
            Stated(
                f"|D₋| = {rows}, ε = {e:g}, not subtracted",
                "minor effect" if rows == 4 else "chance, 0.1",
                **ours(points[rows, False, e].game),
                comment=f"subtracted {points[rows, True, e].success:.4f}, bound {points[rows, False, e].bound:.4f}",
            )
            for rows in known
            for e in epsilons
        ],
        panels=over_epsilon(context, points.values()),
        notes=("with few rows the step is shortened in proportion, since noise moves the parameters by σ·step/rows",),
    )
    return report(result, points, runs, whole, known_rows=known)


_NORMS = {(1.0, 1.0): "0.9", (1.0, 40.0): "0.5"}
"""Mean norms of clipped gradients as printed, by C and ε."""


def fig13(context: Context) -> ExperimentResult:
    """Clipping norms of 0.1 and 1: success, and the mean norm of the candidates' clipped gradients."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0), paper=(1.0, 10.0, 20.0, 40.0))
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    case = functools.partial(Case, panel="success of the prior-aware attack", split=split, runs=runs)
    cases = {
        (clip, e): case(curve=f"C = {clip:g}", role=role, setting=GameSetting(epsilon=e, max_grad_norm=clip))
        for clip, role in ((0.1, "attack"), (1.0, "attack-2"))
        for e in epsilons
    }
    points = play(context, cases)
    norms = {key: _mean_norm(context, split, point.case.setting) for key, point in points.items()}
    rows, over = [], "of candidates, over all steps of 32 runs"
    for (clip, e), point in points.items():
        rows.append(stated(context, point, "tight" if clip < 1 else "larger gap"))
        drawn = "0.1" if clip < 1 else _NORMS.get((clip, e), "between 0.9 and 0.5")
        what = f"ε = {e:g}, C = {clip:g}: mean norm of clipped gradients"
        rows.append(Stated(what, drawn, norms[clip, e], comment=over))
    lines = [
        Series.of(f"C = {clip:g}", points[clip, epsilons[0]].case.role, epsilons, [norms[clip, e] for e in epsilons])
        for clip in (0.1, 1.0)
    ]
    wide, top = epsilons[1:] or epsilons, epsilons[-1]
    result = context.result(
        checks=[
            Check.of(
                "the attack succeeds more often with C = 0.1 than with C = 1, intervals apart",
                [lies_below(points[1.0, e].game, points[0.1, e].game) for e in wide],
                chance=APART,
            ),
            Check.of(
                "with C = 1 the mean norm falls from the smallest ε to the largest",
                [norms[1.0, top] < norms[1.0, epsilons[0]] or len(epsilons) == 1],
            ),
            Check.size(
                "with C = 0.1 the attack is within 0.1 of the bound", [points[0.1, e].gap < 0.1 for e in epsilons]
            ),
        ],
        conclusion=f"At ε = {listed(epsilons)} the attack is below the bound by "
        f"{listed((points[0.1, e].gap for e in epsilons), '.3f')} with C = 0.1, and by "
        f"{listed((points[1.0, e].gap for e in epsilons), '.3f')} with C = 1. At ε = {top:g} the mean norm of "
        f"clipped gradients is {norms[0.1, top] / 0.1:.2f} C with C = 0.1 (paper: 1) and {norms[1.0, top]:.2f} C with "
        "C = 1 (paper: 0.5); shorter gradients are weaker signals.",
        stated=rows,
        panels=[
            Panel.of(("gradient norm after clipping", games.EPSILON, "mean norm"), *lines, log="x", y_range=(0.0, 1.1)),
            *over_epsilon(context, points.values()),
        ],
    )
    return report(result, points, runs, split)


def _mean_norm(context: Context, split: Split, setting: GameSetting) -> float:
    def measure() -> dict[str, float]:
        trained = games.ensemble(context, split, setting).run(
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


def fig14(context: Context) -> ExperimentResult:
    """Bound and improved attack over q, T = 100, C = 1; a panel for each ε and prior."""
    epsilons = context.pick(
        "values of ε", tiny=(4.0,), quick=(1.0, 2.0, 16.0, 32.0), paper=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    )
    sizes = context.pick("numbers of candidates", tiny=(10,), quick=(2, 10, 100), paper=(2, 10, 100))
    rates = context.pick(
        "sampling rates q", tiny=(0.2, 0.99), quick=(0.05, 0.3, 0.99), paper=(0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.99)
    )
    between = context.pick(tiny=(), quick=(0.02, 0.1, 0.2, 0.5, 0.7, 0.85), paper=(0.02, 0.03, 0.3, 0.5, 0.7, 0.9))
    runs = context.pick("runs of each game", tiny=32, quick=128, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=499, paper=999))
    case = functools.partial(Case, split=split, runs=runs, methods=("top", "likelihood"))
    setting = functools.partial(GameSetting, max_grad_norm=1.0)
    cases = {
        (e, n, q): case(panel=f"ε = {e:g}, prior of {n}", setting=setting(epsilon=e, sample_rate=q), candidates=n)
        for e in epsilons
        for n in sizes
        for q in rates
    }
    points = play(context, cases)
    grid, first, last, high = tuple(sorted({*rates, *between})), rates[0], rates[-1], max(epsilons)
    falls = {(e, n): points[e, n, last].bound - points[e, n, first].bound for e in epsilons for n in sizes}
    steepest = max(falls, key=lambda key: falls[key])
    result = context.result(
        checks=[
            Check.of(
                "the bound is smaller at the smallest q than at the largest", [fall > 0 for fall in falls.values()]
            ),
            Check.of("it differs most at the largest ε", [steepest[0] == high]),
            Check.of(
                "at the largest ε the improved attack is smaller, too, intervals apart",
                [lies_below(points[high, n, first].game, points[high, n, last].game) for n in sizes],
                chance=APART,
            ),
        ],
        conclusion=f"From q = {first:g} to q = {last:g} the bound differs most, by {falls[steepest]:.3f}, at ε = "
        f"{steepest[0]:g} and {steepest[1]} candidates.",
        stated=[
            Stated(
                f"ε = {e:g}, prior {n}, q = {q:g}: improved attack",
                "smaller at smaller q",
                **ours(points[e, n, q].game),
                comment=f"bound {points[e, n, q].bound:.4f}",
            )
            for e in epsilons
            for n in sizes
            for q in (first, last)
        ],
        panels=[_over_rates(context, [points[e, n, q] for q in rates], grid) for e in epsilons for n in sizes],
        notes=(f"{runs} runs a point: differences between attacks below about {2 / runs**0.5:.2f} are noise",),
    )
    return report(result, points, runs, split)


def _over_rates(context: Context, points: Sequence[Point], grid: tuple[float, ...]) -> Panel:
    case, rates = points[0].case, tuple(p.case.setting.sample_rate for p in points)
    at = [dataclasses.replace(case.setting, sample_rate=q) for q in grid]
    bound = np.array([games.bound(context, setting, case.candidates) for setting in at])
    return Panel.of(
        (case.panel, "sampling rate q", games.SUCCESS),
        Series.of("upper bound, exact", "bound", grid, bound),
        games.chance(np.array(grid), case.candidates),
        games.series("improved (Algorithm 3)", "attack-2", rates, [p.games["top"] for p in points]),
        games.series("likelihood (Appendix G)", "attack-3", rates, [p.games["likelihood"] for p in points]),
        log="x",
    )
