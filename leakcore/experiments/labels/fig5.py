"""Figure 5: the bound against the number of batches, compared with the extrapolation from one batch."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore import accounting, bounds, kernels
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.labels import grid, notes
from leakcore.experiments.labels import study as _study
from leakcore.experiments.labels.grid import GridCell
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated, TextTable
from leakcore.experiments.verdict import Check

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


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """The paper states neither σ nor C: the growth at every σ and C, curves at one, and where its numbers come out."""
    orders = context.pick("orders of the batches", tiny=20, quick=400, paper=4000)
    studies = _study.studies(context)
    swept = {study.name: grid.sweep(context, study) for study in studies}
    growths = {
        name: [_growth(cell.batches, orders, context.seed) for cell in cells] for name, cells in swept.items()
    }  # fmt: skip
    panels, stated = [], []
    for study in studies:
        drawn = grid.the_drawn(swept[study.name])
        growth = growths[study.name][swept[study.name].index(drawn)]
        panels.append(_against_batches(study, drawn, growth))
        stated += _numbers(study, drawn, growth)
        stated += [
            Stated(what=f"{notes.TITLES[study.name]}, {cell}: all ÷ one", paper=_PRINTED[study.name][1],
                   ours=one.factor)
            for cell, one in zip(swept[study.name], growths[study.name], strict=True)
        ]  # fmt: skip
    for study in studies:
        factors = [growth.factor for growth in growths[study.name]]
        printed = {"printed": _PRINTED[study.name][0], "logarithmic rule": _log_rule(study)}
        panels.append(grid.lines(study, swept[study.name], factors, "bound of all batches ÷ one", printed))
    singles = [float(growth.mean[0]) for growth in growths["bank"]]
    panels.append(grid.lines(studies[-1], swept["bank"], singles, "bound of one batch", {"printed": _ONE}, log_y=True))
    findings = Findings(
        panels=panels,
        stated=stated,
        tables=[_where_printed(studies[-1], swept["bank"], growths["bank"])],
        checks=_checks(studies, growths),
        conclusion=_conclusion(studies, swept, growths),
    )
    return notes.report(
        experiment,
        context,
        findings,
        studies=studies,
        noise_multipliers=list(grid.sigmas(context)),
        clipping_norms=list(grid.clips(context)),
        orders=orders,
    )


def _growth(values: np.ndarray, orders: int, seed: int) -> _Growth:
    """values: (networks, batches)."""
    keys = kernels.uniform((orders, values.shape[1]), seed=seed, purpose=kernels.Stream.BOUND_GROWTH)
    order = np.argsort(keys, axis=1)
    curves = np.maximum.accumulate(values[:, order], axis=2)
    low, high = np.percentile(curves.reshape(-1, values.shape[1]), (5, 95), axis=0)
    return _Growth(curves.mean(axis=(0, 1)), low, high)


def _log_rule(study: _study.LabelData) -> float:
    return _rule(study, 1.0, study.batches, "log")


def _rule(study: _study.LabelData, one: float, batches: int, rule: str) -> float:
    return float(bounds.extrapolate_label_epsilon(one, batches, _study.BATCH, rule=rule).value)


def _numbers(study: _study.LabelData, cell: GridCell, growth: _Growth) -> list[Stated]:
    what, bank = f"{notes.TITLES[study.name]}, {cell}", study.name == "bank"
    return [
        Stated(what=f"{what}: bound of one batch, mean", paper=str(_ONE) if bank else "drawn",
               ours=float(growth.mean[0])),
        Stated(what=f"{what}: bound of all {study.batches} batches", paper=str(_ALL) if bank else "drawn",
               ours=float(growth.mean[-1])),
        Stated(what=f"{what}: all ÷ one, logarithmic rule", paper=_PRINTED[study.name][2], ours=_log_rule(study)),
        Stated(what=f"{what}: all ÷ one, harmonic rule", paper="–", ours=_rule(study, 1.0, study.batches, "harmonic"),
               comment="exact for independent exponential bounds"),
        Stated(what=f"{what}: accountant's ε, add/remove, {study.steps} steps", paper=str(_UPPER) if bank else "drawn",
               ours=study.epsilon(cell.sigma), kind="upper", comment="not compared: another adjacency, and all steps"),
    ]  # fmt: skip


def _checks(studies: list[_study.LabelData], growths: dict[str, list[_Growth]]) -> list[Check]:
    slow = [g.factor < 1 + math.log(s.batches) for s in studies for g in growths[s.name]]
    ruled = [abs(g.factor / _log_rule(s) - 1) <= 0.25 for s in studies for g in growths[s.name]]
    printed = {name: [abs(g.factor / _PRINTED[name][0] - 1) <= 0.1 for g in of] for name, of in growths.items()}
    return [
        Check(says="the bound grows more slowly than 1 + log(batches)", holds=sum(slow), cases=len(slow)),
        Check(
            says="it grows as the logarithmic rule says, within a quarter",
            holds=sum(ruled),
            cases=len(ruled),
            about="size",
        ),
        *(
            Check(
                says=f"on {notes.TITLES[name]} it grows by the printed {_PRINTED[name][0]}, within a tenth",
                holds=sum(near),
                cases=len(near),
                about="size",
            )
            for name, near in printed.items()
        ),
    ]


def _conclusion(
    studies: list[_study.LabelData], swept: dict[str, list[GridCell]], growths: dict[str, list[_Growth]]
) -> str:
    said = ["The paper does not state the noise or the clipping norm of this figure: both are swept."]
    for study in studies:
        factors = [g.factor for g in growths[study.name]]
        nearest = int(np.argmin([abs(math.log(f / _PRINTED[study.name][0])) for f in factors]))
        said.append(
            f"On {notes.TITLES[study.name]} the bound of all {study.batches} batches is {min(factors):.2f} to "
            f"{max(factors):.2f} times that of one (printed: {_PRINTED[study.name][0]}; nearest is "
            f"{factors[nearest]:.2f} at {swept[study.name][nearest]}). The logarithmic rule says "
            f"{_log_rule(study):.2f}, the harmonic {_rule(study, 1.0, study.batches, 'harmonic'):.2f}."
        )
    harmonic = [
        g.factor < _rule(s, 1.0, s.batches, "harmonic") for s in studies for g in growths[s.name]
    ]  # fmt: skip
    said.append(
        f"The harmonic rule, which is exact for exponential bounds, predicts more growth than we measure in "
        f"{sum(harmonic)} of {len(harmonic)} settings (see labels-fig3). Curves are means over random orders and "
        "networks, with the 5th to 95th percentile."
    )
    return " ".join(said)


def _where_printed(study: _study.LabelData, cells: list[GridCell], growths: list[_Growth]) -> TextTable:
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
    return TextTable(
        title=f"Bank Marketing: with which C one batch proves the printed {_ONE} (between two C of the sweep, along a "
        "straight line of logarithms), and how long a training has the printed upper bound",
        head=(
            "σ", "C", f"all batches there (printed: {_ALL})", f"accountant's ε of {study.epochs} epochs",
            f"epochs for the printed {_UPPER}",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _epochs(study: _study.LabelData, sigma: float) -> str:
    """After how many epochs the accountant's ε is the printed upper bound."""
    epochs = 1
    while epochs * study.batches <= _MOST_STEPS:
        spent = accounting.epsilon(sigma, 1 / study.batches, epochs * study.batches, delta=_study.DELTA)
        if float(spent.value) >= _UPPER:
            return f"{epochs // 2} to {epochs}" if epochs > 1 else "less than 1"
        epochs *= 2
    return f"more than {epochs // 2:,}"


def _against_batches(study: _study.LabelData, cell: GridCell, growth: _Growth) -> Panel:
    count = np.arange(1, study.batches + 1)
    rules = {
        rule: np.array([_rule(study, growth.mean[0], int(m), rule) for m in count]) for rule in ("harmonic", "log")
    }
    at = np.unique(np.geomspace(1, study.batches, 9).round().astype(int))
    return Panel(
        title=f"{notes.TITLES[study.name]}, {cell}",
        x_label="number of batches",
        y_label="label-ε, largest of the batches",
        series=(
            Series(name="extrapolated, logarithmic (paper)", role="rdp", x=count, y=rules["log"]),
            Series(name="extrapolated, harmonic (exact if exponential)", role="bound", x=count, y=rules["harmonic"]),
            Series(name="measured", role="attack", x=at, y=growth.mean[at - 1], low=growth.low[at - 1],
                   high=growth.high[at - 1]),
            notes.accountant(study, [1, study.batches], [cell.sigma, cell.sigma]),
        ),
        log_x=True,
        log_y=True,
        y_range=None,
    )  # fmt: skip
