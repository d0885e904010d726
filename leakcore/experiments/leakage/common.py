"""What the layer-wise figures share: data with attributes, networks trained on them, gradients, and curves by layer."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from leakcore import datasets, kernels, leakage, models
from leakcore._base.digest import digest
from leakcore.attacks import attributes as attack
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Series, Stated
from leakcore.experiments.driver.verdict import Check
from leakcore.gradients import LayeredModel, gradients_of_layers

SOURCE = "Mo, Borovykh, Malekzadeh, Haddadi and Demetriou, Quantifying and Localizing Private Information Leakage, 2021"


_IMAGES = 2500
"""The most of a set, which is what there is of the smallest."""
ROLES = {"lenet": "attack", "alexnet": "attack-2", "vgg9": "attack-3"}
"""How each network is drawn."""
CLASSIFIER = {"lenet": 2, "alexnet": 5, "vgg9": 6, "textclf": 2}
"""How many layers each network has before its first fully connected one."""


@dataclasses.dataclass(frozen=True, eq=False)
class LayerData:
    """inputs, targets: float32 and int64 tensors. attributes: {name: (rows,) booleans}. classifier: number of layers
    before the first fully connected one. described: the data, in words."""

    name: str
    inputs: torch.Tensor
    targets: torch.Tensor
    classes: int
    attributes: dict[str, np.ndarray]
    described: str


def images(context: Context) -> LayerData:
    """CIFAR-100's extract, training and test rows, the superclass as task; plain features of the image as
    attributes."""
    parts = [
        datasets.cifar100(split, part="subset", labels="coarse", path=context.data, download=False)
        for split in ("train", "test")
    ]
    x = torch.from_numpy(np.concatenate([p.images() for p in parts]))
    y = torch.from_numpy(np.concatenate([p.labels for p in parts]))
    return LayerData("CIFAR-100", x, y, 20, leakage.input_attributes(x), f"{parts[0].name} and test, superclasses")


def image_sets(context: Context) -> list[LayerData]:
    """Four sets of images, as the paper has four: CIFAR-100, CIFAR-10, MNIST and Fashion-MNIST, at most 2,500 rows
    each, with their classes as task; at the tiny scale the first alone."""
    out = [images(context)]
    if context.scale == "tiny":
        return out
    path: dict[str, Any] = {"path": context.data, "download": False}
    cars = [datasets.cifar10(split, part="airplane-automobile", **path) for split in ("train", "test")]
    parts = {
        "CIFAR-10": cars,
        "MNIST": [datasets.mnist("test", **path)],
        "Fashion-MNIST": [datasets.fashion_mnist("test", **path)],
    }
    for name, read in parts.items():
        x = torch.from_numpy(np.concatenate([p.images() for p in read])[:_IMAGES].copy())
        y = torch.from_numpy(np.concatenate([p.labels for p in read])[:_IMAGES].copy())
        described = " and ".join([read[0].name, *("test" for _ in read[1:])])
        classes = int(y.max()) + 1
        out.append(LayerData(name, x, y, classes, leakage.input_attributes(x), described))
    return out


def bank(context: Context, attribute: str, *, with_column: bool) -> LayerData:
    """Bank Marketing: task is the subscription, attribute "housing" loan or "married", with or without its columns."""
    data = datasets.bank_marketing(path=context.data, download=False)
    # After ten numeric columns: job 12, marital 4, education 8, default 3, housing 3 …, in the file's order.
    block, place = {"married": (slice(22, 26), 23), "housing": (slice(37, 40), 38)}[attribute]
    has = data.features[:, place] > 0.5
    columns_used = np.ones(data.features.shape[1], bool)
    if not with_column:
        columns_used[block] = False
    x = torch.from_numpy(data.features[:, columns_used]).float()
    described = f"{data.name}, {attribute} {'kept' if with_column else 'left out of the inputs'}"
    return LayerData("Bank", x, torch.from_numpy(data.labels.copy()), 2, {attribute: has}, described)


def reviews(context: Context) -> LayerData:
    """IMDB, sentiment as task, whether the review is longer than the median as attribute."""
    parts = [datasets.imdb(split, path=context.data) for split in ("train", "test")]
    x = torch.from_numpy(np.concatenate([p.features.reshape(len(p), 50, 100) for p in parts]))
    y = torch.from_numpy(np.concatenate([p.labels for p in parts]))
    lengths = np.concatenate([p.lengths for p in parts])
    return LayerData("IMDB", x, y, 2, {"length": lengths > np.median(lengths)}, f"{parts[0].name} and test")


def network(study: LayerData, kind: str, seed: int) -> torch.nn.Module:
    """An initial network, by seed; torch's global generator is left as it was."""
    with kernels.torch_seeded(seed, kernels.Stream.STUDY_NETWORK):
        if kind == "mlp":
            return models.mlp((study.inputs.shape[1], 64, 64, study.classes), "relu")
        build = {"lenet": models.lenet, "alexnet": models.alexnet, "vgg9": models.vgg9, "textclf": models.textclf}[kind]
        return build(study.classes, shape=tuple(study.inputs.shape[1:]))


