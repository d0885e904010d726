"""Figures 10 and 11: both kinds of information over the epochs of a training, and over noise on one layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from leakcore import kernels, leakage
from leakcore.attacks import attributes as attack
from leakcore.experiments.driver.context import Context, listed
from leakcore.experiments.driver.result import ExperimentResult, Panel, Stated
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.leakage import common

_LITTLE = 1.5
"""Largest over smallest up to which an epoch is said to have little effect."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Course:
    """What snapshots of one training show: sensitivity and latent information by layer, (epochs, layers)."""

    study: common.LayerData
    sensitivity: np.ndarray
    latent: np.ndarray
    chance: np.ndarray

    def measures(self) -> dict[str, np.ndarray]:
        """The two courses that are judged, (epochs,) each."""
        return {
            "sensitivity of the first layer": self.sensitivity[:, 0],
            "latent information of the first classifier layer": self.latent[:, 2],
        }


def fig10(context: Context) -> ExperimentResult:
    """LeNet on every set of images, SGD; the inversion on the first set."""
    epochs = context.pick(
        "epochs of training", tiny=(0, 1), quick=(0, 2, 5, 10, 20), paper=(0, 1, 2, 5, 10, 20, 50, 100)
    )
    count, rows = context.pick("images", tiny=2, quick=5, paper=40), context.pick("rows", tiny=15, quick=200, paper=600)
    studies = common.image_sets(context)
    courses = []
    inverted: list[leakage.OriginalInformation] = []
    for number, study in enumerate(studies):
        networks = common.trained(context, study, "lenet", epochs)
        courses.append(_course(context, study, networks, count, rows))
        if number == 0:
            inverted = _inverted(context, study, networks, count)
        context.progress("sets of images", number + 1, len(studies))
    at = np.array(epochs)
    names = {0: "first convolution", 2: "first fully connected layer", 4: "last layer"}
    roles = ("attack", "attack-2", "attack-3")
    spans = [f.interval for f in inverted if f.interval is not None]
    measured = {(measure, c.study.name): v for c in courses for measure, v in c.measures().items()}
    early = {key: float(v[1] / max(v[0], 1e-9)) for key, v in measured.items()}
    later = {key: float(v[1:].max() / max(v[1:].min(), 1e-9)) for key, v in measured.items()}
    original = Panel.of(
        (f"original, first pair of layers, {studies[0].name}", "epoch", "score"),
        common.curve("inversion", "attack-4", [f.raw[0] for f in inverted], x=at),
        common.curve("null", "null", [f.null[0] for f in inverted], x=at),
    )
    panels = [original]
    for course in courses:
        by_layer = zip(names, roles, strict=True)
        panels += [
            Panel.of(
                (f"sensitivity, F-norm, {course.study.name}", "epoch", "mean over images"),
                *(common.curve(names[i], r, course.sensitivity[:, i], x=at) for i, r in by_layer),
                log="y",
            ),
            Panel.of(
                (f"latent: brightness, {course.study.name}", "epoch", "V-information, nats"),
                *(common.curve(names[i], r, course.latent[:, i], x=at) for i, r in zip(names, roles, strict=True)),
                common.curve("null", "null", course.chance, x=at),
            ),
        ]
    result = context.result(
        stated=[
            Stated(f"{measure}, {name}, {change}", paper, ratios[measure, name])
            for measure, name in measured
            for change, paper, ratios in (
                (f"epoch {epochs[1]} ÷ initial network", "falls at first", early),
                (f"largest ÷ smallest from epoch {epochs[1]} on", "negligible effect", later),
            )
        ],
        panels=panels,
        checks=[
            Check.of(
                f"after epoch {epochs[1]} the largest value is less than {_LITTLE:g} times the smallest",
                [ratio < _LITTLE for ratio in later.values()],
            ),
            Check.of("it falls at first", [v < 1 for v in early.values()], chance=0.5),
        ],
        conclusion=" ".join(
            f"After epoch {epochs[1]} the largest {measure} is {min(ratios):.2f} to {max(ratios):.3g} times the "
            "smallest."
            for measure in courses[0].measures()
            for ratios in [[later[measure, c.study.name] for c in courses]]
        )
        + f" The sets have {min(len(s.inputs) for s in studies):,} rows at least; training on few goes on to change a "
        "network.",
        notes=(
            (
                "half-widths of 95% intervals of the inversion scores: "
                f"{', '.join(f'{(np.ravel(i[1])[0] - np.ravel(i[0])[0]) / 2:.1f}' for i in spans)}"
            ),
        ),
    )
    return common.report(result, data=[s.described for s in studies], images=count, rows=rows, epochs=epochs)


