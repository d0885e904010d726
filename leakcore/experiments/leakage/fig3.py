"""Figure 3: mutual information of each layer's gradient with the input and with the label, by MINE, held out."""

from __future__ import annotations

import copy

import numpy as np
import torch

from leakcore import datasets, kernels, leakage, models
from leakcore.attacks import attributes as attack
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated
from leakcore.experiments.verdict import Check

_SIZES = (784, 64, 48, 32, 24, 20, 16, 12, 10)


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """An eight-layer network on MNIST's test images, before and after training."""
    data = datasets.mnist("test", path=context.data, download=False)
    rows = context.pick("rows", tiny=80, quick=600, paper=4000)
    steps = context.pick("steps of each estimate", tiny=10, quick=200, paper=600)
    epochs = context.pick("epochs of training", tiny=(0, 1), quick=(0, 4), paper=(0, 1, 5, 20, 60))
    study = _study.LayerData(
        "MNIST",
        torch.from_numpy(data.features[:4000].copy()),
        torch.from_numpy(data.labels[:4000].copy()),
        10,
        {},
        data.name,
    )
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
                Panel(
                    title=f"with {kind}, {'initial network' if epoch == 0 else f'after {epoch} epochs'}",
                    x_label="layer",
                    y_label="nats",
                    series=(
                        notes.curve("MINE, held out", "attack", values, low, high),
                        notes.curve("rows permuted", "baseline", [f.null_mean for f in estimates]),
                    ),
                    y_range=None,
                )
            )
            firsts[kind, epoch] = int(np.argmax(values)) + 1
    ones = [v == 1 for v in firsts.values()]
    summary = ", ".join(
        f"layer {v} ({kind} {'at the start' if e == 0 else f'after {e} epochs'})" for (kind, e), v in firsts.items()
    )
    findings = Findings(
        panels=panels,
        checks=[
            Check(says="the first layer has the most", holds=sum(ones), cases=len(ones), chance=1 / len(values)),
        ],
        stated=[
            Stated(what=f"layer with the most, {kind}, epoch {e}", paper="1", ours=int(v))
            for (kind, e), v in firsts.items()
        ],
        conclusion=f"The layer with the largest estimate is {summary}. The estimates are held out, on {rows} rows and "
        "16 leading coordinates of each gradient, and such estimates miss much of the information. A label cannot give "
        "more than log 10 = 2.30 nats.",
        notes=("estimates on training rows, as MINE is usually quoted, would be larger",),
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[study.described],
        rows=rows,
        steps=steps,
    )


def _snapshots(study: _study.LayerData, epochs: tuple[int, ...], seed: int) -> list[torch.nn.Module]:
    with kernels.torch_seeded(seed, kernels.Stream.FIGURE3_NETWORK):
        model = models.mlp(_SIZES, "tanh")
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    out: list[torch.nn.Module] = []
    done = 0
    for until in epochs:
        while done < until:
            for part in torch.split(torch.arange(len(study.inputs)), 64):
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(study.inputs[part]), study.targets[part])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            done += 1
        out.append(copy.deepcopy(model))
    return out
