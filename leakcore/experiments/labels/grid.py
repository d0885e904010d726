"""A sweep over noise multiplier and clipping norm, for the figures whose text states neither."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.labels import notes
from leakcore.experiments.labels import study as _study
from leakcore.experiments.labels.network import observe
from leakcore.experiments.result import Panel, Series

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


def sigmas(context: Context) -> tuple[float, ...]:
    """Rising; they hold `SIGMA`."""
    return context.pick(
        tiny=(0.5, 2.0), quick=(0.3, 0.5, 1.0, 2.0, 4.0), paper=(0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
    )


def clips(context: Context) -> tuple[float, ...]:
    """Rising; they hold `CLIP`."""
    return context.pick(tiny=(1.0,), quick=(0.1, 1.0, 10.0, 100.0), paper=(0.1, 0.3, 1.0, 3.0, 10.0, 100.0))


def sweep(context: Context, study: _study.LabelData) -> list[GridCell]:
    """Train and bound at every σ and C."""
    context.departs("noise multiplier σ and clipping norm C", "not stated", "a sweep")
    asked = [(sigma, clip) for clip in clips(context) for sigma in sigmas(context)]
    networks = _study.all_trained(context, study, asked)
    return [_cell(study, networks[at], *at) for at in asked]


def the_drawn(cells: list[GridCell]) -> GridCell:
    """The cell with the paper's other figures' σ and C."""
    return next(cell for cell in cells if cell.drawn)


def _cell(study: _study.LabelData, parameters: np.ndarray, sigma: float, clip: float) -> GridCell:
    rows, batches, determined = [], [], []
    for network in parameters:
        observed = observe(network, study.features)
        result = _study.label_bound(study, observed, observed.last, sigma, clip, "layer")
        rows.append(np.maximum(result.per_row[result.identifiable], 0.0))
        batches.append(np.asarray(result.value))
        determined.append(float(result.identifiable.mean()))
    return GridCell(
        sigma, clip, parameters, np.concatenate(rows), 1.0 - float(np.mean(determined)), np.array(batches)
    )  # fmt: skip


def lines(
    study: _study.LabelData, cells: list[GridCell], values: list[float], y_label: str, printed: dict[str, float],
    *, log_y: bool = False,
) -> Panel:  # fmt: skip
    """One value of each cell against σ, a line for each C, and the paper's values."""
    norms = sorted({cell.clip for cell in cells})
    x = np.array(sorted({cell.sigma for cell in cells}))
    by_norm = [
        Series(
            name=f"C = {clip:g}", role=role, x=x,
            y=np.array([v for cell, v in zip(cells, values, strict=True) if cell.clip == clip]),
        )
        for clip, role in zip(norms, _ROLES, strict=False)
    ]  # fmt: skip
    marks = [
        Series(name=name, role=role, x=x[[0, -1]], y=np.full(2, value))
        for (name, value), role in zip(printed.items(), ("chance", "baseline"), strict=False)
    ]
    return Panel(
        title=notes.TITLES[study.name], x_label="noise multiplier σ", y_label=y_label, series=(*by_norm, *marks),
        log_x=True, log_y=log_y, y_range=None,
    )  # fmt: skip
