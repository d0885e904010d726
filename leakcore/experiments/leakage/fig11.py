"""Figure 11: Gaussian noise on one layer's clipped gradient, and what that layer still gives away."""

from __future__ import annotations

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


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """LeNet: pairs of layers under inversion, single layers under attribute inference, noise on these alone."""
    study = _study.images(context)
    sigmas = context.pick(
        "noise multipliers σ", tiny=(1e-4, 1.0), quick=(1e-4, 1e-3, 1e-2, 1e-1, 1.0), paper=tuple(np.logspace(-4, 0, 9))
    )
    count, rows = context.pick("images", tiny=2, quick=5, paper=40), context.pick("rows", tiny=15, quick=200, paper=600)
    (model,) = _study.trained(context, study, "lenet", [context.pick("epochs of training", tiny=0, quick=1, paper=10)])
    x, y = _study.sample(study, count, context.seed)
    sets = _study.sets(model, study, "brightness", rows=rows, seed=context.seed, columns=1500)
    original, latent = [], []
    for k, sigma in enumerate(sigmas):
        source = kernels.torch_generator(context.seed, kernels.Stream.FIGURE11_PAIRS, step=k)

        def noisy(g: torch.Tensor, _: int, sigma: float = sigma, source: torch.Generator = source) -> torch.Tensor:
            clipped: torch.Tensor = g / g.norm(dim=1, keepdim=True).clamp(min=1.0)
            return clipped + sigma * torch.randn(g.shape, generator=source)

        original.append(
            leakage.v_information_original(
                model,
                x,
                y,
                inversion=leakage.PairInversion(
                    released=noisy,
                    iterations=context.pick("iterations of inversion", tiny=3, quick=60, paper=1000),
                    low=0.0,
                    high=1.0,
                ),
                seed=context.seed,
            )
        )
        rng = kernels.generator(context.seed, kernels.Stream.FIGURE11_LAYERS, step=k)
        hidden = {
            name: g / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1.0) + sigma * rng.normal(size=g.shape)
            for name, g in sets.gradients.items()
        }
        latent.append(sets.latent(context, context.pick("permutations", tiny=1, quick=2, paper=20), gradients=hidden))
        context.progress("noise", k + 1, len(sigmas))
    at = np.array(sigmas)
    above = np.array([f.raw for f in original])
    bits = np.array([np.asarray(f.value) for f in latent])
    lost = above[0] - above[-1]
    reduced = bits[0] - bits[-1]
    pairs = ((0, "first pair", "attack"), (1, "second pair", "attack-2"), (above.shape[1] - 1, "last pair", "attack-3"))
    layers = (
        (0, "first convolution", "attack"),
        (1, "second convolution", "attack-2"),
        (2, "first fully connected layer", "attack-3"),
        (4, "last layer", "orthogonal"),
    )
    where = int(np.argmax(lost)) + 1, int(np.argmax(reduced)) + 1
    fits = where[0] <= 2 < above.shape[1], where[1] >= 3
    findings = Findings(
        stated=[
            Stated(
                what=f"pair that noise of σ = {sigmas[-1]:g} costs most original information",
                paper="first layers",
                ours=where[0],
                comment=f"score lost by pair: {', '.join(f'{v:.2f}' for v in lost)}",
            ),
            Stated(
                what=f"layer that noise of σ = {sigmas[-1]:g} costs most latent information",
                paper="last layers",
                ours=where[1],
                comment=f"nats lost by layer: {', '.join(f'{v:.3f}' for v in reduced)}",
            ),
        ],
        panels=[
            Panel(
                title="original, noise on both layers of the pair",
                x_label="σ, clipping norm 1",
                y_label="score",
                series=(
                    *(notes.curve(n, r, above[:, i], x=at) for i, n, r in pairs),
                    notes.curve("against other images", "chance", [float(np.mean(f.null)) for f in original], x=at),
                ),
                log_x=True,
                y_range=None,
            ),
            Panel(
                title="latent: brightness, noise on the layer",
                x_label="σ, clipping norm 1",
                y_label="V-information, nats",
                log_x=True,
                y_range=None,
                series=(
                    *(notes.curve(n, r, bits[:, i], x=at) for i, n, r in layers),
                    notes.curve("labels permuted", "baseline", [float(np.mean(f.null_mean)) for f in latent], x=at),
                ),
            ),
        ],
        checks=[
            Check(
                says="noise costs the first or second pair the most original information",
                holds=int(fits[0]),
                cases=1,
                chance=min(0.99, 2 / above.shape[1]),
            ),
            Check(
                says="it costs a classifier layer the most latent information",
                holds=int(fits[1]),
                cases=1,
                chance=max(0.0, 1 - 2 / bits.shape[1]),
            ),
        ],
        conclusion=f"Between σ = {sigmas[0]:g} and σ = {sigmas[-1]:g}, pair {where[0]} loses the most of the "
        f"inversion's score ({lost.max():.2f}) and layer {where[1]} the most latent information ({reduced.max():.3f} "
        f"nats). At σ = {sigmas[0]:g} pair {int(np.argmax(above[0])) + 1} and layer {int(np.argmax(bits[0])) + 1} had "
        "the most. No ε is stated, because this is one release with noise on one layer only.",
        notes=(
            "sensitivity is not shown: noise that does not depend on the input leaves ∂g/∂x as it is",
            "latent: gradients of single samples, clipped over the parameters shown (at most 1,500 of a layer)",
        ),
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[study.described],
        images=count,
        rows=rows,
    )
