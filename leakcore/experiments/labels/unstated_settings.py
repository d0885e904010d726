"""Figures 3, 4 and 5, whose text states neither the noise nor the clipping norm: a sweep over both."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore import accounting, bounds, kernels
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated, TextTable
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.labels import common

SIGMA, CLIP = 0.5, 1.0
"""Of the paper's other figures: the noise multiplier of its Experiment II, the clipping norm of its Experiment I."""
_ROLES = ("attack-2", "attack-3", "attack-4", "attack-5", "attack-6", "attack-7")


@dataclasses.dataclass(frozen=True, eq=False)
class GridCell:
    """Networks trained with σ and C, and what the last layer's gradient proves of every row and batch.

    parameters: (networks, parameters). rows: bounds of all rows that are determined, at least 0, of all networks.
    undetermined: the share of the others. batches: (networks, batches), the largest bound of each batch.
    """

    sigma: float
    clip: float
    parameters: np.ndarray
    rows: np.ndarray
    undetermined: float
    batches: np.ndarray

    @property
    def drawn(self) -> bool:
        """Whether it has the paper's other figures' σ and C."""
        return (self.sigma, self.clip) == (SIGMA, CLIP)

    def __str__(self) -> str:
        return f"σ = {self.sigma:g}, C = {self.clip:g}"


