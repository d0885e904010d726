"""Table 1: the error of the tensor method, and of gradient inversion, under each defence, and the printed bound."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base.process_wide import one_thread
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.lecture.cells import NOISE, Rate, TableCell, attacked, neurons_needed, noise_std, rate

_SOURCE = "Lecture 13 (Lei 2024), Table 1 and eq. 5.2; Liu, Wang and Lei (2024); Wang, Lee and Lei (2023)"


_NOTES = (
    "inputs uniform on the unit sphere, residuals of random sign between about .5 and 1.5, w_j ~ N(0, I)",
    (
        "error: √(mean ‖x̂ − x‖²) after optimal matching; an input that was not found counts 1, as a guess of 0 would; "
        "points: medians over networks, bars: least and largest; below 1e-4 drawn at 1e-4"
    ),
    (
        "the tensor method sees dL/da only, answers without certificate, and knows neither the defence nor its "
        "strength (dropout: it leaves out the neurons that it sees are off); inversion (cosine, LBFGS) sees the whole "
        "gradient, knows the targets, and has several restarts in the box [−1, 1]"
    ),
    (
        "σ in units of what a residual of 1 adds to the sum; the table's DP-SGD clips the aggregate to s, then adds "
        f"noise (σ = {NOISE:g}); per-sample DP-SGD is the usual one; k-local aggregation: k minibatches of B rows"
    ),
)


@dataclasses.dataclass(frozen=True)
class TablePanel:
    """One panel.

    over: the axis, in words; varied: the field of `TableCell` on it. formula: the table's bound. settings: cells from
    left to right. promised: what the error is a power of, and the exponent; None where the bound does not move.
    """

    title: str
    over: str
    formula: str
    settings: tuple[TableCell, ...]
    varied: str = "strength"
    promised: tuple[str, float] | None = None
    log: str = "y"

    @property
    def x(self) -> np.ndarray:
        """Values on the axis."""
        return np.array([float(getattr(s, self.varied)) for s in self.settings])


def table1(context: Context) -> ExperimentResult:
    """Every defence at several strengths, several networks each."""
    networks = context.pick("networks", tiny=1, quick=6, paper=20)
    base = context.pick(tiny=TableCell(inputs=8, neurons=3000), quick=TableCell(), paper=TableCell(neurons=100_000))
    small = TableCell(inputs=8, neurons=context.pick(tiny=60, quick=300, paper=1000))
    sweeps = _sweeps(context, base)
    errors: dict[TableCell, np.ndarray] = {}
    inverted: dict[TableCell, np.ndarray] = {}
    wanted = dict.fromkeys(s for sweep in sweeps for s in sweep.settings)
    asked: dict[tuple[str, TableCell], tuple[TableCell, int]] = {("tensor", s): (s, networks) for s in wanted}
    every = context.pick("strengths under inversion", quick="the greatest", tiny="the greatest", paper="all") == "all"
    for setting in wanted if every else dict.fromkeys([base, *map(_strongest, sweeps)]):
        if setting.defence != "none" or setting == base:
            smaller = dataclasses.replace(setting, inputs=small.inputs, neurons=small.neurons)
            asked["inversion", setting] = (smaller, min(networks, 3))
    for setting in wanted:
        if noise_std(setting) > 0:
            asked["limit", setting] = (setting, networks)
    limits: dict[TableCell, np.ndarray] = {}
    of_attack = {"tensor": errors, "inversion": inverted, "limit": limits}
    for (attack, setting), cell_errors in _measured(context, asked).items():
        of_attack[attack][setting] = cell_errors
    plain = [s for s in errors if s.defence == "none"]
    constant = max(float(np.median(errors[s])) / s.factor for s in plain)
    panels = tuple(_panel(sweep, errors, inverted, limits, constant) for sweep in sweeps)
    judged = _judged(errors, base)
    stated, above, backwards = _stated(sweeps, errors, inverted, constant, judged)
    needed = {
        sweep.title: max(float(np.median(errors[s])) / s.factor for s in sweep.settings)
        for sweep in sweeps
        if all(math.isfinite(s.factor) for s in sweep.settings) and sweep.settings[0].defence != "none"
    }
    moved = sum(all(math.isfinite(s.factor) for s in sweep.settings) for sweep in sweeps)
    rates = _rates(sweeps, errors)
    fast = [r for r in rates if not r.holds]
    least = {s: float(np.median(v)) / s.factor for s, v in limits.items() if math.isfinite(s.factor)}
    hardest = max(least, key=lambda s: least[s])
    beyond = [f"{s.defence} {s.strength:g}" for s in limits if neurons_needed(s) > s.neurons]
    return context.result(
        conclusion="The table states orders, without constants, so what we test is growth: the error's exponent over "
        f"each variable. The constant {constant:.2f} covers the {len(plain)} settings without defence; with it the "
        f"median error is below the bound in {len(judged) - len(above)} of the {len(judged)} defended settings that "
        "could be above it"
        + (f" (not under {', '.join(above)})" if above else "")
        + f". Under {hardest.defence} at {hardest.strength:g} no unbiased attacker needs less than "
        f"{least[hardest]:.2f}, by the Cramér–Rao inequality. "
        + (f"Too few neurons for the noise (m < d(2.4 σ/c₂)²): {', '.join(beyond)}. " if beyond else "")
        + (f"Against the bound's direction: {', '.join(backwards)}. " if backwards else "")
        + f"Gradient inversion of the whole gradient (m = {small.neurons}, d = {small.inputs}) ends at "
        f"{float(np.median(inverted[base])):.2g} without defence: the bounds are about the tensor method, not about "
        "every attacker.",
        checks=[
            Check(says="the error moves as its bound does", holds=moved - len(backwards), cases=moved),
            Check(
                says="the error grows no faster than its bound: the 95% interval of the exponent reaches the promised "
                "one or lies below it",
                holds=len(rates) - len(fast),
                cases=len(rates),
                about="size",
            ),
        ],
        stated=[*(r.stated() for r in rates), *stated],
        panels=panels,
        notes=_NOTES,
        data=("drawn: inputs uniform on the unit sphere",),
        settings={
            "networks": networks,
            "base": dataclasses.asdict(base),
            "inversion_network": dataclasses.asdict(small),
            "activation": "elu",
            "output_weights": "1/m",
            "constant": constant,
            "constants_needed": needed,
            "noise": NOISE,
        },
        provenance=_SOURCE,
    )


def _strongest(sweep: TablePanel) -> TableCell:
    """The setting that disturbs the gradient most: of shares the least."""
    return sweep.settings[0 if sweep.settings[0].defence in ("dropout", "prune") else -1]


def _rates(sweeps: Sequence[TablePanel], errors: dict[TableCell, np.ndarray]) -> list[Rate]:
    """An exponent for every bound that moves; over σ where noise is at least a residual of 1, so that B is no more."""
    out = []
    for sweep in sweeps:
        if sweep.promised is None:
            continue
        over, promised = sweep.promised
        defence = sweep.settings[0].defence
        at = np.flatnonzero(sweep.x >= 1) if defence == "noise" else np.arange(len(sweep.x))
        if len(at) < 2:
            continue
        x = 1.0 / sweep.x if defence == "dropout" else sweep.x
        out.append(rate(over, promised, x[at], np.array([errors[sweep.settings[i]] for i in at])))
    return out


def _sweeps(context: Context, base: TableCell) -> tuple[TablePanel, ...]:
    def over(defence: str, *strengths: float) -> tuple[TableCell, ...]:
        chosen = context.pick(quick=strengths, paper=strengths, tiny=strengths[:: len(strengths) - 1])
        return tuple(dataclasses.replace(base, defence=defence, strength=s) for s in chosen)

    def sizes(key: str, values: Sequence[int]) -> tuple[TableCell, ...]:
        chosen = context.pick(quick=values, paper=values, tiny=values[:2])
        changes: list[dict[str, Any]] = [{key: value} for value in chosen]
        return tuple(dataclasses.replace(base, **change) for change in changes)

    m, d = base.neurons, base.inputs
    by_m, by_d, by_b = (
        sizes("neurons", (m // 4, m, 4 * m)),
        sizes("inputs", (d // 2, d, 2 * d)),
        sizes("batch", (1, 2, 4)),
    )
    of_table = "(B + σ max{1, ‖g‖/s})√(d/m)"
    return (
        TablePanel("no defence", "neurons m", "B√(d/m)", by_m, "neurons", ("m", -0.5), log="xy"),
        TablePanel("no defence", "inputs d", "B√(d/m)", by_d, "inputs", ("d", 0.5), log="xy"),
        TablePanel("no defence", "rows B", "B√(d/m)", by_b, "batch", ("B", 1.0), log="xy"),
        TablePanel("k-local aggregation", "local steps k", "kB√(d/m)", over("local", 1, 2, 3), promised=("k", 1.0)),
        TablePanel(
            "ℓ2-gradient noise", "σ", "(B + σ)√(d/m)", over("noise", 0, 0.5, 1, 2, 4), promised=("σ, from 1 on", 1.0)
        ),
        TablePanel("gradient clipping", "‖g‖/s", "B√(d/m)", over("clip", 1, 4, 16), log="xy"),
        TablePanel(
            "DP-SGD of the table",
            "‖g‖/s",
            of_table,
            over("dp-sgd", 1, 2, 4),
            promised=("‖g‖/s under DP-SGD", 1.0),
            log="xy",
        ),
        TablePanel(
            "dropout",
            "keep probability p",
            "B√(d/(mp))",
            over("dropout", 0.1, 0.3, 1.0),
            promised=("1/p", 0.5),
            log="xy",
        ),
        TablePanel("pruning", "fraction kept", "not applied", over("prune", 0.01, 0.1, 0.5, 1.0), log="xy"),
        TablePanel("DP-SGD, per sample", "σC, on the sum", "none given", over("per-sample", 0, 1, 3)),
        TablePanel("Laplace noise", "scale", "none given", over("laplace", 0, 1, 3)),
    )


def _measured(
    context: Context, asked: Mapping[tuple[str, TableCell], tuple[TableCell, int]]
) -> dict[tuple[str, TableCell], np.ndarray]:
    """Errors, (networks,), of every (attack, …) in the setting and on as many networks as are asked for."""
    effort = context.pick("restarts and iterations of inversion", tiny=(1, 40), quick=(3, 100), paper=(8, 400))
    names, jobs = {}, {}
    for key, (setting, networks) in asked.items():
        attack = key[0]
        name = f"{attack}-{setting.defence}-{setting.strength:g}-{setting.batch}-{setting.inputs}-{setting.neurons}"
        seeds = [kernels.subseed(context.seed, kernels.Stream.TABLE1_NETWORKS, row=i) for i in range(networks)]
        names[key], jobs[name] = name, functools.partial(_errors, attack, setting, seeds, effort)
    pieces = context.finish("defences", jobs)
    return {key: np.array(pieces[name]["errors"]) for key, name in names.items()}


def _errors(attack: str, setting: TableCell, seeds: list[int], effort: tuple[int, int]) -> dict[str, Any]:
    import torch  # noqa: F401  # before the limit on its threads

    with one_thread():
        return {"errors": [attacked(attack, setting, seed, effort) for seed in seeds]}


def _panel(
    sweep: TablePanel,
    errors: dict[TableCell, np.ndarray],
    inverted: dict[TableCell, np.ndarray],
    limits: dict[TableCell, np.ndarray],
    constant: float,
) -> Panel:
    series = []
    bound = [constant * s.factor for s in sweep.settings]
    if all(map(math.isfinite, bound)):
        name = "bound of the table, its constant fitted once without defence"
        series.append(Series.of(name, "bound", sweep.x, bound))
    at = [i for i, s in enumerate(sweep.settings) if s in limits]
    if at:
        least = [np.median(limits[sweep.settings[i]]) for i in at]
        name = "Cramér–Rao: least error of an unbiased attacker"
        series.append(Series.of(name, "orthogonal", sweep.x[at], least))
    for name, role, measured in (("tensor method", "attack", errors), ("gradient inversion", "attack-2", inverted)):
        measured_at = [i for i, s in enumerate(sweep.settings) if s in measured and s.defence != "none"]
        if measured is errors:
            measured_at = list(range(len(sweep.settings)))
        # A point of another network in a sweep over sizes says nothing.
        if not measured_at:
            continue
        # Inversion can be exact to 1e-16; a floor (`_NOTES`) keeps the axes readable.
        values = [np.maximum(measured[sweep.settings[i]], 1e-4) for i in measured_at]
        middle, low, high = ([of(v) for v in values] for of in (np.median, np.min, np.max))
        series.append(Series.of(name, role, sweep.x[measured_at], middle, low, high))
    return Panel.of((f"{sweep.title}: {sweep.formula}", sweep.over, "error of the inputs"), *series, log=sweep.log)


def _judged(errors: dict[TableCell, np.ndarray], base: TableCell) -> list[TableCell]:
    """Defended settings that their bound can be wrong about: the constant is fitted to those without defence, and
    neither these nor what gives their answer can be above it."""
    bounded = [s for s in errors if s.defence != "none" and math.isfinite(s.factor)]
    return [s for s in bounded if s.factor < base.factor or not np.allclose(errors[s], errors[base], rtol=1e-3, atol=0)]


def _stated(
    sweeps: Sequence[TablePanel],
    errors: dict[TableCell, np.ndarray],
    inverted: dict[TableCell, np.ndarray],
    constant: float,
    judged: Sequence[TableCell],
) -> tuple[list[Stated], list[str], list[str]]:
    """The matrix, the judged settings above their bound, and the defences that go against it."""
    stated, above, backwards = [], [], []
    for sweep in sweeps:
        for setting, x in zip(sweep.settings, sweep.x, strict=True):
            measured, bound = errors[setting], constant * setting.factor
            comment = f"bound {bound:.3g}" if math.isfinite(bound) else "no bound"
            if setting in inverted and sweep.settings[0].defence != "none":
                comment += f"; gradient inversion {float(np.median(inverted[setting])):.2g}"
            what = f"{sweep.title}, {sweep.over} = {x:g}: median [range]"
            middle, ends = float(np.median(measured)), (float(measured.min()), float(measured.max()))
            stated.append(Stated(what, sweep.formula, middle, interval=ends, kind="estimate", comment=comment))
            if setting in judged and np.median(measured) > bound * (1 + 1e-9):
                above.append(f"{sweep.title} at {x:g}")
        factors = np.array([s.factor for s in sweep.settings])
        medians = np.array([np.median(errors[s]) for s in sweep.settings])
        if np.isfinite(factors).all() and factors[0] != factors[-1]:
            if (medians[-1] - medians[0]) * (factors[-1] - factors[0]) <= 0:
                backwards.append(f"{sweep.title} over {sweep.over}")
        elif np.isfinite(factors).all() and medians.max() > 1.2 * medians.min():
            backwards.append(f"{sweep.title} (its bound does not move, the error does)")
    return stated, above, backwards
