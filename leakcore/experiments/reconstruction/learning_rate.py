"""What the learning rate does to accuracy, to the attack and to its gap below the bound: two studies of ours."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from leakcore import dpsgd
from leakcore._base.digest import digest
from leakcore._base.process_wide import one_thread
from leakcore.attacks import ReconstructionGame
from leakcore.bounds import orthogonal_success
from leakcore.experiments.driver.context import Context, listed
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated, ours
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.reconstruction import data, games
from leakcore.experiments.reconstruction.data import Split

PAPER = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Its range (Appendix A); the values in between are ours."""
CLIPPED = 0.99
"""Share of gradients that count as "all" in "all gradients are clipped" (Appendix K.1)."""
_RUNS = 32
_CANDIDATES = 10
_TEST = 2000
"""Held-out rows that accuracy is measured on: a standard error below 0.01 per run, and 32 runs are averaged."""
NOTE = (
    f"learning rates are chosen by the mean accuracy of {_RUNS} runs on held-out rows, as the paper sweeps, once among "
    f"all and once among those that leave {100 * CLIPPED:g}% of gradients clipped; the attack is not consulted"
)


@dataclasses.dataclass(frozen=True)
class Tried:
    """What one learning rate gives: accuracy, −1 where a run overflows, and the share of gradients clipped."""

    learning_rate: float
    accuracy: float
    clipped: float


def at(setting: games.GameSetting, rate: float) -> games.GameSetting:
    """The setting with this learning rate."""
    return dataclasses.replace(setting, step=rate * setting.max_grad_norm)


def by_accuracy(context: Context, split: Split, setting: games.GameSetting, rates: tuple[float, ...]) -> list[Tried]:
    """`_RUNS` models at each rate, trained on the known rows and one of the pool; each rate is stored as a piece."""
    jobs, names = {}, []
    for rate in rates:
        tried = at(setting, rate)
        names.append(f"learning-rate-{digest(dataclasses.asdict(tried), split.content)[:20]}")
        jobs[names[-1]] = functools.partial(
            _tried,
            games.ensemble(context, split, tried),
            split.known_features,
            split.known_labels,
            split.pool_features,
            split.pool_labels,
        )
    pieces = context.finish(f"learning rates, ε = {setting.epsilon:g}, q = {setting.sample_rate:g}", jobs)
    return [
        Tried(rate, float(pieces[name]["accuracy"]), float(pieces[name]["clipped"]))
        for rate, name in zip(rates, names, strict=True)
    ]


def best(tried: list[Tried], *, clipped: float = 0.0) -> Tried:
    """The most accurate rate that leaves at least this share clipped (or the most clipped one); ties: the smallest."""
    allowed = [t for t in tried if t.clipped >= clipped] or [max(tried, key=lambda t: t.clipped)]
    return max(allowed, key=lambda t: t.accuracy)


def _tried(
    ensemble: dpsgd.Ensemble, x: np.ndarray, y: np.ndarray, pool: np.ndarray, pool_labels: np.ndarray
) -> dict[str, Any]:
    last = slice(-_CANDIDATES, None)
    try:
        trained = ensemble.run(
            x,
            y,
            runs=_RUNS,
            per_run=dpsgd.PerRun(dpsgd.Rows(pool[-1:], pool_labels[-1:])),
            observer=dpsgd.Observer(dpsgd.Rows(pool[last], pool_labels[last]), keep_steps=False),
        )
    except FloatingPointError:
        return {"accuracy": -1.0, "clipped": 0.0}
    assert trained.clipped is not None
    with one_thread():
        accuracies = trained.accuracy(pool[:_TEST], pool_labels[:_TEST])
    share = trained.clipped.sum() / (_RUNS * _CANDIDATES * ensemble.steps)
    return {"accuracy": float(np.mean(accuracies)), "clipped": float(share)}


_NEAR = 0.02
"""A gap that a reader of the paper's figure would not see: its axes span one."""


