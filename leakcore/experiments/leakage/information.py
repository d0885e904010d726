"""Figures 3 and 4: mutual information of gradients, and inversion of pairs of layers."""

from __future__ import annotations

import functools

import numpy as np
import torch

from leakcore import datasets, kernels, leakage, models
from leakcore.attacks import attributes as attack
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Stated
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.leakage import common

_SIZES = (784, 64, 48, 32, 24, 20, 16, 12, 10)


def fig3(context: Context) -> ExperimentResult:
    """An eight-layer network on MNIST's test images, before and after training."""
    data = datasets.mnist("test", path=context.data, download=False)
    rows = context.pick("rows", tiny=80, quick=600, paper=4000)
    steps = context.pick("steps of each estimate", tiny=10, quick=200, paper=600)
    epochs = context.pick("epochs of training", tiny=(0, 1), quick=(0, 4), paper=(0, 1, 5, 20, 60))
    images, labels = (torch.from_numpy(of[:4000].copy()) for of in (data.features, data.labels))
    study = common.LayerData("MNIST", images, labels, 10, {}, data.name)
    index = kernels.generator(context.seed, kernels.Stream.FIGURE3_ROWS).choice(4000, rows, replace=False)
    x, y = study.inputs[index], study.targets[index]
    panels, firsts = [], {}
    total, done = len(epochs) * 2 * (len(_SIZES) - 1), 0
    for epoch, model in zip(epochs, _snapshots(study, epochs, context.seed), strict=True):
        gradients = attack.layer_gradients(model, x, y)
        for kind, other in (("inputs", x.numpy()), ("labels", y.numpy())):
            estimates = []
            for g in gradients.values():
                estimates.append(
                    leakage.mutual_information(
                        g,
                        other,
                        num_classes=10 if kind == "labels" else None,
                        network=leakage.MineNetwork(steps=steps),
                        permutations=1,
                        seed=context.seed,
                        executor=context.executor,
                    )
                )
                done += 1
                context.progress("MINE", done, total)
            low, high = (np.array([f.held_out_interval[i] for f in estimates]) for i in (0, 1))
            values = np.array([float(f.value) for f in estimates])
            panels.append(
                Panel.of(
                    (f"with {kind}, {'initial network' if epoch == 0 else f'after {epoch} epochs'}", "layer", "nats"),
                    common.curve("MINE, held out", "attack", values, low, high),
                    common.curve("rows permuted", "baseline", [f.null_mean for f in estimates]),
                )
            )
            firsts[kind, epoch] = int(np.argmax(values)) + 1
    ones = [v == 1 for v in firsts.values()]
    result = context.result(
        panels=panels,
        checks=[Check.of("the first layer has the most", ones, chance=1 / len(values))],
        stated=[Stated(f"layer with the most, {kind}, epoch {e}", "1", int(v)) for (kind, e), v in firsts.items()],
        conclusion=f"The estimates are held out, on {rows} rows and 16 leading coordinates of each gradient, and such "
        "estimates miss much of the information. A label cannot give more than log 10 = 2.30 nats.",
        notes=("estimates on training rows, as MINE is usually quoted, would be larger",),
    )
    return common.report(result, data=[study.described], rows=rows, steps=steps)


def _snapshots(study: common.LayerData, epochs: tuple[int, ...], seed: int) -> list[torch.nn.Module]:
    with kernels.torch_seeded(seed, kernels.Stream.FIGURE3_NETWORK):
        model = models.mlp(_SIZES, "tanh")
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    return common.snapshots(model, study, epochs, optimiser, lambda: torch.split(torch.arange(len(study.inputs)), 64))


def fig4(context: Context) -> ExperimentResult:
    """LeNet, AlexNet and VGG9, initial networks, as the paper's attacks start from."""
    study = common.images(context)
    counts = context.pick("images of each network", tiny=(2, 1, 1), quick=(10, 3, 3), paper=(40, 20, 20))
    steps = context.pick("iterations of inversion", tiny=3, quick=80, paper=1000)
    panels, stated, largest, fallen, luck = [], [], {}, 0, []
    for kind, count in zip(("lenet", "alexnet", "vgg9"), counts, strict=True):
        x, y = common.sample(study, count, context.seed)
        model = common.network(study, kind, context.seed)
        progress = functools.partial(context.progress, f"inversion, {kind}")
        scores = common.inverted(context, model, x, y, steps, executor=context.executor, progress=progress)
        assert scores.interval is not None
        several = count > 1
        low, high = scores.interval if several else (None, None)
        panels.append(
            Panel.of(
                (f"{kind}, {common.images_in_words(count)}", "pair of layers (first of the two)", "score above f[∅]"),
                common.curve("inversion", "attack", scores.raw, low, high),
                *([common.curve("against other images", "baseline", scores.null)] if several else []),
            )
        )
        fallen += round(scores.falls * count)
        luck.append(1 / len(scores.raw))
        largest[kind] = int(np.argmax(scores.raw)) + 1
        stated.append(
            Stated(
                f"{kind}: share of images whose score falls from first to last pair",
                "falls",
                scores.falls,
                comment=f"{common.images_in_words(count)}; largest at pair {int(np.argmax(scores.raw)) + 1}",
            )
        )
    first = [v == 1 for v in largest.values()]
    result = context.result(
        panels=panels,
        stated=stated,
        checks=[
            Check(
                says="the score falls from the first pair of layers to the last, by image",
                holds=fallen,
                cases=sum(counts),
                chance=0.5,
            ),
            Check.of("the first pair has the most, by network", first, chance=float(np.mean(luck))),
        ],
        conclusion=f"The score is largest at {', '.join(f'pair {v} ({k})' for k, v in largest.items())}. No prior on "
        "images was used, so a pair scores only what its own gradients say.",
        notes=("a total-variation prior raises every pair's score and its score against other images alike",),
    )
    return common.report(result, data=[study.described], iterations=steps, images=counts)
