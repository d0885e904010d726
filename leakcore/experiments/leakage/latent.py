"""Figures 5 and 7: latent information of every layer, by V-information and by subspace distance."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from leakcore import datasets, leakage
from leakcore.attacks import attributes as attack
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Stated
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.leakage import common


class Case(NamedTuple):
    """A trained network, its data, and an attribute of them.

    before: number of layers before the classifier. is_input: whether the attribute's own column is among the inputs.
    """

    title: str
    model: torch.nn.Module
    data: common.LayerData
    attribute: str
    before: int
    is_input: bool = False

    @property
    def label(self) -> str:
        return f"{self.title}: {self.attribute}" if self.before else self.title


def _cases(context: Context, *, every_set: bool = False) -> list[Case]:
    """LeNet on images, TextClf on reviews, an MLP on bank clients, each trained briefly.

    every_set: also AlexNet and VGG9, and LeNet on every set of images.
    """
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    out: list[Case] = []
    images = common.images(context)
    every_network = context.scale == "paper" or (every_set and context.scale != "tiny")
    pairs = [(images, kind) for kind in (("lenet", "alexnet", "vgg9") if every_network else ("lenet",))]
    if every_set:
        pairs += [(other, "lenet") for other in common.image_sets(context)[1:]]
    for data, kind in pairs:
        (model,) = common.trained(context, data, kind, [epochs])
        before = common.CLASSIFIER[kind]
        out += [Case(f"{kind}, {data.name}", model, data, name, before) for name in data.attributes]
    text = common.reviews(context)
    (model,) = common.trained(context, text, "textclf", [epochs])
    out.append(Case("TextClf, IMDB", model, text, "length", common.CLASSIFIER["textclf"]))
    for attribute in ("housing", "married"):
        for is_input in (True, False):
            clients = common.bank(context, attribute, with_column=is_input)
            (model,) = common.trained(context, clients, "mlp", [epochs])
            title = f"MLP, Bank, {attribute} {'in' if is_input else 'not in'} the inputs"
            out.append(Case(title, model, clients, attribute, 0, is_input))
    return out


def _by_superclass(context: Context, study: common.LayerData) -> list[common.LayerData]:
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
            common.LayerData(
                study.name,
                study.inputs[index],
                study.targets[index],
                study.classes,
                {"fine": fine[rows] == fine[rows].min()},
                study.described,
            )
        )
    return out


def _fine_classes(context: Context, case: Case) -> tuple[Panel, Stated, str]:
    """What the first classifier layer's gradient says of the fine class in each superclass, and a sentence; too few
    images for a null, so an interval alone."""
    estimates = []
    sizes = 0
    for inside in _by_superclass(context, case.data)[: context.pick(tiny=2, quick=None, paper=None)]:
        layers = common.sets(case.model, inside, "fine", rows=10**6, seed=context.seed, columns=2000)
        layer = list(layers.gradients)[case.before]
        gradients = layers.gradients[layer]
        how: dict[str, Any] = {"seed": context.seed, "executor": context.executor}
        estimates.append(leakage.v_information(gradients, layers.attribute, family="magnitudes", permutations=0, **how))
        sizes = estimates[-1].set_sizes[0]
    low, high = (np.array([f.held_out_interval[i] for f in estimates]) for i in (0, 1))
    above = int((low > 0).sum())
    panel = Panel.of(
        (f"{case.title}: fine class in its superclass", f"superclass ({sizes} images a side)", "V-information, nats"),
        common.curve("magnitudes", "attack", [float(f.value) for f in estimates], low, high),
    )
    stated = Stated(
        f"{case.title}, fine class in its superclass: superclasses whose 95% interval lies above 0",
        "–",
        above,
        comment=f"of {len(estimates)}, {sizes} images a side, first classifier layer; chance: one in 40",
    )
    sentence = (
        f"In {above} of {len(estimates)} superclasses the first classifier layer's 95% interval for the fine class "
        "lies above 0."
    )
    return panel, stated, sentence


_FAMILIES = {"magnitudes": "attack", "random-forest": "attack-2", "mlp": "attack-3", "logistic": "orthogonal"}


def fig5(context: Context) -> ExperimentResult:
    """Logistic regression, random forest and MLP on at least 200 rows of either side."""
    rows = context.pick("rows", tiny=15, quick=200, paper=600)
    shuffles = context.pick("permutations", tiny=1, quick=4, paper=50)
    families = context.pick(
        "families of predictors",
        tiny=("magnitudes",),
        quick=("magnitudes", "random-forest"),
        paper=("magnitudes", "random-forest", "mlp", "logistic"),
    )
    panels, stated, data, peaks, luck = [], [], [], [], []
    bank: dict[bool, list[float]] = {True: [], False: []}
    cases = _cases(context)
    for number, case in enumerate(cases):
        layers = common.sets(case.model, case.data, case.attribute, rows=rows, seed=context.seed, columns=2000)
        series, peaks_before, highest = [], [], -math.inf
        for family in families:
            kind = leakage.RandomForest(40) if family == "random-forest" and context.scale != "paper" else family
            information = layers.latent(context, shuffles, family=kind)
            series.append(common.curve(family, _FAMILIES[family], information.value, *information.held_out_interval))
            if family == families[0]:
                series.append(common.curve("magnitudes, labels permuted", "baseline", information.null_mean))
            above = np.asarray(information.above_null)
            best = int(np.argmax(above))
            highest = max(highest, float(above[best]))
            peaks_before.append(best == case.before and case.before > 0)
            what, paper = f"{case.title}, {case.attribute}, {family}: largest", f"layer {case.before + 1}"
            sizes = f"{information.set_sizes[0]} rows a side, log 2 = 0.693 at most"
            comment = f"above its null, at layer {best + 1}; {sizes}"
            stated.append(Stated(what, paper if case.before else "–", float(above[best]), comment=comment))
        if case.before:
            peaks += peaks_before
            luck.append(1 / len(above))
        else:
            bank[case.is_input].append(highest)
        panels.append(Panel.of((case.label, "layer", "V-information, nats"), *series))
        data.append(case.data.described)
        context.progress("latent V-information", number + 1, len(cases))
    panel, fine, sentence = _fine_classes(context, cases[0])
    panels.append(panel)
    stated.append(fine)
    result = context.result(
        panels=panels,
        stated=stated,
        checks=[
            Check.of("the first classifier layer is the highest above its null", peaks, chance=float(np.mean(luck)))
        ],
        conclusion=f"Attributes of bank clients give at least {min(bank[True]):.2f} nats while their column is among "
        f"the inputs, and at most {max(bank[False]):.3f} without it. {sentence} Bars are 95% intervals over rows.",
        notes=(
            (
                "magnitudes: logistic regression on absolute values, for a target turns a gradient's signs, which a "
                "linear reader of the values cannot undo"
            ),
        ),
    )
    return common.report(result, data=data, rows=rows, permutations=shuffles, families=families)


def fig7(context: Context) -> ExperimentResult:
    """The networks and attributes of figure 5 and further networks and sets of images; the correlation is over layers
    and attributes, each above its null."""
    rows = context.pick("rows", tiny=15, quick=200, paper=600)
    shuffles = context.pick("permutations", tiny=2, quick=19, paper=99)
    panels, stated, data, apart, informed, peaks, luck = [], [], [], [], [], [], []
    chance: list[float] = []
    outside = 0
    cases = _cases(context, every_set=True)
    displayed: set[str] = set()
    for number, case in enumerate(cases):
        batches = attack.matched_batches(
            case.data.attributes[case.attribute], case.data.targets.numpy(), limit=rows, seed=context.seed
        )
        groups = [batches.rows[batches.attribute == side, 0] for side in (0, 1)]
        size = min(10, len(groups[0]))
        means = [
            attack.layer_gradients(
                case.model,
                case.data.inputs,
                case.data.targets,
                weights_only=True,
                batches=g[: len(g) // size * size].reshape(size, -1),
            )
            for g in groups
        ]
        distances = leakage.subspace_distance(*means, permutations=shuffles, paired=True, seed=context.seed)
        values = [float(f.value) for f in distances.values()]
        null = np.array([f.null for f in distances.values()])
        if case.title not in displayed:  # one attribute of each pair of network and set
            panels.append(
                Panel.of(
                    (case.label, "layer", "Grassmann distance, radians"),
                    common.curve("with against without", "attack", values),
                    common.curve("attribute permuted, mean and range", "null", null.mean(1), null.min(1), null.max(1)),
                )
            )
        displayed.add(case.title)
        above = np.array([f.above_null for f in distances.values()])
        beyond = sum(f.p_value <= 1 / (1 + shuffles) + 1e-9 for f in distances.values())
        outside += beyond
        chance += [float(f.null_mean / f.value) for f in distances.values() if float(f.value) > 1e-6]
        top, most = int(np.argmax(values)) + 1, int(np.argmax(above)) + 1
        what = f"{case.title}, {case.attribute}: layers beyond every permutation"
        comment = f"of {len(values)}; largest distance at layer {top}, most above its null at layer {most}"
        stated.append(Stated(what, "–", int(beyond), comment=comment))
        if case.before:
            peaks.append(case.before < top <= case.before + 2)
            luck.append(2 / len(values))
        layers = common.sets(case.model, case.data, case.attribute, rows=rows, seed=context.seed, columns=2000)
        latent = layers.latent(context, 0)
        apart += list(above / np.array([max(f.largest, 1e-9) for f in distances.values()]))
        informed += list(np.asarray(latent.value))
        data.append(case.data.described)
        context.progress("subspace distance", number + 1, len(cases))
    r, span = common.correlation(apart, informed)
    points = f"{len(apart)} layers of all panels, distances above their nulls, over their largest"
    stated.append(common.stated_r("R with latent V-information (magnitudes)", r, span, points))
    result = context.result(
        panels=panels,
        stated=stated,
        checks=[
            Check.of(
                "the distance is largest at the first or second classifier layer", peaks, chance=float(np.mean(luck))
            ),
            Check(
                says="a layer's distance lies beyond every permutation",
                holds=outside,
                cases=len(apart),
                chance=1 / (1 + shuffles),
            ),
            *common.checks_of_r("distance", span),
        ],
        conclusion="Gradients swapped within pairs of one target lie at "
        f"{np.median(chance):.0%} of that distance (median over layers). The part of the distance above its null "
        f"correlates with latent V-information at R = {r:.2f} [{span[0]:.2f}, {span[1]:.2f}] (the paper: 0.69–0.71).",
    )
    return common.report(result, data=data, rows=rows, permutations=shuffles)
