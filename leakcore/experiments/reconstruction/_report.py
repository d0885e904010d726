"""What every figure's result shares."""

from __future__ import annotations

import dataclasses
from typing import Any

from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult, Panel, Pictures, Stated
from leakcore.experiments.reconstruction import _mechanism
from leakcore.experiments.reconstruction._data import Split
from leakcore.experiments.reconstruction._games import Setting

_STEP = (
    "learning rate × C is fixed (settings, step) where the paper sweeps the learning rate per ε; success is "
    "averaged over random targets, "
    "priors and initial parameters, with 95% Clopper–Pearson intervals"
)


def report(
    experiment: Experiment,
    context: Context,
    *,
    conclusion: str,
    stated: list[Stated],
    panels: list[Panel],
    splits: list[Split],
    setting: Setting,
    runs: int,
    pictures: list[Pictures] | None = None,
    notes: tuple[str, ...] = (),
    **settings: Any,
) -> ExperimentResult:
    """The result with the shared notes and settings."""
    return ExperimentResult(
        name=experiment.name,
        title=experiment.title,
        statement=experiment.statement,
        scale=context.scale,
        seed=context.seed,
        conclusion=conclusion,
        stated=tuple(stated),
        panels=tuple(panels),
        pictures=tuple(pictures or ()),
        data=tuple(dict.fromkeys(s.described for s in splits)),
        settings={**dataclasses.asdict(setting), "runs": runs, "delta": _mechanism.DELTA, **settings},
        notes=(*notes, _mechanism.CALIBRATED, _STEP),
    )
