"""The data that a claim is audited on, by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import datasets, kernels, models
from leakcore._base.progress import Progress
from leakcore._base.run_folder import PartialResults
from leakcore.audit.claim.config import ClaimConfig

if TYPE_CHECKING:
    import torch

_HELD_OUT = 0.2
_WIDTH, _EPOCHS = 16, 8
"""Size of the frozen network: half a minute of training; 64 features."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClaimRows:
    """Training and held-out rows, classes, image shape (None: not images), and a description.

    Attributes:
        images: the images behind the features of a frozen network, else None.
        test_images: the same of the held-out rows.
        extractor: the frozen network, else None.
    """

    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    classes: int
    shape: tuple[int, ...] | None
    described: str
    images: np.ndarray | None = None
    test_images: np.ndarray | None = None
    extractor: torch.nn.Module | None = None


def load(config: ClaimConfig, pieces: PartialResults, show: Progress) -> ClaimRows:
    """The configured rows: the first `data.num_rows` of the training part after a seeded shuffle.

    A frozen network is trained once and stored, because its rounding depends on torch's threads.
    """
    name, path, seed = config.data.name, config.data.path, config.audit.seed
    test: datasets.Dataset | None = None
    if name == "digits":
        whole = datasets.digits()
        whole = dataclasses.replace(whole, shape=(1, 8, 8))
    elif name == "breast-cancer":
        whole = datasets.breast_cancer()
    elif name == "fashion-mnist":
        whole, test = (
            datasets.fashion_mnist(split, part="classes-0-1", path=path, download=False) for split in ("train", "test")
        )
    elif name == "cifar10":
        whole, test = (
            datasets.cifar10(split, part="airplane-automobile", path=path, download=False)
            for split in ("train", "test")
        )
    elif name == "location30":
        whole = datasets.location30(path=path)
    else:
        if path is None:
            raise ValueError("`data.path` must say where your copy of purchase100 is, which is not redistributed")
        whole = datasets.purchase100(path)
    if test is None:
        train, test = whole.split(len(whole) - round(_HELD_OUT * len(whole)), seed=seed)
    else:
        train, _ = whole.split(len(whole), seed=seed)
    rows = config.data.num_rows
    if rows is not None:
        if rows > len(train):
            raise ValueError(f"`data.num_rows` must be at most the {len(train)} training rows of {name}, got {rows}")
        train = dataclasses.replace(train, features=train.features[:rows], labels=train.labels[:rows])
    loaded = ClaimRows(
        train.features.astype(np.float32),
        train.labels,
        test.features.astype(np.float32),
        test.labels,
        whole.num_classes,
        whole.shape,
        f"{whole.name}: {len(train):,} training rows, {train.features.shape[1]} features, {whole.num_classes} classes "
        f"({whole.scaling}; {whole.source})",
    )
    return loaded if config.data.features == "pixels" else _through(config, loaded, pieces, show)


def _through(config: ClaimConfig, rows: ClaimRows, pieces: PartialResults, show: Progress) -> ClaimRows:
    """The rows as features of a small convolutional network that was trained on the subset of CIFAR-100."""
    public = datasets.cifar100("train", part="subset", path=config.data.path, download=False)
    with kernels.torch_seeded(config.audit.seed, kernels.Stream.EXTRACTOR_INIT):
        network = models.conv_extractor(_WIDTH)

    def train() -> dict[str, Any]:
        accuracy = models.train_extractor(
            network,
            public.images(),
            public.labels,
            epochs=_EPOCHS,
            seed=config.audit.seed,
            progress=lambda done, total: show("frozen network", done, total),
        )
        return {"accuracy": accuracy, "state": models.state_arrays(network)}

    models.load_state_arrays(network, pieces.get_or_run("frozen-network", train)["state"])
    extractor = models.standardised(network, public.images())
    assert rows.shape is not None
    shape = rows.shape
    inside, outside = (
        models.extract_features(extractor, part.reshape(-1, *shape)) for part in (rows.features, rows.test_features)
    )
    return dataclasses.replace(
        rows,
        features=inside,
        test_features=outside,
        images=rows.features,
        test_images=rows.test_features,
        extractor=extractor,
        described=f"{rows.described}, as {inside.shape[1]} features of a frozen convolutional network that was trained "
        f"on {len(public):,} images of CIFAR-100 for {_EPOCHS} epochs and standardised by them",
    )