def _course(
    context: Context, study: common.LayerData, networks: Sequence[torch.nn.Module], count: int, rows: int
) -> _Course:
    x, y = common.sample(study, count, context.seed)
    budget = leakage.JacobianBudget(probes=context.pick("probes of a Jacobian", tiny=2, quick=12, paper=200))
    moved, latent = [], []
    for model in networks:
        moved.append(leakage.sensitivity(model, x, y, norms="F", budget=budget, seed=context.seed).means["F"])
        layers = common.sets(model, study, "brightness", rows=rows, seed=context.seed, columns=1500)
        latent.append(layers.latent(context, context.pick("permutations", tiny=1, quick=2, paper=20)))
    return _Course(
        study,
        np.array(moved),
        np.array([np.asarray(v.value) for v in latent]),
        np.array([float(np.mean(v.null_mean)) for v in latent]),
    )


def _inverted(
    context: Context, study: common.LayerData, networks: Sequence[torch.nn.Module], count: int
) -> list[leakage.OriginalInformation]:
    """Of the first pair of layers, at every snapshot."""
    x, y = common.sample(study, count, context.seed)
    pair = tuple(attack.layer_gradients(networks[0], x[:1], y[:1]))[:2]
    steps = context.pick("iterations of inversion", tiny=3, quick=80, paper=1000)
    return [common.inverted(context, model, x, y, steps, pairs=[pair]) for model in networks]


@dataclasses.dataclass(frozen=True, eq=False)
class _Noised:
    """Scores by pair of layers (σ, pairs) and V-information by layer (σ, layers), each with its null (σ,)."""

    study: common.LayerData
    original: np.ndarray
    original_null: np.ndarray
    latent: np.ndarray
    latent_null: np.ndarray

    @property
    def lost(self) -> np.ndarray:
        """What the strongest noise costs each pair."""
        return np.asarray(self.original[0] - self.original[-1])

    @property
    def reduced(self) -> np.ndarray:
        """What it costs each layer."""
        return np.asarray(self.latent[0] - self.latent[-1])

    @property
    def pair(self) -> int:
        """The pair that loses most, from 1."""
        return int(np.argmax(self.lost)) + 1

    @property
    def layer(self) -> int:
        """The layer that loses most, from 1."""
        return int(np.argmax(self.reduced)) + 1


