"""The two data sets, cut into training rows and a pool of candidates, and what was really used, in words."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import datasets, kernels, models
from leakcore._base.digest import digest
from leakcore.experiments.context import Context

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

    @functools.cached_property
    def content(self) -> str:
        """A digest of all rows, so that a stored piece serves only the data that it was computed from."""
        return digest(
            self.known_features, self.known_labels, self.pool_features, self.pool_labels, self.images
        )  # fmt: skip

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
    """CIFAR-10's two classes as features of a small convolutional network trained on CIFAR-100, which stands for the
    ImageNet-pretrained WRN-28-10."""
    data = datasets.cifar10("train", part="airplane-automobile", path=context.data, download=False)
    extractor, trained_on = _extractor(context)
    images = data.features.reshape(len(data), *(data.shape or (3, 32, 32)))
    features = models.extract_features(extractor, images)
    order = data.order(context.seed)
    first, rest = order[:known], order[known:]
    return Split(
        features[first],
        data.labels[first],
        features[rest],
        data.labels[rest],
        2,
        f"CIFAR-10, airplane and automobile only ({len(data):,} training images: {known} known rows, targets and "
        f"candidates from the other {len(rest):,}). The last layer is trained on {features.shape[1]} features of a "
        f"convolutional network that we trained on {trained_on}; it stands in for the paper's ImageNet-pretrained "
        "WRN-28-10",
        data.features[rest],
        (3, 32, 32),
        extractor,
    )


def _extractor(context: Context) -> tuple[torch.nn.Module, str]:
    """The frozen network, trained once and stored as a piece; its outputs are standardised on the public images."""

    public = datasets.cifar100("train", part="subset", path=context.data, download=False)
    images = public.features.reshape(len(public), *(public.shape or (3, 32, 32)))
    epochs = context.pick(tiny=1, quick=8, paper=40)
    with kernels.torch_seeded(context.seed, kernels.Stream.EXPERIMENT_EXTRACTOR):
        extractor = models.conv_extractor(context.pick(tiny=4, quick=16, paper=32))

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

    piece = context.pieces.get_or_run(f"extractor-{digest(images, public.labels)[:20]}", train)
    models.load_state_arrays(extractor, piece["state"])
    return models.standardised(extractor, images), (
        f"{len(public):,} images of CIFAR-100 for {epochs} epochs, standardised by the same images' mean and variance"
    )


def as_picture(split: Split, rows: np.ndarray) -> np.ndarray:
    """(rows, height, width) or (rows, height, width, 3), whatever the set."""
    if len(split.shape) == 2:
        plain: np.ndarray = rows.reshape(-1, *split.shape)
        return plain
    colour: np.ndarray = rows.reshape(-1, *split.shape).transpose(0, 2, 3, 1)
    return colour
