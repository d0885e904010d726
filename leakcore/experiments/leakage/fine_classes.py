"""Membership of a fine class inside its superclass, as a latent attribute of the superclass task."""

from __future__ import annotations

import numpy as np
import torch

from leakcore import datasets, leakage
from leakcore.experiments.context import Context
from leakcore.experiments.leakage import notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.result import Panel, Stated


def fine_classes(context: Context, study: _study.LayerData) -> list[_study.LayerData]:
    """A study per superclass of CIFAR-100, attribute "fine": of the first of its five fine classes."""
    fine = np.concatenate(
        [
            datasets.cifar100(split, part="subset", labels="fine", path=context.data, download=False).labels
            for split in ("train", "test")
        ]
    )
    coarse = study.targets.numpy()
    out = []
    for superclass in range(study.classes):
        rows = np.flatnonzero(coarse == superclass)
        index = torch.from_numpy(rows)
        out.append(
            _study.LayerData(
                study.name,
                study.inputs[index],
                study.targets[index],
                study.classes,
                {"fine": fine[rows] == fine[rows].min()},
                study.described,
            )
        )
    return out


def measured(
    context: Context, model: torch.nn.Module, study: _study.LayerData, before: int, title: str
) -> tuple[Panel, Stated]:
    """What the first classifier layer's gradient says of each; too few images for a null, so an interval alone."""
    estimates = []
    sizes = 0
    for inside in fine_classes(context, study)[: context.pick(tiny=2, quick=None, paper=None)]:
        layers = _study.sets(model, inside, "fine", rows=10**6, seed=context.seed, columns=2000)
        layer = list(layers.gradients)[before]
        estimates.append(
            leakage.v_information(
                layers.gradients[layer],
                layers.attribute,
                family="magnitudes",
                permutations=0,
                seed=context.seed,
                executor=context.executor,
            )
        )
        sizes = estimates[-1].set_sizes[0]
    low, high = (np.array([f.held_out_interval[i] for f in estimates]) for i in (0, 1))
    above = int((low > 0).sum())
    panel = Panel(
        title=f"{title}: fine class in its superclass",
        x_label=f"superclass ({sizes} images a side)",
        y_label="V-information, nats",
        series=(notes.curve("magnitudes", "attack", [float(f.value) for f in estimates], low, high),),
        y_range=None,
    )
    stated = Stated(
        what=f"{title}, fine class in its superclass: superclasses whose 95% interval lies above 0",
        paper="–",
        ours=above,
        comment=f"of {len(estimates)}, {sizes} images a side, first classifier layer; chance: one in 40",
    )
    return panel, stated
