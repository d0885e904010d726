"""The two data sets, cut into training rows and a pool of candidates, and what was really used, in words."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import datasets, kernels, models
from leakcore._base.digest import digest
from leakcore.experiments.driver.context import Context

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The rows everyone knows, the pool that candidates and targets come from, the classes, what it is, and where the
    model sees features of a frozen network: that network and the pool's images."""

    known_features: np.ndarray
    known_labels: np.ndarray
    pool_features: np.ndarray
    pool_labels: np.ndarray
    classes: int
    described: str
    images: np.ndarray
    shape: tuple[int, ...]
    embed: torch.nn.Module | None = None
    accuracy: float = float("nan")

    @functools.cached_property
    def content(self) -> str:
        """A digest of all rows, so that a stored piece serves only the data that it was computed from."""
        return digest(self.known_features, self.known_labels, self.pool_features, self.pool_labels, self.images)

    def cut(self, rows: int) -> Split:
        """The same with the first `rows` known rows only."""
        return dataclasses.replace(
            self, known_features=self.known_features[:rows], known_labels=self.known_labels[:rows]
        )


def mnist(context: Context, known: int) -> Split:
    """MNIST's test split, shuffled: `known` rows, the rest are the pool."""
    data = datasets.mnist("test", path=context.data, download=False)
    first, rest = data.split(known, seed=context.seed)
    return Split(
        first.features,
        first.labels,
        rest.features,
        rest.labels,
        data.num_classes,
        f"MNIST, the test split's {len(data):,} images: {known:,} known rows, targets and candidates from the other "
        f"{len(rest):,}; {data.scaling}",
        rest.features,
        (28, 28),
    )


def noise_pool(context: Context, split: Split, rows: int) -> Split:
    """The same known rows; targets and candidates of uniform noise at the pool's distances."""
    like = datasets.mnist("test", path=context.data, download=False)
    drawn = datasets.uniform_noise(like, rows, seed=context.seed)
    return dataclasses.replace(split, pool_features=drawn.features, pool_labels=drawn.labels, images=drawn.features)


def cifar10(context: Context, known: int) -> Split:
    """CIFAR-10 as the scale has it: at the paper's, ten classes as features of WRN-28-10; below, two of a small one."""
    if context.scale != "paper":
        split = cifar10_pair(context, known)
    else:
        data = datasets.cifar10("train", path=context.data, download=False)
        split = _of_features(context, data, known, f"CIFAR-10, all ten classes ({len(data):,} training images")
    context.departs("classes of CIFAR-10", "10", f"{split.classes}")
    width, network = split.known_features.shape[1], "WRN-28-10" if context.scale == "paper" else "a small network"
    context.departs("features", "640 of WRN-28-10, trained on ImageNet", f"{width} of {network}, trained on CIFAR-100")
    context.departs(
        "accuracy on CIFAR-10",
        "61.88%, 89.09% and 91.27% at ε = 1, 10 and 100",
        f"{split.accuracy:.1%} by a linear classifier without noise",
    )
    return split


def cifar10_pair(context: Context, known: int) -> Split:
    """CIFAR-10's airplanes and automobiles, as features."""
    data = datasets.cifar10("train", part="airplane-automobile", path=context.data, download=False)
    return _of_features(context, data, known, f"CIFAR-10, airplane and automobile only ({len(data):,} training images")


def _of_features(context: Context, data: datasets.Dataset, known: int, what: str) -> Split:
    """Frozen features, cut in two, and how well a linear classifier reads them."""
    extractor, trained_on = _extractor(context)
    images = data.features.reshape(len(data), *(data.shape or (3, 32, 32)))
    features = models.extract_features(extractor, images)
    order = data.order(context.seed)
    first, rest = order[:known], order[known:]
    read = _read_linearly(features, data.labels, data.num_classes, order)
    return Split(
        features[first],
        data.labels[first],
        features[rest],
        data.labels[rest],
        data.num_classes,
        f"{what}: {known} known rows, targets and candidates from the other {len(rest):,}). The last layer is trained "
        f"on {features.shape[1]} features of {trained_on}. A linear classifier of these features, fitted to half of "
        f"the images, is right on {read:.1%} of the others (the paper's features: WRN-28-10, trained on ImageNet)",
        data.features[rest],
        (3, 32, 32),
        extractor,
        read,
    )


def _read_linearly(features: np.ndarray, labels: np.ndarray, classes: int, order: np.ndarray) -> float:
    """Accuracy on half of the rows of ridge regression on the other half, class by class."""
    half = len(order) // 2
    x = np.column_stack([features, np.ones(len(features), features.dtype)]).astype(np.float64)
    inside, outside = x[order[:half]], x[order[half:]]
    gram = inside.T @ inside + len(inside) * 1e-3 * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, inside.T @ np.eye(classes)[labels[order[:half]]])
    return float(((outside @ weights).argmax(1) == labels[order[half:]]).mean())


def _extractor(context: Context) -> tuple[torch.nn.Module, str]:
    """The frozen network, trained once and stored as a piece; its outputs are standardised on the public images."""
    whole = context.scale == "paper"
    public = datasets.cifar100("train", part="all" if whole else "subset", path=context.data, download=False)
    images = public.features.reshape(len(public), *(public.shape or (3, 32, 32)))
    epochs = context.pick("epochs of training", tiny=1, quick=8, paper=40)
    with kernels.torch_seeded(context.seed, kernels.Stream.EXPERIMENT_EXTRACTOR):
        extractor = models.wrn_28_10(None) if whole else _small(context.scale)

    def train() -> dict[str, Any]:
        accuracy = models.train_extractor(
            extractor,
            images,
            public.labels,
            epochs=epochs,
            seed=context.seed,
            progress=lambda done, total: context.progress("feature extractor", done, total),
        )
        return {"accuracy": accuracy, "state": models.state_arrays(extractor)}

    shapes = str([tuple(parameter.shape) for parameter in extractor.parameters()])
    piece = context.pieces.get_or_run(f"extractor-{digest(images, public.labels, shapes)[:20]}", train)
    models.load_state_arrays(extractor, piece["state"])
    kind = "WRN-28-10" if whole else "a small convolutional network"
    return models.standardised(extractor, images), (
        f"{kind} that we trained on {len(public):,} images of CIFAR-100 for {epochs} epochs (its training accuracy: "
        f"{piece['accuracy']:.1%}), standardised by the same images' mean and variance"
    )


def _small(scale: str) -> torch.nn.Module:
    """With as many features as WRN-28-10 has, 640, of four parts of the image."""
    return models.conv_extractor(4) if scale == "tiny" else models.conv_extractor(40, cells=2)


def as_picture(split: Split, rows: np.ndarray) -> np.ndarray:
    """(rows, height, width) or (rows, height, width, 3), whatever the set."""
    if len(split.shape) == 2:
        plain: np.ndarray = rows.reshape(-1, *split.shape)
        return plain
    colour: np.ndarray = rows.reshape(-1, *split.shape).transpose(0, 2, 3, 1)
    return colour