def gap(context: Context) -> ExperimentResult:
    """784–10–10, |D| = 1,000, T = 100, C = 0.1, prior of 10; with all gradients clipped, and as accurate as can be."""
    epsilons = context.pick("values of ε", tiny=(10.0,), quick=(1.0, 10.0, 40.0, 100.0), paper=(1.0, 10.0, 40.0, 100.0))
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    rates = context.pick("learning rates", tiny=(1.0, 10.0), quick=PAPER, paper=PAPER)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    tried = {e: by_accuracy(context, split, games.GameSetting(epsilon=e), rates) for e in epsilons}
    stated: list[Stated] = []
    by_choice: dict[str, list[_Point]] = {"clipped": [], "accurate": []}
    for name, least in (("clipped", CLIPPED), ("accurate", 0.0)):
        for epsilon in epsilons:
            chosen = best(tried[epsilon], clipped=least)
            setting = at(games.GameSetting(epsilon=epsilon), chosen.learning_rate)
            played = games.play(
                context,
                split,
                setting,
                num_candidates=_CANDIDATES,
                runs=runs,
                methods=("sum", "likelihood"),
                task=f"{name}, ε = {epsilon:g}",
            )
            noise = games.noise_for(context, epsilon, 1.0, setting.steps)
            limits = games.BoundsAtNoise.at(noise, setting.steps, _CANDIDATES)
            by_choice[name].append(
                _Point(epsilon, noise, limits, played["sum"], played["likelihood"], chosen, setting.steps)
            )
            where, paper = f"{name}, ε = {epsilon:g}", "over 0.90" if epsilon >= 10 else "not stated"
            row = games.gap(context, setting, played["sum"], "nearly identical to the bound")
            stated += [
                dataclasses.replace(row, what=f"{name}, {row.what}"),
                Stated(f"{where}: likelihood attack on the same runs", "not shown", **ours(played["likelihood"])),
                Stated(f"{where}: accuracy", paper, chosen.accuracy, comment=f"learning rate {chosen.learning_rate:g}"),
            ]
    clipped, accurate = by_choice["clipped"], by_choice["accurate"]
    near = {name: [p.gap[1] <= _NEAR for p in points] for name, points in by_choice.items()}
    drawn = (
        games.series("prior-aware attack, all gradients clipped", "attack", epsilons, [p.plain for p in clipped]),
        games.series("prior-aware attack, most accurate models", "attack-3", epsilons, [p.plain for p in accurate]),
        games.series("likelihood attack, most accurate models", "attack-2", epsilons, [p.likelihood for p in accurate]),
    )
    panels = [
        games.panel(context, "C = 0.1, T = 100, prior of 10", epsilons, _CANDIDATES, drawn),
        _split(context, by_choice),
    ]
    result = context.result(
        conclusion=f"Bound minus attack, on {runs:,} reconstructions each, in two parts: bound minus optimum (the best "
        "attack on orthogonal gradients), and optimum minus attack. With learning rates that leave all gradients "
        f"clipped: {'; '.join(p.parts for p in clipped)}. With those of the most accurate models "
        f"{listed((p.plain.clipped_share for p in accurate), '.0%')} of the gradients are clipped, and the gap "
        f"is {listed((p.limits.bound - float(p.plain.value) for p in accurate), '+.3f')}.",
        stated=stated,
        panels=panels,
        checks=[
            Check.of("with all gradients clipped the gap is at most 0.02 with its interval", near["clipped"]),
            Check.size("with the most accurate model's learning rate it is, too", near["accurate"]),
        ],
        notes=(_EFFECTIVE,),
    )
    return games.report(
        result,
        splits=[split],
        setting=games.GameSetting(epsilon=epsilons[-1]),
        runs=runs,
        attacked=[(g, p.limits.bound) for p in (*clipped, *accurate) for g in (p.plain, p.likelihood)],
        learning_rate_note=NOTE,
        num_candidates=_CANDIDATES,
        learning_rates={f"{e:g}": [dataclasses.asdict(t) for t in tried[e]] for e in epsilons},
    )


_EFFECTIVE = (
    "'as if all cosines were ρ': candidates whose clipped gradients have norm C and pairwise cosine ρ are told apart "
    "as orthogonal ones at √(1 − ρ) times the separation √T/σ; ρ is that at which the optimum equals the attack"
)


@dataclasses.dataclass(frozen=True, eq=False)
class _Point:
    epsilon: float
    noise: float
    limits: games.BoundsAtNoise
    plain: ReconstructionGame
    likelihood: ReconstructionGame
    chosen: Tried
    steps: int

    @property
    def gap(self) -> tuple[float, float]:
        """Bound − attack at the ends of the attack's interval."""
        low, high = games.interval(self.plain) or (float(self.plain.value),) * 2
        return self.limits.bound - high, self.limits.bound - low

    @property
    def cosine(self) -> float:
        """ρ such that ten clipped candidates with pairwise cosine ρ are distinguished as often; by bisection."""
        low, high = -1.0 / (_CANDIDATES - 1), 1.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            scale = max(1.0 - middle, 1e-300) ** 0.5
            optimum = orthogonal_success(self.noise / scale, self.steps, _CANDIDATES).value
            low, high = (middle, high) if float(optimum) > float(self.plain.value) else (low, middle)
        return 0.5 * (low + high)

    @property
    def parts(self) -> str:
        rate, bound, optimum = float(self.plain.value), self.limits.bound, self.limits.orthogonal
        as_if = f" (as if all cosines were {self.cosine:.2f})" if optimum - rate > 1e-3 else ""
        low, high = self.gap
        return (
            f"at ε = {self.epsilon:g} the gap is {bound - rate:+.4f} [{low:+.4f}, {high:+.4f}], made up of "
            f"{bound - optimum:+.4f} and {optimum - rate:+.4f}{as_if}"
        )


