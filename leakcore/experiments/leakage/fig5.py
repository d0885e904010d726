"""Figure 5: latent V-information of every layer, compared with its label-permutation null."""

from __future__ import annotations

import math

import numpy as np

from leakcore import leakage
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import fine_classes, latent, notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated
from leakcore.experiments.verdict import Check

_FAMILIES = {"magnitudes": "attack", "random-forest": "attack-2", "mlp": "attack-3", "logistic": "orthogonal"}


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Logistic regression, random forest and MLP on at least 200 rows of either side."""
    rows = context.pick("rows", tiny=15, quick=200, paper=600)
    shuffles = context.pick("permutations", tiny=1, quick=4, paper=50)
    families = context.pick(
        "families of predictors",
        tiny=("magnitudes",),
        quick=("magnitudes", "random-forest"),
        paper=("magnitudes", "random-forest", "mlp", "logistic"),
    )
    panels, stated, data, peaks, luck = [], [], [], [], []
    bank: dict[bool, list[float]] = {True: [], False: []}
    listed = latent.jobs(context)
    for number, (title, model, study, attribute, before) in enumerate(listed):
        layers = _study.sets(model, study, attribute, rows=rows, seed=context.seed, columns=2000)
        series, peaks_before, highest = [], [], -math.inf
        for family in families:
            kind = leakage.RandomForest(40) if family == "random-forest" and context.scale != "paper" else family
            information = layers.latent(context, shuffles, family=kind)
            series.append(notes.curve(family, _FAMILIES[family], information.value, *information.held_out_interval))
            if family == families[0]:
                series.append(notes.curve("magnitudes, labels permuted", "baseline", information.null_mean))
            above = np.asarray(information.above_null)
            best = int(np.argmax(above))
            highest = max(highest, float(above[best]))
            peaks_before.append(best == before and before > 0)
            stated.append(
                Stated(
                    what=f"{title}, {attribute}, {family}: largest",
                    paper=f"layer {before + 1}" if before else "–",
                    ours=float(above[best]),
                    comment=f"above its null, at layer {best + 1}; "
                    f"{information.set_sizes[0]} rows a side, log 2 = 0.693 at most",
                )
            )
        if before:
            peaks += peaks_before
            luck.append(1 / len(above))
        else:
            bank[study.described.endswith("kept")].append(highest)
        panels.append(
            Panel(
                title=f"{title}: {attribute}" if before else title,
                x_label="layer",
                y_label="V-information, nats",
                series=tuple(series),
                y_range=None,
            )
        )
        data.append(study.described)
        context.progress("latent V-information", number + 1, len(listed))
    title, model, study, _, before = listed[0]
    panel, fine = fine_classes.measured(context, model, study, before, title)
    panels.append(panel)
    stated.append(fine)
    hits = sum(peaks)
    findings = Findings(
        panels=panels,
        stated=stated,
        checks=[
            Check(
                says="the first classifier layer is the highest above its null",
                holds=hits,
                cases=len(peaks),
                chance=float(np.mean(luck)),
            ),
        ],
        conclusion=f"The first classifier layer is highest above its null for {hits} of {len(peaks)} pairs of "
        f"attribute and family. Attributes of bank clients give at least {min(bank[True]):.2f} nats while their column "
        f"is among the inputs, and at most {max(bank[False]):.3f} without it. In {fine.ours:.0f} of "
        f"{len(panel.series[0].y)} superclasses the first classifier layer's 95% interval for the fine class lies "
        "above 0. Bars are 95% intervals over rows.",
        notes=(
            (
                "magnitudes: logistic regression on absolute values, for a target turns a gradient's signs, which a "
                "linear reader of the values cannot undo"
            ),
        ),
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=data,
        rows=rows,
        permutations=shuffles,
        families=families,
    )
