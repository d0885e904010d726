"""Figure 6: examples of reconstructions."""

from __future__ import annotations

import numpy as np

from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult, Pictures, Stated
from leakcore.experiments.reconstruction import _data, _oblivious, _pair, _report


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Targets in the first row, reconstructions below, a row per ε."""
    epsilons = context.pick(tiny=(100.0,), quick=(10.0, 1000.0), paper=(1.0, 10.0, 100.0, 1000.0, 10_000.0))
    targets = context.pick(tiny=2, quick=6, paper=10)
    pictures, splits, stated = [], [], []
    for name, split, hidden, clip in _pair.settings(context):
        splits.append(split)
        found = _pair.attacked(context, split, hidden, clip, epsilons, targets)
        rows = [split.images[found[0].index], *(f.points for f in found)]
        pictures.append(
            Pictures(title=name, row_names=("target", *(f"ε = {e:g}" for e in epsilons)), column_names=(),
                     images=np.stack([_data.as_picture(split, np.asarray(r)) for r in rows]))
        )  # fmt: skip
        for e, one in zip(epsilons, found, strict=True):
            stated.append(Stated(what=f"{name}, ε = {e:g}: mean squared error", paper="shown only",
                                 ours=float(one.error(split).mean())))  # fmt: skip
    return _report.report(
        experiment, context,
        conclusion="Reconstructions by Equation 1 from uniform starts, labels known; mean squared error "
        + ", ".join(f"{s.ours:.3f}" for s in stated) + " in the order of the rows.",
        stated=stated, panels=[], pictures=pictures, splits=splits, setting=_pair.setting(epsilons[-1], hidden, clip),
        runs=targets, optimiser=_oblivious.settings(context),
    )  # fmt: skip
