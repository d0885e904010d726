"""Figure 10: every measure on snapshots of one training."""

from __future__ import annotations

import numpy as np

from leakcore import leakage
from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult, Panel, Stated
from leakcore.experiments.leakage import _report, _study


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """LeNet on superclasses, SGD."""
    study = _study.images(context)
    epochs = context.pick(tiny=(0, 1), quick=(0, 2, 5, 10, 20), paper=(0, 1, 2, 5, 10, 20, 50, 100))
    count, rows = context.pick(tiny=2, quick=5, paper=40), context.pick(tiny=15, quick=200, paper=600)
    x, y = _study.shown(study, count, context.seed)
    moved, inverted, latent = [], [], []
    for k, model in enumerate(_study.trained(study, "lenet", epochs, context.seed)):
        moved.append(
            leakage.sensitivity(
                model, None, x, y, norms="F", probes=context.pick(tiny=2, quick=12, paper=200), seed=context.seed
            )
        )
        pair = moved[-1].layers[:2]
        inverted.append(
            leakage.v_information_original(
                model,
                None,
                x,
                y,
                pairs=[pair],
                iterations=context.pick(tiny=3, quick=80, paper=1000),
                low=0.0,
                high=1.0,
                seed=context.seed,
            )
        )
        seen = _study.sets(model, study, "brightness", rows=rows, seed=context.seed, columns=1500)
        latent.append(
            leakage.v_information(
                seen.gradients,
                seen.attribute,
                family="magnitudes",
                strata=seen.targets,
                seed=context.seed,
                permutations=context.pick(tiny=1, quick=2, paper=20),
            )
        )
        context.progress("epochs", k + 1, len(epochs))
    at = np.array(epochs)
    names = {0: "first convolution", 2: "first fully connected layer", 4: "last layer"}
    roles = ("attack", "attack-2", "attack-3")
    spans = [f.interval for f in inverted if f.interval is not None]
    sizes = {i: np.array([m.means["F"][i] for m in moved]) for i in names}
    bits = {i: np.array([np.asarray(v.value)[i] for v in latent]) for i in names}
    early = {name: float(v[1] / v[0]) for name, v in (("sensitivity", sizes[0]), ("latent", bits[2] + 1e-9))}
    late = float(sizes[0][-1] / sizes[0][-2]), float((bits[2][-1] + 1e-9) / (bits[2][-2] + 1e-9))
    steady = all(0.5 < v < 2 for v in late)
    return _report.report(
        experiment,
        context,
        data=[study.described],
        stated=[
            Stated(
                what=f"sensitivity of the first layer, epoch {epochs[1]} ÷ 0",
                paper="falls at first",
                ours=early["sensitivity"],
            ),
            Stated(what=f"the same, epoch {epochs[-1]} ÷ {epochs[-2]}", paper="negligible effect", ours=late[0]),
            Stated(
                what=f"latent, first classifier layer, epoch {epochs[1]} ÷ 0",
                paper="falls at first",
                ours=early["latent"],
            ),
            Stated(what=f"the same, epoch {epochs[-1]} ÷ {epochs[-2]}", paper="negligible effect", ours=late[1]),
        ],
        panels=[
            Panel(
                title="sensitivity, F-norm",
                x_label="epoch",
                y_label="mean over images",
                log_y=True,
                y_range=None,
                series=tuple(_report.curve(names[i], r, sizes[i], x=at) for i, r in zip(names, roles, strict=True)),
            ),
            Panel(
                title="original, first pair of layers",
                x_label="epoch",
                y_label="score, nats",
                y_range=None,
                series=(
                    _report.curve("inversion", "orthogonal", [f.raw[0] for f in inverted], x=at),
                    _report.curve("null", "baseline", [f.null[0] for f in inverted], x=at),
                ),
            ),
            Panel(
                title="latent: brightness",
                x_label="epoch",
                y_label="V-information, nats",
                y_range=None,
                series=tuple(_report.curve(names[i], r, bits[i], x=at) for i, r in zip(names, roles, strict=True)),
            ),
        ],
        agreement="yes" if steady else "partly",
        conclusion=f"From epoch {epochs[-2]} to {epochs[-1]} the first layer's sensitivity changes by "
        f"×{late[0]:.2f} and latent "
        f"V-information of the first classifier layer by ×{late[1]:.2f}; in the first {epochs[1]} epochs by "
        f"×{early['sensitivity']:.2f} and ×{early['latent']:.2f}. "
        + (
            "Late epochs change little."
            if steady
            else "Gradients of samples that the network has learned vanish: "
            "training on few rows, as here, moves the measures long after the first epochs."
        ),
        notes=(
            (
                "half-widths of 95% intervals of the inversion scores: "
                f"{', '.join(f'{(np.ravel(i[1])[0] - np.ravel(i[0])[0]) / 2:.1f}' for i in spans)}"
            ),
        ),
        images=count,
        rows=rows,
        epochs=epochs,
    )