def _split(context: Context, by_choice: dict[str, list[_Point]]) -> Panel:
    """The two parts of the gap over ε."""
    first = by_choice["clipped"]
    epsilons = tuple(p.epsilon for p in first)
    curves = games.curves(context, epsilons, first[0].steps, _CANDIDATES)
    bound, orthogonal, simplex = (next(c for c in curves if c.role == r) for r in ("bound", "orthogonal", "simplex"))
    series = [
        Series.of("bound − optimum, orthogonal", "accountant", bound.x, bound.y - orthogonal.y),
        Series.of("bound − optimum, simplex", "baseline", bound.x, bound.y - simplex.y),
    ]
    for name, role, points in (
        ("optimum, orthogonal − attack, all clipped", "attack-4", first),
        ("optimum, orthogonal − attack, most accurate", "attack-5", by_choice["accurate"]),
    ):
        ends = np.array([[p.limits.orthogonal - p.limits.bound + g for g in p.gap] for p in points])
        lost = np.array([p.limits.orthogonal - float(p.plain.value) for p in points])
        series.append(Series.of(name, role, epsilons, lost, low=ends[:, 0], high=ends[:, 1]))
    return Panel.of(("the gap in two parts", games.EPSILON, "difference of success"), *series, log="x")


_PRINTED = {0.01: (0.20, 0.15), 0.99: (0.35, 0.32)}
"""Bound and attack by sampling rate, as stated in Section 4.3, each "about"."""


def sweep(context: Context) -> ExperimentResult:
    """784–10–10, |D| = 1,000, T = 100, C = 1, prior of 10; a panel for each end of Figure 5."""
    rates = context.pick("learning rates", tiny=(0.1, 10.0), quick=(0.01, 0.1, 1.0, 3.0), paper=PAPER)
    runs = context.pick("runs of each game", tiny=32, quick=512, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999))
    stated, panels, summaries, attacked, agree = [], [], [], [], []
    for q, (printed_bound, printed) in _PRINTED.items():
        setting = games.GameSetting(epsilon=4.0, max_grad_norm=1.0, sample_rate=q)
        noise, bound = games.noise_for(context, 4.0, q, setting.steps), games.bound(context, setting, 10)
        tried = by_accuracy(context, split, setting, rates)
        accuracies = {t.learning_rate: t.accuracy for t in tried if t.accuracy >= 0}
        tops, overflowed = {}, [t.learning_rate for t in tried if t.accuracy < 0]
        for rate, accuracy in accuracies.items():
            try:
                game = games.play(
                    context,
                    split,
                    at(setting, rate),
                    num_candidates=10,
                    runs=runs,
                    methods=("top", "likelihood"),
                    task=f"q = {q:g}, learning rate {rate:g}",
                )
            except FloatingPointError:
                overflowed.append(rate)
                continue
            top = tops[rate] = game["top"]
            attacked += [(top, bound), (game["likelihood"], bound)]
            what = f"q = {q:g}, learning rate {rate:g}: improved attack"
            comment = (
                f"accuracy {accuracy:.3f}; {100 * top.clipped_share:.0f}% of gradients clipped, cosine to "
                f"the nearest candidate {top.nearest_cosine:.2f}; likelihood attack "
                f"{float(game['likelihood'].value):.3f}"
            )
            stated.append(Stated(what, f"about {printed:g}", **ours(top), comment=comment))
        if overflowed:
            what = f"q = {q:g}, learning rates {listed(sorted(overflowed))}"
            stated.append(Stated(what, "not stated", comment="runs overflow"))
        stated.append(Stated(f"q = {q:g}: upper bound", f"about {printed_bound:g}", bound, kind="upper"))
        x = np.array(list(tops))
        series = [
            Series.of("upper bound, exact", "bound", x, bound),
            games.chance(x, 10),
            games.series("improved (Algorithm 3)", "attack-2", tuple(tops), list(tops.values())),
            Series.of("accuracy", "baseline", x, [accuracies[rate] for rate in tops]),
        ]
        if q > 0.9:
            limit = float(orthogonal_success(noise, setting.steps, 10).value)
            series.append(Series.of("optimum, orthogonal candidates", "orthogonal", x, limit))
        panels.append(
            Panel(f"q = {q:g}, σ = {noise:.3g}", "learning rate", games.SUCCESS, log_x=True, series=tuple(series))
        )
        holds = [rate for rate, game in tops.items() if _covers(games.interval(game), printed)]
        agree.append(bool(holds))
        summaries.append(
            f"At q = {q:g} the bound is {bound:.3f}, and the attack reaches "
            f"{listed((float(g.value) for g in tops.values()), '.3f')} at η = {listed(tops)}; the paper's "
            f"{printed:g} is " + (f"inside the interval at η = {listed(holds)}." if holds else "in no interval.")
        )
    result = context.result(
        checks=[Check.of("the interval at some learning rate holds the printed success", agree)],
        conclusion=" ".join(summaries),
        stated=stated,
        panels=panels,
    )
    return games.report(
        result,
        splits=[split],
        setting=setting,
        runs=runs,
        attacked=attacked,
        learning_rate_note="every learning rate is shown; none was chosen by the attack's success",
    )


def _covers(interval: tuple[float, float] | None, value: float) -> bool:
    """Whether a value printed to two digits rounds into the interval."""
    return interval is not None and interval[0] - 0.005 <= value <= interval[1] + 0.005
