"""Figure 10: every measure on snapshots of one training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from leakcore import leakage
from leakcore.attacks import attributes as attack
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated
from leakcore.experiments.verdict import Check

_LITTLE = 1.5
"""Largest over smallest up to which an epoch is said to have little effect."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Course:
    """What snapshots of one training show: sensitivity and latent information by layer, (epochs, layers)."""

    study: _study.LayerData
    sensitivity: np.ndarray
    latent: np.ndarray
    chance: np.ndarray

    def measures(self) -> dict[str, np.ndarray]:
        """The two courses that are judged, (epochs,) each."""
        return {
            f"sensitivity of the first layer, {self.study.name}": self.sensitivity[:, 0],
            f"latent information of the first classifier layer, {self.study.name}": self.latent[:, 2],
        }


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """LeNet on every set of images, SGD; the inversion on the first set."""
    epochs = context.pick(
        "epochs of training", tiny=(0, 1), quick=(0, 2, 5, 10, 20), paper=(0, 1, 2, 5, 10, 20, 50, 100)
    )
    count, rows = context.pick("images", tiny=2, quick=5, paper=40), context.pick("rows", tiny=15, quick=200, paper=600)
    studies = _study.image_sets(context)
    courses = []
    inverted: list[leakage.OriginalInformation] = []
    for number, study in enumerate(studies):
        networks = _study.trained(context, study, "lenet", epochs)
        courses.append(_course(context, study, networks, count, rows))
        if number == 0:
            inverted = _inverted(context, study, networks, count)
        context.progress("sets of images", number + 1, len(studies))
    at = np.array(epochs)
    names = {0: "first convolution", 2: "first fully connected layer", 4: "last layer"}
    roles = ("attack", "attack-2", "attack-3")
    spans = [f.interval for f in inverted if f.interval is not None]
    kinds = {name: course for c in courses for name, course in c.measures().items()}
    early = {name: float(v[1] / max(v[0], 1e-9)) for name, v in kinds.items()}
    later = {name: float(v[1:].max() / max(v[1:].min(), 1e-9)) for name, v in kinds.items()}
    little = {name: ratio < _LITTLE for name, ratio in later.items()}
    original = Panel(
        title=f"original, first pair of layers, {studies[0].name}",
        x_label="epoch",
        y_label="score",
        y_range=None,
        series=(
            notes.curve("inversion", "attack-4", [f.raw[0] for f in inverted], x=at),
            notes.curve("null", "null", [f.null[0] for f in inverted], x=at),
        ),
    )
    panels = [original]
    for course in courses:
        by_layer = zip(names, roles, strict=True)
        panels += [
            Panel(
                title=f"sensitivity, F-norm, {course.study.name}",
                x_label="epoch",
                y_label="mean over images",
                log_y=True,
                y_range=None,
                series=tuple(notes.curve(names[i], r, course.sensitivity[:, i], x=at) for i, r in by_layer),
            ),
            Panel(
                title=f"latent: brightness, {course.study.name}",
                x_label="epoch",
                y_label="V-information, nats",
                y_range=None,
                series=(
                    *(notes.curve(names[i], r, course.latent[:, i], x=at) for i, r in zip(names, roles, strict=True)),
                    notes.curve("null", "null", course.chance, x=at),
                ),
            ),
        ]
    findings = Findings(
        stated=[
            Stated(what=what.format(name), paper=paper, ours=ratios[name])
            for name in kinds
            for what, paper, ratios in (
                (f"{{}}, epoch {epochs[1]} ÷ initial network", "falls at first", early),
                (f"{{}}, largest ÷ smallest from epoch {epochs[1]} on", "negligible effect", later),
            )
        ],
        panels=panels,
        checks=[
            Check(
                says=f"after epoch {epochs[1]} the largest value is less than {_LITTLE:g} times the smallest",
                holds=sum(little.values()),
                cases=len(little),
            ),
            Check(says="it falls at first", holds=sum(v < 1 for v in early.values()), cases=len(early), chance=0.5),
        ],
        conclusion=" ".join(
            f"The {what} falls in the first {epochs[1]} epochs on {sum(early[n] < 1 for n in of)} of {len(of)} sets of "
            f"images. After that its largest value is {min(later[n] for n in of):.2f} to "
            f"{max(later[n] for n in of):.3g} times its smallest."
            for what in ("sensitivity of the first layer", "latent information of the first classifier layer")
            for of in [[n for n in kinds if n.startswith(what)]]
        )
        + ("" if all(little.values()) else f" On few rows ({min(len(s.inputs) for s in studies):,} at least), training "
           "goes on to change the network after that."),
        notes=(
            (
                "half-widths of 95% intervals of the inversion scores: "
                f"{', '.join(f'{(np.ravel(i[1])[0] - np.ravel(i[0])[0]) / 2:.1f}' for i in spans)}"
            ),
        ),
    )  # fmt: skip
    return notes.report(
        experiment,
        context,
        findings,
        data=[s.described for s in studies],
        images=count,
        rows=rows,
        epochs=epochs,
    )


def _course(
    context: Context, study: _study.LayerData, networks: Sequence[torch.nn.Module], count: int, rows: int
) -> _Course:
    x, y = _study.sample(study, count, context.seed)
    budget = leakage.JacobianBudget(probes=context.pick("probes of a Jacobian", tiny=2, quick=12, paper=200))
    moved, latent = [], []
    for model in networks:
        moved.append(leakage.sensitivity(model, x, y, norms="F", budget=budget, seed=context.seed).means["F"])
        layers = _study.sets(model, study, "brightness", rows=rows, seed=context.seed, columns=1500)
        latent.append(layers.latent(context, context.pick("permutations", tiny=1, quick=2, paper=20)))
    return _Course(
        study,
        np.array(moved),
        np.array([np.asarray(v.value) for v in latent]),
        np.array([float(np.mean(v.null_mean)) for v in latent]),
    )


def _inverted(
    context: Context, study: _study.LayerData, networks: Sequence[torch.nn.Module], count: int
) -> list[leakage.OriginalInformation]:
    """Of the first pair of layers, at every snapshot."""
    x, y = _study.sample(study, count, context.seed)
    pair = tuple(attack.layer_gradients(networks[0], x[:1], y[:1]))[:2]
    inversion = leakage.PairInversion(
        pairs=[pair],
        iterations=context.pick("iterations of inversion", tiny=3, quick=80, paper=1000),
        low=0.0,
        high=1.0,
    )
    return [leakage.v_information_original(model, x, y, inversion=inversion, seed=context.seed) for model in networks]
