"""What a loaded data set is: features, labels, and where they come from."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A labelled data set. The arrays are read-only: attacks and runs share them without copies.

    features: (rows, dimensions) float64, or float32 where they were given so. labels: (rows,) int64 in
        [0, num_classes).
    scaling: what was done to the raw features, in words.
    source, licence: where the data come from and on what terms they may be used.
    shape: of one row's features as an image, (channels, height, width); None where they are none.
    """

    features: np.ndarray
    labels: np.ndarray
    num_classes: int
    name: str
    scaling: str
    source: str
    licence: str
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        features = check.plain_array(features=self.features).copy()
        if features.dtype != np.float32:
            features = features.astype(np.float64)
        labels = check.even_array(labels=self.labels).copy()
        if features.ndim != 2 or labels.shape != features.shape[:1]:
            raise ValueError(
                f"features.shape={features.shape}, labels.shape={labels.shape}: must be (rows, dimensions) and (rows,)"
            )
        if self.shape is not None:
            object.__setattr__(self, "shape", check.sizes(shape=self.shape))
        if self.shape is not None and math.prod(self.shape) != features.shape[1]:
            raise ValueError(f"shape={self.shape}: must hold the {features.shape[1]} columns of features")
        if not np.isfinite(features).all():
            raise ValueError("features: must be finite")
        if not np.issubdtype(labels.dtype, np.integer):
            raise TypeError(f"labels.dtype={labels.dtype}: must be an integer type")
        if labels.size and labels.max() > np.iinfo(np.int64).max:
            raise ValueError(f"labels span [{labels.min()}, {labels.max()}]: must fit int64")
        labels = labels.astype(np.int64)
        object.__setattr__(self, "num_classes", check.integer(1, None, num_classes=self.num_classes))
        if labels.size and not (labels.min() >= 0 and labels.max() < self.num_classes):
            raise ValueError(f"labels span [{labels.min()}, {labels.max()}]: must lie in [0, {self.num_classes - 1}]")
        features.flags.writeable = False
        labels.flags.writeable = False
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, first: int, *, seed: int) -> tuple[Dataset, Dataset]:
        """Two disjoint parts after a seeded shuffle: `first` rows, and the rest.

        The shuffle sorts rows by a uniform variate of Philox (stream DATA_ORDER, row index as column), so it is the
        same on every machine. Raises ValueError unless 0 ≤ first ≤ rows.
        """
        first = check.integer(0, len(self), first=first)
        order = self.order(seed)
        return self._rows(order[:first]), self._rows(order[first:])

    def order(self, seed: int) -> np.ndarray:
        """(rows,) row numbers in the order into which `split` shuffles them."""
        keys = kernels.uniform((1, len(self)), seed=check.seed(seed=seed), purpose=kernels.Stream.DATA_ORDER)
        return np.argsort(keys[0], kind="stable")

    def images(self) -> np.ndarray:
        """(rows, channels, height, width), a view of the features; ValueError where they are no images."""
        if self.shape is None:
            raise ValueError(f"{self.name}: its features are no images")
        return self.features.reshape(len(self), *self.shape)

    def _rows(self, index: np.ndarray) -> Dataset:
        return dataclasses.replace(self, features=self.features[index], labels=self.labels[index])