def fig11(context: Context) -> ExperimentResult:
    """LeNet on every set of images: pairs of layers under inversion, single layers under attribute inference, noise on
    these alone."""
    sigmas = context.pick(
        "noise multipliers σ", tiny=(1e-4, 1.0), quick=(1e-4, 1e-3, 1e-2, 1e-1, 1.0), paper=tuple(np.logspace(-4, 0, 9))
    )
    studies = common.image_sets(context)
    noised = []
    for number, study in enumerate(studies):
        noised.append(_noised(context, study, sigmas))
        context.progress("sets of images", number + 1, len(studies))
    at = np.array(sigmas)
    pairs_of, layers_of = noised[0].original.shape[1], noised[0].latent.shape[1]
    pairs = ((0, "first pair", "attack"), (1, "second pair", "attack-2"), (pairs_of - 1, "last pair", "attack-3"))
    layers = (
        (0, "first convolution", "attack-4"),
        (1, "second convolution", "attack-5"),
        (2, "first fully connected layer", "attack-6"),
        (4, "last layer", "attack-7"),
    )
    panels, stated, loses = [], [], f"noise of σ = {sigmas[-1]:g} costs most"
    for n in noised:
        panels += [
            Panel.of(
                (f"original, noise on the pair, {n.study.name}", "σ, clipping norm 1", "score"),
                *(common.curve(name, r, n.original[:, i], x=at) for i, name, r in pairs),
                common.curve("against other images", "chance", n.original_null, x=at),
                log="x",
            ),
            Panel.of(
                (
                    f"latent: brightness, noise on the layer, {n.study.name}",
                    "σ, clipping norm 1",
                    "V-information, nats",
                ),
                *(common.curve(name, r, n.latent[:, i], x=at) for i, name, r in layers),
                common.curve("labels permuted", "baseline", n.latent_null, x=at),
                log="x",
            ),
        ]
        stated += [
            Stated(f"{n.study.name}: {part} that {loses} {kind} information", paper, number, comment=lost)
            for part, kind, paper, number, lost in (
                ("pair", "original", "first layers", n.pair, f"score lost by pair: {listed(n.lost, '.2f')}"),
                ("layer", "latent", "last layers", n.layer, f"nats lost by layer: {listed(n.reduced, '.3f')}"),
            )
        ]
    result = context.result(
        stated=stated,
        panels=panels,
        checks=[
            Check.of(
                "noise costs the first or second pair the most original information",
                [n.pair <= 2 < pairs_of for n in noised],
                chance=min(0.99, 2 / pairs_of),
            ),
            Check.of(
                "it costs a classifier layer the most latent information",
                [n.layer >= 3 for n in noised],
                chance=max(0.0, 1 - 2 / layers_of),
            ),
        ],
        conclusion="No ε is stated, because this is one release with noise on one layer only.",
        notes=(
            "sensitivity is not shown: noise that does not depend on the input leaves ∂g/∂x as it is",
            "latent: gradients of single samples, clipped over the parameters shown (at most 1,500 of a layer)",
        ),
    )
    return common.report(result, data=[s.described for s in studies], sets=len(studies), sigmas=list(sigmas))


def _noised(context: Context, study: common.LayerData, sigmas: Sequence[float]) -> _Noised:
    count, rows = context.pick("images", tiny=2, quick=4, paper=40), context.pick("rows", tiny=15, quick=200, paper=600)
    (model,) = common.trained(context, study, "lenet", [context.pick("epochs of training", tiny=0, quick=1, paper=10)])
    x, y = common.sample(study, count, context.seed)
    sets = common.sets(model, study, "brightness", rows=rows, seed=context.seed, columns=1500)
    original, latent = [], []
    for k, sigma in enumerate(sigmas):
        source = kernels.torch_generator(context.seed, kernels.Stream.FIGURE11_PAIRS, step=k)

        def noisy(g: torch.Tensor, _: int, sigma: float = sigma, source: torch.Generator = source) -> torch.Tensor:
            clipped: torch.Tensor = g / g.norm(dim=1, keepdim=True).clamp(min=1.0)
            return clipped + sigma * torch.randn(g.shape, generator=source)

        steps = context.pick("iterations of inversion", tiny=3, quick=60, paper=1000)
        original.append(common.inverted(context, model, x, y, steps, released=noisy))
        rng = kernels.generator(context.seed, kernels.Stream.FIGURE11_LAYERS, step=k)
        hidden = {
            name: g / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1.0) + sigma * rng.normal(size=g.shape)
            for name, g in sets.gradients.items()
        }
        latent.append(sets.latent(context, context.pick("permutations", tiny=1, quick=2, paper=20), gradients=hidden))
    return _Noised(
        study,
        np.array([f.raw for f in original]),
        np.array([float(np.mean(f.null)) for f in original]),
        np.array([np.asarray(f.value) for f in latent]),
        np.array([float(np.mean(f.null_mean)) for f in latent]),
    )
