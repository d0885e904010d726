"""Figure 6: sensitivity in the F-norm, raw and per root of the number of parameters, compared with V-information."""

from __future__ import annotations

from typing import Any

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
    """LeNet exactly; AlexNet and VGG9 by Hutchinson's estimate; correlation on LeNet, images by pairs."""
    study = _study.images(context)
    count = context.pick("images", tiny=1, quick=4, paper=40)
    probes = context.pick("probes of a Jacobian", tiny=2, quick=12, paper=100)
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    x, y = _study.sample(study, count, context.seed)
    raw, scaled, highest = [], [], {}
    roles = {"lenet": "attack", "alexnet": "attack-2", "vgg9": "attack-3"}
    lenet = None
    luck: list[float] = []
    for number, (kind, role) in enumerate(roles.items()):
        (model,) = _study.trained(context, study, kind, [epochs])
        result = leakage.sensitivity(
            model,
            x,
            y,
            norms="F",
            budget=leakage.JacobianBudget(probes=probes if kind != "lenet" or context.scale == "tiny" else None),
            seed=context.seed,
        )
        lenet = result if kind == "lenet" else lenet
        if kind == "lenet":
            network = model
        error = 1.96 * np.nan_to_num(result.standard_errors["F"])
        root = np.sqrt(result.parameters)
        top, best = result.means["F"].max(), result.per_parameter().max()
        luck.append(1 / len(result.means["F"]))
        raw.append(
            notes.curve(
                kind,
                role,
                result.means["F"] / top,
                (result.means["F"] - error) / top,
                (result.means["F"] + error) / top,
            )
        )
        scaled.append(
            notes.curve(
                kind,
                role,
                result.per_parameter() / best,
                (result.means["F"] - error) / root / best,
                (result.means["F"] + error) / root / best,
            )
        )
        highest[kind] = int(np.argmax(result.means["F"])) + 1, int(np.argmax(result.per_parameter())) + 1
        context.progress("sensitivity", number + 1, len(roles))
    assert lenet is not None
    inverted = leakage.v_information_original(
        network,
        x,
        y,
        inversion=leakage.PairInversion(
            iterations=context.pick("iterations of inversion", tiny=3, quick=80, paper=1000), low=0.0, high=1.0
        ),
        seed=context.seed,
        executor=context.executor,
    )
    each = lenet.per_sample["F"]
    ratios = each / np.sqrt(lenet.parameters)
    pairs = {"F": (each[:, :-1] + each[:, 1:]) / 2, "F/√p": (ratios[:, :-1] + ratios[:, 1:]) / 2}
    by = {name: notes.correlation(v, inverted.each) for name, v in pairs.items()}
    stated = [
        Stated(
            what=f"R of {name} with V-information, LeNet",
            paper="0.686–0.707",
            ours=r,
            interval=span,
            kind="estimate",
            confidence=notes.CONFIDENCE,
            comment=f"{each.size - count} pairs of layers on {notes.images(count)}, taken as independent",
        )
        for name, (r, span) in by.items()
    ] + [
        Stated(what=f"{kind}: layer with the largest F; F/√p", paper="1", ours=int(a), comment=f"F/√p: layer {b}")
        for kind, (a, b) in highest.items()
    ]
    first = [b == 1 for _, b in highest.values()]
    plain = [a == 1 for a, _ in highest.values()]
    axes: dict[str, Any] = {"x_label": "layer", "y_range": (0.0, 1.3)}
    findings = Findings(
        stated=stated,
        panels=[
            Panel(title="‖∂g/∂x‖_F", y_label="relative to the largest layer", series=tuple(raw), **axes),
            Panel(
                title="‖∂g/∂x‖_F/√(parameters)", y_label="relative to the largest layer", series=tuple(scaled), **axes
            ),
        ],
        checks=[
            Check(
                says="the first layer is the most sensitive",
                holds=sum(plain),
                cases=len(plain),
                chance=float(np.mean(luck)),
            ),
            Check(
                says="sensitivity correlates with V-information, the interval above 0",
                holds=int(by["F"][1][0] > 0),
                cases=1,
                chance=0.025,
            ),
            Check(
                says="the interval meets the printed 0.686 to 0.707",
                holds=int(notes.meets(by["F"][1])),
                cases=1,
                about="size",
            ),
        ],
        conclusion="Divided by the root of its number of parameters, the first convolution is the most sensitive layer "
        f"of {', '.join(k for k, ok in zip(highest, first, strict=True) if ok) or 'no network'}. The undivided norm, "
        "which the paper plots, grows with the size of a layer; it is largest at layer "
        f"{', '.join(f'{a} ({k})' for k, (a, _) in highest.items())}. On LeNet its correlation with V-information is "
        f"{_shown(*by['F'])} (the paper: 0.69–0.71); divided by √p it is {_shown(*by['F/√p'])}.",
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[study.described],
        images=count,
        probes=probes,
        epochs=epochs,
    )


def _shown(r: float, span: tuple[float, float]) -> str:
    return f"{r:.2f} [{span[0]:.2f}, {span[1]:.2f}]"
