"""Figure 11: Gaussian noise on one layer's clipped gradient, and what that layer still gives away."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from leakcore import kernels, leakage
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated
from leakcore.experiments.verdict import Check


@dataclasses.dataclass(frozen=True, eq=False)
class _Noised:
    """Scores by pair of layers (σ, pairs) and V-information by layer (σ, layers), each with its null (σ,)."""

    study: _study.LayerData
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


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """LeNet on every set of images: pairs of layers under inversion, single layers under attribute inference, noise on
    these alone."""
    sigmas = context.pick(
        "noise multipliers σ", tiny=(1e-4, 1.0), quick=(1e-4, 1e-3, 1e-2, 1e-1, 1.0), paper=tuple(np.logspace(-4, 0, 9))
    )
    studies = _study.image_sets(context)
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
    panels, stated = [], []
    for n in noised:
        panels += [
            Panel(
                title=f"original, noise on the pair, {n.study.name}",
                x_label="σ, clipping norm 1",
                y_label="score",
                series=(
                    *(notes.curve(name, r, n.original[:, i], x=at) for i, name, r in pairs),
                    notes.curve("against other images", "chance", n.original_null, x=at),
                ),
                log_x=True,
                y_range=None,
            ),
            Panel(
                title=f"latent: brightness, noise on the layer, {n.study.name}",
                x_label="σ, clipping norm 1",
                y_label="V-information, nats",
                log_x=True,
                y_range=None,
                series=(
                    *(notes.curve(name, r, n.latent[:, i], x=at) for i, name, r in layers),
                    notes.curve("labels permuted", "baseline", n.latent_null, x=at),
                ),
            ),
        ]
        stated += [
            Stated(
                what=f"{n.study.name}: pair that noise of σ = {sigmas[-1]:g} costs most original information",
                paper="first layers",
                ours=n.pair,
                comment=f"score lost by pair: {', '.join(f'{v:.2f}' for v in n.lost)}",
            ),
            Stated(
                what=f"{n.study.name}: layer that noise of σ = {sigmas[-1]:g} costs most latent information",
                paper="last layers",
                ours=n.layer,
                comment=f"nats lost by layer: {', '.join(f'{v:.3f}' for v in n.reduced)}",
            ),
        ]
    findings = Findings(
        stated=stated,
        panels=panels,
        checks=[
            Check(
                says="noise costs the first or second pair the most original information",
                holds=sum(n.pair <= 2 < pairs_of for n in noised),
                cases=len(noised),
                chance=min(0.99, 2 / pairs_of),
            ),
            Check(
                says="it costs a classifier layer the most latent information",
                holds=sum(n.layer >= 3 for n in noised),
                cases=len(noised),
                chance=max(0.0, 1 - 2 / layers_of),
            ),
        ],
        conclusion=f"Between σ = {sigmas[0]:g} and σ = {sigmas[-1]:g} "
        + "; ".join(
            f"on {n.study.name} pair {n.pair} loses the most of the inversion's score ({n.lost.max():.2f}) and layer "
            f"{n.layer} the most latent information ({n.reduced.max():.3f} nats)"
            for n in noised
        )
        + ". No ε is stated, because this is one release with noise on one layer only.",
        notes=(
            "sensitivity is not shown: noise that does not depend on the input leaves ∂g/∂x as it is",
            "latent: gradients of single samples, clipped over the parameters shown (at most 1,500 of a layer)",
        ),
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[s.described for s in studies],
        sets=len(studies),
        sigmas=list(sigmas),
    )


def _noised(context: Context, study: _study.LayerData, sigmas: Sequence[float]) -> _Noised:
    count, rows = context.pick("images", tiny=2, quick=4, paper=40), context.pick("rows", tiny=15, quick=200, paper=600)
    (model,) = _study.trained(context, study, "lenet", [context.pick("epochs of training", tiny=0, quick=1, paper=10)])
    x, y = _study.sample(study, count, context.seed)
    sets = _study.sets(model, study, "brightness", rows=rows, seed=context.seed, columns=1500)
    original, latent = [], []
    for k, sigma in enumerate(sigmas):
        source = kernels.torch_generator(context.seed, kernels.Stream.FIGURE11_PAIRS, step=k)

        def noisy(g: torch.Tensor, _: int, sigma: float = sigma, source: torch.Generator = source) -> torch.Tensor:
            clipped: torch.Tensor = g / g.norm(dim=1, keepdim=True).clamp(min=1.0)
            return clipped + sigma * torch.randn(g.shape, generator=source)

        inversion = leakage.PairInversion(
            released=noisy,
            iterations=context.pick("iterations of inversion", tiny=3, quick=60, paper=1000),
            low=0.0,
            high=1.0,
        )
        original.append(leakage.v_information_original(model, x, y, inversion=inversion, seed=context.seed))
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
