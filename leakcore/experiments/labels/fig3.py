"""Figure 3: the distribution of per-sample bounds, which the extrapolation takes to be exponential."""

from __future__ import annotations

import math

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.labels import grid, notes
from leakcore.experiments.labels import study as _study
from leakcore.experiments.labels.grid import GridCell
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated, TextTable
from leakcore.experiments.verdict import Check

_BINS = 24
_WITHIN = 0.2
_SHAPE = {"deviation ÷ mean": 1.0, "median ÷ mean": math.log(2), "share above three means": math.exp(-3)}
"""Of an exponential variable."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """The paper draws Cervical Cancer and states neither σ nor C: the shape at every σ and C, histograms at one."""
    studies = _study.studies(context)
    swept = {study.name: grid.sweep(context, study) for study in studies}
    shapes = {name: [_shape(cell.rows) for cell in cells] for name, cells in swept.items()}
    panels, stated = [], []
    for study in studies:
        title, cells = notes.TITLES[study.name], swept[study.name]
        drawn = grid.the_drawn(cells)
        panels.append(_histogram(f"{title}, {drawn}", drawn.rows))
        stated.append(
            Stated(what=f"{title}, {drawn}: mean of the bounds", paper="drawn", ours=float(drawn.rows.mean()))
        )
        stated.append(
            Stated(what=f"{title}, {drawn}: share that the system does not determine", paper="not said",
                   ours=drawn.undetermined)
        )  # fmt: skip
        for cell, shape in zip(cells, shapes[study.name], strict=True):
            stated += [
                Stated(what=f"{title}, {cell}: {what}", paper=f"{_SHAPE[what]:.3f} (exponential)", ours=value)
                for what, value in shape.items()
            ]
    for study in studies:
        values = [shape["deviation ÷ mean"] for shape in shapes[study.name]]
        panels.append(
            grid.lines(study, swept[study.name], values, "deviation ÷ mean of the bounds", {"an exponential's": 1.0})
        )
    findings = Findings(
        panels=panels,
        stated=stated,
        tables=[_table(swept, shapes)],
        checks=_checks(shapes),
        conclusion=_conclusion(swept, shapes),
    )
    return notes.report(
        experiment,
        context,
        findings,
        studies=studies,
        noise_multipliers=list(grid.sigmas(context)),
        clipping_norms=list(grid.clips(context)),
    )


def _shape(rows: np.ndarray) -> dict[str, float]:
    mean = float(rows.mean())
    values = (float(rows.std()) / mean, float(np.median(rows)) / mean, float((rows > 3 * mean).mean()))
    return dict(zip(_SHAPE, values, strict=True))


def _fits(shape: dict[str, float]) -> list[bool]:
    return [abs(shape[what] / wanted - 1) <= _WITHIN for what, wanted in _SHAPE.items()]


def _checks(shapes: dict[str, list[dict[str, float]]]) -> list[Check]:
    drawn = [
        Check(
            says=f"on Cervical Cancer {'the ' if what.startswith('share') else ''}{what} is an exponential's, within "
            "a fifth",
            holds=sum(_fits(shape)[i] for shape in shapes["cancer"]),
            cases=len(shapes["cancer"]),
        )
        for i, what in enumerate(_SHAPE)
    ]
    bank = shapes["bank"]
    other = Check(
        says="on Bank Marketing, which the paper does not draw, all three are",
        holds=sum(all(_fits(shape)) for shape in bank),
        cases=len(bank),
        about="size",
    )
    return [*drawn, other]


def _conclusion(swept: dict[str, list[GridCell]], shapes: dict[str, list[dict[str, float]]]) -> str:
    opening = (
        "Bounds of single samples from the last layer's gradient, after training. The paper does not state the noise "
        "or the clipping norm of this figure: both are swept."
    )
    said = [opening]
    for name, cells in swept.items():
        good = [str(cell) for cell, shape in zip(cells, shapes[name], strict=True) if all(_fits(shape))]
        where = f"at {len(good)} of {len(cells)} settings ({'; '.join(good)})" if good else "nowhere in the sweep"
        ratios = [shape["deviation ÷ mean"] for shape in shapes[name]]
        said.append(
            f"On {notes.TITLES[name]} all three numbers are an exponential's within a fifth {where}; deviation over "
            f"mean is {min(ratios):.2f} to {max(ratios):.2f}, an exponential's is 1."
        )
    said.append("Samples that the linear system does not determine have no bound and are left out.")
    return " ".join(said)


def _table(swept: dict[str, list[GridCell]], shapes: dict[str, list[dict[str, float]]]) -> TextTable:
    norms = sorted({cell.clip for cells in swept.values() for cell in cells})
    rows = []
    for name, cells in swept.items():
        counted = {(c.sigma, c.clip): sum(_fits(shape)) for c, shape in zip(cells, shapes[name], strict=True)}
        for sigma in sorted({c.sigma for c in cells}):
            counts = (
                f"{counted[sigma, clip]}{' †' if (sigma, clip) == (grid.SIGMA, grid.CLIP) else ''}" for clip in norms
            )
            rows.append((notes.TITLES[name], f"{sigma:g}", *counts))
    return TextTable(
        title="How many of the three numbers are an exponential's (†: σ and C of the paper's other figures)",
        head=("data", "σ", *(f"C = {clip:g}" for clip in norms)),
        rows=tuple(rows),
    )


def _histogram(title: str, rows: np.ndarray) -> Panel:
    mean = float(rows.mean())
    edges = np.linspace(0.0, float(rows.max()), _BINS + 1)
    expected = len(rows) * (np.exp(-edges[:-1] / mean) - np.exp(-edges[1:] / mean))
    return Panel(
        title=title, x_label="lower bound of the sample", y_label="samples of all networks",
        series=(
            notes.steps("samples", "bound", edges, np.histogram(rows, edges)[0].astype(float)),
            Series(name="exponential of the same mean", role="orthogonal", x=(edges[1:] + edges[:-1]) / 2, y=expected),
        ),
        y_range=None,
    )  # fmt: skip