def trained(
    context: Context, study: LayerData, kind: str, epochs: Sequence[int], *, rate: float = 0.05
) -> list[torch.nn.Module]:
    """The network after each number of epochs of SGD, batches of 32 and momentum 0.5, on all rows; one stored piece."""
    named = digest(kind, list(epochs), rate, study.classes, study.inputs, study.targets)
    piece = context.pieces.get_or_run(
        f"{kind}-{named[:20]}",
        lambda: {"networks": [models.state_arrays(m) for m in _train(study, kind, epochs, context.seed, rate)]},
    )
    out = [network(study, kind, context.seed).eval() for _ in piece["networks"]]
    for model, state in zip(out, piece["networks"], strict=True):
        models.load_state_arrays(model, state)
    return out


def _train(study: LayerData, kind: str, epochs: Sequence[int], seed: int, rate: float) -> list[torch.nn.Module]:
    model = network(study, kind, seed)
    rng = kernels.generator(seed, kernels.Stream.STUDY_ORDER)
    parts = max(1, len(study.inputs) // 32)
    return snapshots(
        model,
        study,
        epochs,
        torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5),
        lambda: map(torch.from_numpy, np.array_split(rng.permutation(len(study.inputs)), parts)),
    )


def snapshots(
    model: torch.nn.Module,
    study: LayerData,
    epochs: Sequence[int],
    optimiser: torch.optim.Optimizer,
    batches: Callable[[], Iterable[torch.Tensor]],
) -> list[torch.nn.Module]:
    """The model after each number of epochs. batches: rows of each batch of an epoch."""
    out, done = [], 0
    for until in epochs:
        while done < until:
            for rows in batches():
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(study.inputs[rows]), study.targets[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            done += 1
        out.append(copy.deepcopy(model).eval())
    return out


def inverted(
    context: Context, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, **how: Any
) -> leakage.OriginalInformation:
    """What inversion of pairs of layers finds, in so many steps; how: of `PairInversion`, or the executor, progress."""
    run = {name: how.pop(name) for name in ("executor", "progress") if name in how}
    inversion = leakage.PairInversion(iterations=steps, low=0.0, high=1.0, **how)
    return leakage.v_information_original(model, x, y, inversion=inversion, seed=context.seed, **run)


def sample(study: LayerData, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs to invert or differentiate at, drawn by seed."""
    rng = kernels.generator(seed, kernels.Stream.STUDY_INPUTS)
    rows = torch.from_numpy(rng.choice(len(study.inputs), count, replace=False))
    return study.inputs[rows], study.targets[rows]


@dataclasses.dataclass(frozen=True, eq=False)
class Sets:
    """Gradients with and without an attribute: {layer: (n, parameters)}, label-matched, disjoint, equal in number."""

    gradients: dict[str, np.ndarray]
    attribute: np.ndarray
    targets: np.ndarray

    def latent(
        self,
        context: Context,
        permutations: int,
        *,
        family: Any = "magnitudes",
        gradients: dict[str, np.ndarray] | None = None,
    ) -> leakage.VInformation:
        """What a family reads of the attribute in these gradients, or in others of the same rows."""
        return leakage.v_information(
            self.gradients if gradients is None else gradients,
            self.attribute,
            family=family,
            permutations=permutations,
            validation=leakage.CrossValidation(strata=self.targets),
            seed=context.seed,
            executor=context.executor,
        )


def sets(
    model: torch.nn.Module,
    study: LayerData,
    attribute: str,
    *,
    rows: int,
    seed: int,
    columns: int = 4000,
    size: int = 1,
) -> Sets:
    """Gradients of `rows` single samples per side (fewer where the data hold fewer), at most so many columns
    a layer."""
    batches = attack.matched_batches(
        study.attributes[attribute], study.targets.numpy(), size=size, limit=rows, seed=seed
    )
    rng = kernels.generator(seed, kernels.Stream.STUDY_COLUMNS)
    parts: dict[str, list[np.ndarray]] = {}
    chosen: dict[str, Any] = {}
    layered = LayeredModel.of(model, study.inputs, study.targets)
    for start in range(0, len(batches.rows), 64):
        block = gradients_of_layers(layered, batches=batches.rows[start : start + 64])
        for name, gradients in block.items():
            if name not in chosen:
                wide = gradients.shape[1] > columns
                chosen[name] = np.sort(rng.choice(gradients.shape[1], columns, replace=False)) if wide else slice(None)
            parts.setdefault(name, []).append(gradients[:, chosen[name]])
    return Sets({n: np.concatenate(v) for n, v in parts.items()}, batches.attribute, batches.targets)


CONFIDENCE = 0.95
"""Confidence of the intervals of correlations."""
_NOTES = (
    (
        "LFW, CelebA, PubFig and CSI are not here: plain features of CIFAR-100 images, IMDB and Bank Marketing stand "
        "for their attributes"
    ),
    "estimates on single samples of networks trained here; no bound on any attack",
)


def report(result: ExperimentResult, *, data: Sequence[str], **settings: Any) -> ExperimentResult:
    """The result with the notes that all of them share."""
    return dataclasses.replace(
        result, notes=(*result.notes, *_NOTES), data=tuple(dict.fromkeys(data)), settings=settings, provenance=SOURCE
    )


def curve(name: str, role: str, values: Any, low: Any = None, high: Any = None, x: Any = None) -> Series:
    """Values over layers 1, 2, …, or over x."""
    y = np.asarray(values, float)
    return Series.of(name, role, np.arange(1, len(y) + 1) if x is None else np.asarray(x), y, low=low, high=high)


def images_in_words(count: int) -> str:
    """A number of images, in words."""
    return f"{count} image{'s' * (count != 1)}"


def correlation(first: Any, second: Any) -> tuple[float, tuple[float, float]]:
    """Pearson's R with Fisher's 95% interval, the points taken as independent; NaN for fewer than four."""
    a, b = np.ravel(first), np.ravel(second)
    if len(a) < 4 or a.std() == 0 or b.std() == 0:
        return math.nan, (math.nan, math.nan)
    r = float(np.clip(np.corrcoef(a, b)[0, 1], -0.999999, 0.999999))
    reach = 1.959964 / math.sqrt(len(a) - 3)
    return r, (math.tanh(math.atanh(r) - reach), math.tanh(math.atanh(r) + reach))


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """A measure of every layer of one network, and the same over the root of the layer's number of parameters."""

    values: np.ndarray
    per_parameter: np.ndarray

    @property
    def largest(self) -> int:
        """The layer with the largest value, from 1."""
        return int(np.argmax(self.values)) + 1

    @property
    def largest_per_parameter(self) -> int:
        """The layer with the largest value over the root of its number of parameters, from 1."""
        return int(np.argmax(self.per_parameter)) + 1

    @property
    def ratio(self) -> float:
        """The mean over the first half of the layers over that over the second; a middle layer is in neither."""
        half = len(self.values) // 2
        return float(self.values[:half].mean() / max(float(self.values[-half:].mean()), 1e-30))

    @property
    def falls(self) -> bool:
        """Whether the first half of the layers has the larger mean."""
        return self.ratio > 1


def first_half(orders: Sequence[Order]) -> Check:
    """The paper's sentence on sensitivity, "gradients of the first layers are more sensitive compared to latter
    layers", asked of every network: a coin would say so of half of them."""
    return Check.of(
        "the first half of the layers is more sensitive than the second, by network and set",
        [o.falls for o in orders],
        chance=0.5,
    )


def stated_r(what: str, r: float, span: tuple[float, float], comment: str) -> Stated:
    """R next to the paper's."""
    more: dict[str, Any] = {"kind": "estimate", "confidence": CONFIDENCE, "comment": comment}
    return Stated(what, "0.686–0.707", r, interval=span, **more)


def checks_of_r(what: str, span: tuple[float, float]) -> list[Check]:
    """Whether it is above 0, and as printed."""
    return [
        Check.of(f"{what} correlates with V-information, the interval above 0", [span[0] > 0], chance=0.025),
        Check.size("the interval meets the printed 0.686 to 0.707", [span[0] <= 0.707 and span[1] >= 0.686]),
    ]
