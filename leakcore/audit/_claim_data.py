"""The data that a claim is audited on, by name."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore import datasets
from leakcore.audit._claim_config import ClaimConfig

_HELD_OUT = 0.2


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Training and held-out rows, classes, image shape (None: no images), and what they are."""

    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    classes: int
    shape: tuple[int, ...] | None
    described: str


def load(config: ClaimConfig) -> Rows:
    """The configured rows: a seeded shuffle, the first `data.rows` of the training part."""
    name, path, seed = config.data["name"], config.data["path"], config.audit["seed"]
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
            raise ValueError("data.path: purchase100 is not redistributed, say where your copy is")
        whole = datasets.purchase100(path)
    if test is None:
        train, test = whole.split(len(whole) - round(_HELD_OUT * len(whole)), seed=seed)
    else:
        train, _ = whole.split(len(whole), seed=seed)
    rows = config.data["rows"]
    if rows is not None:
        if rows > len(train):
            raise ValueError(f"data.rows={rows}: {name} has {len(train)} training rows")
        train = dataclasses.replace(train, features=train.features[:rows], labels=train.labels[:rows])
    return Rows(
        train.features.astype(np.float32),
        train.labels,
        test.features.astype(np.float32),
        test.labels,
        whole.num_classes,
        whole.shape,
        f"{whole.name}: {len(train):,} training rows, {train.features.shape[1]} features, {whole.num_classes} classes "
        f"({whole.scaling}; {whole.source})",
    )
