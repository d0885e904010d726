"""Figure 10: every measure on snapshots of one training."""

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

_LITTLE = 1.5
"""Largest over smallest up to which an epoch is said to have little effect."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """LeNet on superclasses, SGD."""
    study = _study.images(context)
    epochs = context.pick(
        "epochs of training", tiny=(0, 1), quick=(0, 2, 5, 10, 20), paper=(0, 1, 2, 5, 10, 20, 50, 100)
    )
    count, rows = context.pick("images", tiny=2, quick=5, paper=40), context.pick("rows", tiny=15, quick=200, paper=600)
    x, y = _study.sample(study, count, context.seed)
    moved, inverted, latent = [], [], []
    for k, model in enumerate(_study.trained(context, study, "lenet", epochs)):
        moved.append(
            leakage.sensitivity(
                model,
                x,
                y,
                norms="F",
                budget=leakage.JacobianBudget(probes=context.pick("probes of a Jacobian", tiny=2, quick=12, paper=200)),
                seed=context.seed,
            )
        )
        pair = moved[-1].layers[:2]
        inverted.append(
            leakage.v_information_original(
                model,
                x,
                y,
                inversion=leakage.PairInversion(
                    pairs=[pair],
                    iterations=context.pick("iterations of inversion", tiny=3, quick=80, paper=1000),
                    low=0.0,
                    high=1.0,
                ),
                seed=context.seed,
            )
        )
        layers = _study.sets(model, study, "brightness", rows=rows, seed=context.seed, columns=1500)
        latent.append(layers.latent(context, context.pick("permutations", tiny=1, quick=2, paper=20)))
        context.progress("epochs", k + 1, len(epochs))
    at = np.array(epochs)
    names = {0: "first convolution", 2: "first fully connected layer", 4: "last layer"}
    roles = ("attack", "attack-2", "attack-3")
    spans = [f.interval for f in inverted if f.interval is not None]
    sizes = {i: np.array([m.means["F"][i] for m in moved]) for i in names}
    bits = {i: np.array([np.asarray(v.value)[i] for v in latent]) for i in names}
    kinds = {"sensitivity of the first layer": sizes[0], "latent information of the first classifier layer": bits[2]}
    early = {name: float(v[1] / max(v[0], 1e-9)) for name, v in kinds.items()}
    later = {name: float(v[1:].max() / max(v[1:].min(), 1e-9)) for name, v in kinds.items()}
    little = {name: ratio < _LITTLE for name, ratio in later.items()}
    findings = Findings(
        stated=[
            Stated(what=what.format(name), paper=paper, ours=ratios[name])
            for name in kinds
            for what, paper, ratios in (
                (f"{{}}, epoch {epochs[1]} ÷ initial network", "falls at first", early),
                (f"{{}}, largest ÷ smallest from epoch {epochs[1]} on", "negligible effect", later),
            )
        ],
        panels=[
            Panel(
                title="sensitivity, F-norm",
                x_label="epoch",
                y_label="mean over images",
                log_y=True,
                y_range=None,
                series=tuple(notes.curve(names[i], r, sizes[i], x=at) for i, r in zip(names, roles, strict=True)),
            ),
            Panel(
                title="original, first pair of layers",
                x_label="epoch",
                y_label="score",
                y_range=None,
                series=(
                    notes.curve("inversion", "orthogonal", [f.raw[0] for f in inverted], x=at),
                    notes.curve("null", "baseline", [f.null[0] for f in inverted], x=at),
                ),
            ),
            Panel(
                title="latent: brightness",
                x_label="epoch",
                y_label="V-information, nats",
                y_range=None,
                series=(
                    *(notes.curve(names[i], r, bits[i], x=at) for i, r in zip(names, roles, strict=True)),
                    notes.curve("null", "baseline", [float(np.mean(v.null_mean)) for v in latent], x=at),
                ),
            ),
        ],
        checks=[
            Check(
                says=f"after epoch {epochs[1]} the largest value is less than {_LITTLE:g} times the smallest",
                holds=sum(little.values()),
                cases=len(little),
            ),
            Check(says="it falls at first", holds=sum(v < 1 for v in early.values()), cases=len(early), chance=0.5),
        ],
        conclusion=" ".join(
            f"The {name} changes by a factor of {early[name]:.2f} in the first {epochs[1]} epochs. After that its "
            f"largest value is {later[name]:.2f} times its smallest"
            + (", a small effect." if little[name] else ", so the epoch matters.")
            for name in kinds
        )
        + ("" if all(little.values()) else " On few rows, training goes on to change the network after that."),
        notes=(
            (
                "half-widths of 95% intervals of the inversion scores: "
                f"{', '.join(f'{(np.ravel(i[1])[0] - np.ravel(i[0])[0]) / 2:.1f}' for i in spans)}"
            ),
        ),
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[study.described],
        images=count,
        rows=rows,
        epochs=epochs,
    )