def _sigmas(context: Context) -> tuple[float, ...]:
    """Rising; they hold `SIGMA`."""
    return context.pick(
        tiny=(0.5, 2.0), quick=(0.3, 0.5, 1.0, 2.0, 4.0), paper=(0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
    )


def _clips(context: Context) -> tuple[float, ...]:
    """Rising; they hold `CLIP`."""
    return context.pick(tiny=(1.0,), quick=(0.1, 1.0, 10.0, 100.0), paper=(0.1, 0.3, 1.0, 3.0, 10.0, 100.0))


def _sweep(context: Context, study: common.LabelData) -> list[GridCell]:
    """Train and bound at every σ and C."""
    context.departs("noise multiplier σ and clipping norm C", "not stated", "a sweep")
    asked = [(sigma, clip) for clip in _clips(context) for sigma in _sigmas(context)]
    networks = common.all_trained(context, study, asked)
    return [_cell(study, networks[at], *at) for at in asked]


def _report(
    context: Context, result: ExperimentResult, studies: list[common.LabelData], **settings: int
) -> ExperimentResult:
    swept = {"noise_multipliers": list(_sigmas(context)), "clipping_norms": list(_clips(context))}
    return common.report(context, result, studies=studies, **swept, **settings)


def _drawn(cells: list[GridCell]) -> GridCell:
    """The cell with the paper's other figures' σ and C."""
    return next(cell for cell in cells if cell.drawn)


def _cell(study: common.LabelData, parameters: np.ndarray, sigma: float, clip: float) -> GridCell:
    rows, batches, determined = [], [], []
    for network in parameters:
        observed = common.observe(network, study.features)
        result = common.label_bound(study, observed, observed.last, sigma, clip, "layer")
        rows.append(np.maximum(result.per_row[result.identifiable], 0.0))
        batches.append(np.asarray(result.value))
        determined.append(float(result.identifiable.mean()))
    return GridCell(sigma, clip, parameters, np.concatenate(rows), 1.0 - float(np.mean(determined)), np.array(batches))


def _lines(
    study: common.LabelData,
    cells: list[GridCell],
    values: list[float],
    y_label: str,
    printed: dict[str, float],
    *,
    log: str = "x",
) -> Panel:
    """One value of each cell against σ, a line for each C, and the paper's values."""
    norms = sorted({cell.clip for cell in cells})
    x = np.array(sorted({cell.sigma for cell in cells}))
    by_norm = [
        Series.of(f"C = {clip:g}", role, x, [v for cell, v in zip(cells, values, strict=True) if cell.clip == clip])
        for clip, role in zip(norms, _ROLES, strict=False)
    ]
    marks = [
        Series.of(name, role, x[[0, -1]], value)
        for (name, value), role in zip(printed.items(), ("chance", "baseline"), strict=False)
    ]
    return Panel.of((study.title, "noise multiplier σ", y_label), *by_norm, *marks, log=log)


_BINS = 24
_WITHIN = 0.2
_SHAPE = {
    "deviation ÷ mean": ("deviation ÷ mean", 1.0),
    "median ÷ mean": ("median ÷ mean", math.log(2)),
    "share above three means": ("the share above three means", math.exp(-3)),
}
"""Three numbers: how a sentence names each, and its value for an exponential variable."""


def fig3(context: Context) -> ExperimentResult:
    """The paper draws Cervical Cancer and states neither σ nor C: the shape at every σ and C, histograms at one."""
    studies = common.studies(context)
    swept = {study.name: _sweep(context, study) for study in studies}
    shapes = {name: [_shape(cell.rows) for cell in cells] for name, cells in swept.items()}
    panels, stated = [], []
    for study in studies:
        title, cells = study.title, swept[study.name]
        drawn = _drawn(cells)
        panels.append(_histogram(f"{title}, {drawn}", drawn.rows))
        stated.append(Stated(f"{title}, {drawn}: mean of the bounds", "drawn", float(drawn.rows.mean())))
        what = f"{title}, {drawn}: share that the system does not determine"
        stated.append(Stated(what, "not said", drawn.undetermined))
        for cell, shape in zip(cells, shapes[study.name], strict=True):
            stated += [
                Stated(f"{title}, {cell}: {what}", f"{_SHAPE[what][1]:.3f} (exponential)", value)
                for what, value in shape.items()
            ]
    deviations = {name: [shape["deviation ÷ mean"] for shape in of] for name, of in shapes.items()}
    panels += [
        _lines(s, swept[s.name], deviations[s.name], "deviation ÷ mean of the bounds", {"an exponential's": 1.0})
        for s in studies
    ]
    result = context.result(
        panels=panels,
        stated=stated,
        tables=[_fits_table(swept, shapes)],
        checks=_fits_checks(shapes),
        conclusion="Deviation over mean is "
        + ", ".join(f"{min(of):.2f} to {max(of):.2f} ({common.TITLES[name]})" for name, of in deviations.items())
        + "; an exponential's is 1. Samples that the linear system does not determine have no bound and are left out.",
    )
    return _report(context, result, studies)


def _shape(rows: np.ndarray) -> dict[str, float]:
    mean = float(rows.mean())
    values = (float(rows.std()) / mean, float(np.median(rows)) / mean, float((rows > 3 * mean).mean()))
    return dict(zip(_SHAPE, values, strict=True))


def _fits(shape: dict[str, float]) -> list[bool]:
    return [abs(shape[what] / wanted - 1) <= _WITHIN for what, (_, wanted) in _SHAPE.items()]


def _fits_checks(shapes: dict[str, list[dict[str, float]]]) -> list[Check]:
    cancer = zip(*map(_fits, shapes["cancer"]), strict=True)
    drawn = [
        Check.of(f"on Cervical Cancer {named} is an exponential's, within a fifth", fits)
        for (named, _), fits in zip(_SHAPE.values(), cancer, strict=True)
    ]
    bank = [all(_fits(shape)) for shape in shapes["bank"]]
    return [*drawn, Check.size("on Bank Marketing, which the paper does not draw, all three are", bank)]


def _fits_table(swept: dict[str, list[GridCell]], shapes: dict[str, list[dict[str, float]]]) -> TextTable:
    norms = sorted({cell.clip for cells in swept.values() for cell in cells})
    rows = []
    for name, cells in swept.items():
        counted = {(c.sigma, c.clip): sum(_fits(shape)) for c, shape in zip(cells, shapes[name], strict=True)}
        for sigma in sorted({c.sigma for c in cells}):
            counts = (f"{counted[sigma, clip]}{' †' if (sigma, clip) == (SIGMA, CLIP) else ''}" for clip in norms)
            rows.append((common.TITLES[name], f"{sigma:g}", *counts))
    return TextTable(
        "How many of the three numbers are an exponential's (†: σ and C of the paper's other figures)",
        ("data", "σ", *(f"C = {clip:g}" for clip in norms)),
        tuple(rows),
    )


def _histogram(title: str, rows: np.ndarray) -> Panel:
    mean = float(rows.mean())
    edges = np.linspace(0.0, float(rows.max()), _BINS + 1)
    expected = len(rows) * (np.exp(-edges[:-1] / mean) - np.exp(-edges[1:] / mean))
    return Panel.of(
        (title, "lower bound of the sample", "samples of all networks"),
        common.steps("samples", "bound", edges, np.histogram(rows, edges)[0].astype(float)),
        Series.of("exponential of the same mean", "orthogonal", (edges[1:] + edges[:-1]) / 2, expected),
    )


_LOOKS = {"trained": ("bound", "simplex"), "initial": ("rdp", "baseline")}
_EDGES = np.arange(-8.0, 1.01, 0.25)
"""Edges of the bins, of the logarithm to base 10."""


def fig4(context: Context) -> ExperimentResult:
    """|entries| of every sample's gradient, on the initial network and on one trained with every σ and C of a sweep."""
    studies = common.studies(context)
    panels, stated, ratios = [], [], []
    for study in studies:
        title, cells = study.title, _sweep(context, study)
        networks = {"initial": common.trained(context, study, None)[0]}
        networks |= {f"trained, {cell}": cell.parameters[0] for cell in cells}
        drawn = {"initial": "initial", f"trained, {_drawn(cells)}": "trained"}
        outlines = []
        of_study = []
        for state, parameters in networks.items():
            last, second, zeros = _magnitudes(context, study, parameters)
            of_study.append(float(np.median(last) / np.median(second)))
            stated.append(Stated(f"{title}, {state}: last ÷ second last, medians", "much larger than 1", of_study[-1]))
            if state not in drawn:
                continue
            for name, role, v in zip(("last layer", "second last"), _LOOKS[drawn[state]], (last, second), strict=True):
                shares = np.histogram(np.log10(v), _EDGES)[0] / len(v)
                legend = f"{name.removesuffix(' layer')} layer, {drawn[state]}"
                outlines.append(common.steps(legend, role, _EDGES, shares))
                stated.append(Stated(f"{title}, {state}: median of the {name}", "drawn", float(np.median(v))))
            what, why = "entries of the second last that are 0", "a ReLU that is off makes a whole column 0"
            stated.append(Stated(f"{title}, {state}: {what}", "not said", zeros, comment=why))
        axes = ("log₁₀ |entry of a sample's gradient|", "share of the entries that are not 0")
        panels.append(Panel.of((f"{title}, {_drawn(cells)}", *axes), *outlines))
        panels.append(_lines(study, cells, of_study[1:], "last ÷ second last, medians", {"equal": 1.0}, log="xy"))
        ratios += of_study
    result = context.result(
        panels=panels,
        stated=stated,
        checks=[
            Check.of("the last layer's median entry is the larger", [r > 1 for r in ratios]),
            Check.size("it is more than 3 times as large", [r > 3 for r in ratios]),
        ],
        conclusion=f"The median entry of the last layer's gradient is {min(ratios):.1f} to {max(ratios):.0f} times as "
        "large as the second last layer's (entries that are 0 left out), whose gradient has the last layer's weights "
        "as a factor; these start uniform within ±1/√200.",
    )
    return _report(context, result, studies)


def _magnitudes(
    context: Context, study: common.LabelData, parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """|entries| that are not 0 of both layers' gradients, sample by sample, and the second's share of zeros."""
    observed = common.observe(parameters, study.features[:15])
    e = np.abs(observed.probs - study.labels[:15])[..., None]
    last = np.abs(observed.last * e).reshape(-1)
    some = common.neurons(context)[:: max(1, len(common.neurons(context)) // 20)]
    second = np.abs(observed.second_last(some) * e).reshape(-1)
    return last[last > 0], second[second > 0], float((second == 0).mean())


_PRINTED = {"cancer": (1.11, "1.11", "1.69"), "bank": (2.76, "2.76 (0.033 to 0.091)", "2.12")}
"""Growth from one batch to all, as it is printed, and what the paper's extrapolation makes of it."""
_ONE, _ALL, _UPPER = 0.033, 0.091, 282.24
"""Bank Marketing: bounds of one batch and of all, and the upper bound."""
_MOST_STEPS = 2**17


@dataclasses.dataclass(frozen=True, eq=False)
class _Growth:
    """The largest bound of the first m batches, over orders and networks: mean, and 5th to 95th percentile."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def factor(self) -> float:
        return float(self.mean[-1] / self.mean[0])


def fig5(context: Context) -> ExperimentResult:
    """The paper states neither σ nor C: the growth at every σ and C, curves at one, and where its numbers come out."""
    orders = context.pick("orders of the batches", tiny=20, quick=400, paper=4000)
    studies = common.studies(context)
    swept = {study.name: _sweep(context, study) for study in studies}
    growths = {name: [_growth(cell.batches, orders, context.seed) for cell in cells] for name, cells in swept.items()}
    panels, stated = [], []
    for study in studies:
        drawn = _drawn(swept[study.name])
        growth = growths[study.name][swept[study.name].index(drawn)]
        panels.append(_against_batches(study, drawn, growth))
        stated += _numbers(study, drawn, growth)
        stated += [
            Stated(f"{study.title}, {cell}: all ÷ one", _PRINTED[study.name][1], one.factor)
            for cell, one in zip(swept[study.name], growths[study.name], strict=True)
        ]
    factors = {name: [growth.factor for growth in of] for name, of in growths.items()}
    harmonic = [f < _rule(s, 1.0, s.batches, "harmonic") for s in studies for f in factors[s.name]]
    for study in studies:
        printed = {"printed": _PRINTED[study.name][0], "logarithmic rule": _log_rule(study)}
        panels.append(_lines(study, swept[study.name], factors[study.name], "bound of all batches ÷ one", printed))
    singles = [float(growth.mean[0]) for growth in growths["bank"]]
    panels.append(_lines(studies[-1], swept["bank"], singles, "bound of one batch", {"printed": _ONE}, log="xy"))
    result = context.result(
        panels=panels,
        stated=stated,
        tables=[_where_printed(studies[-1], swept["bank"], growths["bank"])],
        checks=_checks(studies, growths),
        conclusion="The bound of all batches is "
        + ", ".join(
            f"{min(of):.2f} to {max(of):.2f} times that of one on {common.TITLES[name]} (printed: {_PRINTED[name][0]})"
            for name, of in factors.items()
        )
        + f". The harmonic rule, which is exact for exponential bounds, predicts more growth than we measure in "
        f"{sum(harmonic)} of {len(harmonic)} settings (see labels-fig3). Curves are means over random orders and "
        "networks, with the 5th to 95th percentile.",
    )
    return _report(context, result, studies, orders=orders)


def _growth(values: np.ndarray, orders: int, seed: int) -> _Growth:
    """values: (networks, batches)."""
    keys = kernels.uniform((orders, values.shape[1]), seed=seed, purpose=kernels.Stream.BOUND_GROWTH)
    order = np.argsort(keys, axis=1)
    curves = np.maximum.accumulate(values[:, order], axis=2)
    low, high = np.percentile(curves.reshape(-1, values.shape[1]), (5, 95), axis=0)
    return _Growth(curves.mean(axis=(0, 1)), low, high)


def _log_rule(study: common.LabelData) -> float:
    return _rule(study, 1.0, study.batches, "log")


def _rule(study: common.LabelData, one: float, batches: int, rule: str) -> float:
    return float(bounds.extrapolate_label_epsilon(one, batches, common.BATCH, rule=rule).value)


def _numbers(study: common.LabelData, cell: GridCell, growth: _Growth) -> list[Stated]:
    what, bank = f"{study.title}, {cell}", study.name == "bank"
    harmonic = _rule(study, 1.0, study.batches, "harmonic")
    return [
        Stated(f"{what}: bound of one batch, mean", str(_ONE) if bank else "drawn", float(growth.mean[0])),
        Stated(f"{what}: bound of all {study.batches} batches", str(_ALL) if bank else "drawn", float(growth.mean[-1])),
        Stated(f"{what}: all ÷ one, logarithmic rule", _PRINTED[study.name][2], _log_rule(study)),
        Stated(f"{what}: all ÷ one, harmonic rule", "–", harmonic, comment="exact for independent exponential bounds"),
        common.spent(what, study, cell.sigma, str(_UPPER) if bank else "drawn", common.NOT_COMPARED),
    ]


def _checks(studies: list[common.LabelData], growths: dict[str, list[_Growth]]) -> list[Check]:
    slow = [g.factor < 1 + math.log(s.batches) for s in studies for g in growths[s.name]]
    ruled = [abs(g.factor / _log_rule(s) - 1) <= 0.25 for s in studies for g in growths[s.name]]
    printed = {name: [abs(g.factor / _PRINTED[name][0] - 1) <= 0.1 for g in of] for name, of in growths.items()}
    return [
        Check.of("the bound grows more slowly than 1 + log(batches)", slow),
        Check.size("it grows as the logarithmic rule says, within a quarter", ruled),
        *(
            Check.size(f"on {common.TITLES[name]} it grows by the printed {_PRINTED[name][0]}, within a tenth", near)
            for name, near in printed.items()
        ),
    ]


def _where_printed(study: common.LabelData, cells: list[GridCell], growths: list[_Growth]) -> TextTable:
    """For each σ the largest C with which one batch proves what is printed, and what else holds there."""
    rows = []
    for sigma in sorted({cell.sigma for cell in cells}):
        at = sorted((c.clip, g.mean[0], g.mean[-1]) for c, g in zip(cells, growths, strict=True) if c.sigma == sigma)
        clips, one, whole = np.log(np.array(at)).T
        crossed = np.flatnonzero((one[:-1] >= math.log(_ONE)) & (one[1:] < math.log(_ONE)))
        place = proved = "not in the sweep"
        if len(crossed):
            i = int(crossed[-1])
            share = (one[i] - math.log(_ONE)) / (one[i] - one[i + 1])
            place = f"{math.exp(clips[i] + share * (clips[i + 1] - clips[i])):.2g}"
            proved = f"{math.exp(whole[i] + share * (whole[i + 1] - whole[i])):.3f}"
        rows.append((f"{sigma:g}", place, proved, f"{study.epsilon(sigma):.3g}", _epochs(study, sigma)))
    accounted = f"accountant's ε of {study.epochs} epochs"
    return TextTable(
        f"Bank Marketing: with which C one batch proves the printed {_ONE} (between two C of the sweep, along a "
        "straight line of logarithms), and how long a training has the printed upper bound",
        ("σ", "C", f"all batches there (printed: {_ALL})", accounted, f"epochs for the printed {_UPPER}"),
        tuple(rows),
    )


def _epochs(study: common.LabelData, sigma: float) -> str:
    """After how many epochs the accountant's ε is the printed upper bound."""
    epochs = 1
    while epochs * study.batches <= _MOST_STEPS:
        spent = accounting.epsilon(sigma, 1 / study.batches, epochs * study.batches, delta=common.DELTA)
        if float(spent.value) >= _UPPER:
            return f"{epochs // 2} to {epochs}" if epochs > 1 else "less than 1"
        epochs *= 2
    return f"more than {epochs // 2:,}"


def _against_batches(study: common.LabelData, cell: GridCell, growth: _Growth) -> Panel:
    count = np.arange(1, study.batches + 1)
    rules = {r: [_rule(study, growth.mean[0], int(m), r) for m in count] for r in ("harmonic", "log")}
    at = np.unique(np.geomspace(1, study.batches, 9).round().astype(int))
    return Panel.of(
        (f"{study.title}, {cell}", "number of batches", "label-ε, largest of the batches"),
        Series.of("extrapolated, logarithmic (paper)", "rdp", count, rules["log"]),
        Series.of("extrapolated, harmonic (exact if exponential)", "bound", count, rules["harmonic"]),
        Series.of("measured", "attack", at, growth.mean[at - 1], low=growth.low[at - 1], high=growth.high[at - 1]),
        common.accountant(study, [1, study.batches], [cell.sigma, cell.sigma]),
        log="xy",
    )
