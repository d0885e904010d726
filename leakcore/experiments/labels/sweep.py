"""Bounds along one parameter, on networks trained with each value of it and on the initial networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.labels import notes
from leakcore.experiments.labels import study as _study
from leakcore.experiments.labels.study import LabelData, Leak
from leakcore.experiments.result import Panel, Series

_CLIPPED_BY = {"layer": "this layer", "joint": "the joint norm"}


@dataclasses.dataclass(frozen=True, eq=False)
class LabelSweep:
    """Bounds by setting (noise multiplier, clipping norm): on networks trained with it by scope; on initial ones,
    clipped by the layer."""

    study: LabelData
    settings: tuple[tuple[float, float], ...]
    trained: dict[tuple[float, float], dict[str, Leak]]
    initial: dict[tuple[float, float], Leak]

    def ratio(self, scope: str) -> list[float]:
        """Last layer over second last, trained, for each setting."""
        return [self.trained[s][scope].ratio for s in self.settings]


def sweep(context: Context, study: LabelData, settings: Sequence[tuple[float, float]]) -> LabelSweep:
    """Train and bound at every setting."""
    start = _study.trained(context, study, None)
    networks = _study.all_trained(context, study, settings)
    asked = {(setting, scope): (networks[setting], *setting, scope) for setting in settings for scope in _study.SCOPES}
    leaks = _study.all_leaks(context, study, asked)
    trained = {setting: {scope: leaks[setting, scope] for scope in _study.SCOPES} for setting in settings}
    initial = _study.all_leaks(context, study, {setting: (start, *setting, "layer") for setting in settings})
    return LabelSweep(study, tuple(settings), trained, initial)


def panel(
    one: LabelSweep, x: Callable[[tuple[float, float]], float], x_label: str, upper: Callable[[float], float]
) -> Panel:
    """One data set: both layers, trained (points) and initial (lines), under the upper bound of one step."""
    at = [x(s) for s in one.settings]
    layers, start = (
        [one.trained[s]["layer"] for s in one.settings],
        [one.initial[s] for s in one.settings],
    )
    lines = [
        Series(name=f"{name}, initial network", role=role, x=np.array(at), y=np.array([v.mean() for v in values]))
        for name, role, values in (
            ("last layer", "orthogonal", [leak.last for leak in start]),
            ("second last layer", "simplex", [leak.second_median for leak in start]),
        )
    ]
    return Panel(
        title=notes.TITLES[one.study.name],
        x_label=x_label,
        y_label="label-ε",
        series=(
            Series(
                name="upper bound of one step",
                role="bound",
                x=np.array(at),
                y=np.array([upper(s[0]) for s in one.settings]),
            ),
            notes.accountant(one.study, at, [s[0] for s in one.settings]),
            notes.points("last layer, trained", "attack", at, [leak.last for leak in layers]),
            notes.points("second last layer, trained", "attack-2", at, [leak.second_median for leak in layers]),
            *lines,
        ),
        log_x=True,
        log_y=True,
        y_range=None,
    )


def ratios(sweeps: list[LabelSweep], x: Callable[[tuple[float, float]], float], x_label: str) -> Panel:
    """Last over second last layer on trained networks, by data set and clipping scope."""
    looks = {("cancer", "layer"): "attack-3", ("cancer", "joint"): "chance", ("bank", "layer"): "rdp",
             ("bank", "joint"): "baseline"}  # fmt: skip
    return Panel(
        title="last ÷ second last layer, trained",
        x_label=x_label,
        y_label="ratio of mean bounds",
        series=tuple(
            Series(
                name=f"{notes.TITLES[f.study.name]}, clipped by {_CLIPPED_BY[scope]}",
                role=looks[f.study.name, scope],
                x=np.array([x(s) for s in f.settings]),
                y=np.array(f.ratio(scope)),
            )
            for f in sweeps
            for scope in _study.SCOPES
        ),
        log_x=True,
        log_y=True,
        y_range=None,
    )  # fmt: skip
