"""Figure 8: sensitivity in the 1-norm and in the ∞-norm."""

from __future__ import annotations

import numpy as np

from leakcore import leakage
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated
from leakcore.experiments.verdict import Check


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Exact norms: LeNet and AlexNet, at the paper's scale VGG9 as well."""
    study = _study.images(context)
    counts = context.pick(
        "images of each network",
        tiny={"lenet": 1},
        quick={"lenet": 4, "alexnet": 1},
        paper={"lenet": 40, "alexnet": 20, "vgg9": 20},
    )
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    roles = {"lenet": "attack", "alexnet": "attack-2", "vgg9": "attack-3"}
    curves: dict[str, list[object]] = {"1": [], "inf": []}
    stated, firsts, luck = [], [], []
    for number, (kind, count) in enumerate(counts.items()):
        x, y = _study.sample(study, count, context.seed)
        (model,) = _study.trained(context, study, kind, [epochs])
        if context.scale == "tiny":
            x, y = x[:1], y[:1]
        sensitivities = leakage.sensitivity(model, x, y, norms=("1", "inf"))
        for norm, name in (("1", "1-norm"), ("inf", "∞-norm")):
            values = sensitivities.means[norm]
            error = 1.96 * np.nan_to_num(sensitivities.standard_errors[norm])
            curves[norm].append(notes.curve(kind, roles[kind], values, values - error, values + error))
            best = int(np.argmax(values)) + 1
            luck.append(1 / len(values))
            firsts.append(best == 1)
            stated.append(
                Stated(what=f"{kind}, {name}: largest at layer", paper="1", ours=best, comment=notes.images(count))
            )
        context.progress("sensitivity", number + 1, len(counts))
    summary = ", ".join(f"layer {s.ours:.0f} ({s.what.replace(': largest at layer', '')})" for s in stated)
    findings = Findings(
        stated=stated,
        panels=[
            Panel(
                title=f"‖∂g/∂x‖ in the {name}",
                x_label="layer",
                y_label="mean over images",
                series=tuple(curves[norm]),  # type: ignore[arg-type]
                log_y=True,
                y_range=None,
            )
            for norm, name in (("1", "1-norm (largest column sum)"), ("inf", "∞-norm (largest row sum)"))
        ],
        checks=[
            Check(
                says="the first layer has the largest norm",
                holds=sum(firsts),
                cases=len(firsts),
                chance=float(np.mean(luck)),
            ),
        ],
        conclusion=f"The norm is largest at {summary}. A column sum runs over a layer's parameters, so the 1-norm "
        "grows with their number. A row sum runs over pixels and does not.",
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[study.described],
        images=counts,
        epochs=epochs,
    )
