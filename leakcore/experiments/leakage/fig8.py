"""Figure 8: sensitivity in the 1-norm and in the ∞-norm."""

from __future__ import annotations

import numpy as np

from leakcore import leakage
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated

_NORMS = {"1": "1-norm", "inf": "∞-norm"}


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Exact norms on every set of images: LeNet and AlexNet, at the paper's scale VGG9 as well."""
    counts = context.pick(
        "images of each network",
        tiny={"lenet": 1},
        quick={"lenet": 3, "alexnet": 1},
        paper={"lenet": 40, "alexnet": 20, "vgg9": 20},
    )
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    studies = _study.image_sets(context)
    curves: dict[tuple[str, str], list[Series]] = {}
    stated = []
    orders: list[notes.Order] = []
    done = 0
    for study in studies:
        for kind, count in counts.items():
            x, y = _study.sample(study, count, context.seed)
            (model,) = _study.trained(context, study, kind, [epochs])
            sensitivities = leakage.sensitivity(model, x, y, norms=tuple(_NORMS))
            for norm, name in _NORMS.items():
                values = sensitivities.means[norm]
                error = 1.96 * np.nan_to_num(sensitivities.standard_errors[norm])
                curves.setdefault((study.name, norm), []).append(
                    notes.curve(kind, _study.ROLES[kind], values, values - error, values + error)
                )
                order = notes.Order(values, values / np.sqrt(sensitivities.parameters))
                orders.append(order)
                stated.append(
                    Stated(
                        what=f"{kind}, {study.name}, {name}: layer with the largest",
                        paper="a first layer",
                        ours=order.largest,
                        comment=f"{notes.images(count)}; mean over the first half of the layers ÷ mean over the "
                        f"second: {order.ratio:.2f}",
                    )
                )
            done += 1
            context.progress("sensitivity", done, len(studies) * len(counts))
    half = {
        name: sum(o.falls for o, s in zip(orders, stated, strict=True) if f", {name}:" in s.what)
        for name in _NORMS.values()
    }
    each = len(orders) // len(_NORMS)
    findings = Findings(
        stated=stated,
        panels=[
            Panel(
                title=f"‖∂g/∂x‖, {_NORMS[norm]}, {name}",
                x_label="layer",
                y_label="mean over images",
                series=tuple(drawn),
                log_y=True,
                y_range=None,
            )
            for (name, norm), drawn in curves.items()
        ],
        checks=[notes.first_half(orders)],
        conclusion="The first half of the layers has the larger mean in "
        + " and ".join(f"{n} of {each} pairs of network and set in the {name}" for name, n in half.items())
        + f". The very first layer has the largest norm in {sum(o.largest == 1 for o in orders)} of {len(orders)} "
        "cases. A column sum runs over a layer's parameters, so the 1-norm grows with their number. A row sum runs "
        "over pixels and does not.",
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[s.described for s in studies],
        images=counts,
        epochs=epochs,
    )
