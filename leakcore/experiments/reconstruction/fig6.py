"""Figure 6: examples of reconstructions."""

from __future__ import annotations

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import both_image_sets, data, notes, oblivious
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Pictures, Stated
from leakcore.experiments.verdict import Check


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Targets in the first row, reconstructions below, a row per ε."""
    epsilons = both_image_sets.epsilons(context)
    targets = context.pick("targets", tiny=2, quick=8, paper=10)
    pictures, splits, stated, names = [], [], [], []
    for name, split, hidden, clip in both_image_sets.settings(context):
        splits.append(split)
        names.append(name)
        attacked = both_image_sets.attacked(context, split, hidden, clip, epsilons, targets)
        rows = [split.images[attacked[0].index], *(f.points for f in attacked)]
        pictures.append(
            Pictures(title=name, row_names=("target", *(f"ε = {e:g}" for e in epsilons)), column_names=(),
                     images=np.stack([data.as_picture(split, np.asarray(r)) for r in rows]))
        )  # fmt: skip
        for e, one in zip(epsilons, attacked, strict=True):
            stated.append(Stated(what=f"{name}, ε = {e:g}: mean squared error", paper="shown only",
                                 ours=float(one.error(split).mean())))  # fmt: skip
    errors = {s.what: float(s.ours or 0.0) for s in stated}
    falls = [errors[f"{n}, ε = {epsilons[-1]:g}: mean squared error"]
             < 0.5 * errors[f"{n}, ε = {epsilons[0]:g}: mean squared error"] for n in names]  # fmt: skip
    texts = [f"{n} " + ", ".join(f"{errors[f'{n}, ε = {e:g}: mean squared error']:.3f} (ε = {e:g})" for e in epsilons)
            for n in names]  # fmt: skip
    findings = Findings(
        checks=[
            Check(says="from the smallest ε to the largest the error halves", holds=sum(falls), cases=len(falls)),
        ],
        conclusion="Equation 1 reconstructs from a uniformly random start and knows the labels. Mean squared error: "
        + "; ".join(texts)
        + ". Two uniformly random images differ by 0.167 on average."
        + ("" if falls[-1] else " " + oblivious.FEATURES + "."),
        stated=stated,
        panels=[],
        pictures=pictures,
        notes=(oblivious.NOTE,),
    )
    return notes.report(
        experiment,
        context,
        findings,
        splits=splits,
        setting=both_image_sets.setting(epsilons[-1], hidden, clip),
        runs=targets,
        optimiser=oblivious.settings(context),
    )
