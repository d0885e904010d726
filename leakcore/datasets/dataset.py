"""A loaded data set: features, labels, and where they come from."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A labelled data set with read-only arrays, so that attacks and runs share it without copies.

    Two data sets are compared by identity.

    Attributes:
        features: (rows, dimensions), finite; float32 where float32 was passed, else float64.
        labels: (rows,) int64 in [0, num_classes).
        num_classes: number of classes, at least 1.
        name: what the data set is called in reports.
        scaling: what was done to the raw features, in words.
        source: where the data come from.
        licence: on what terms they may be used.
        shape: of one row's features as an image, (channels, height, width); None where the features are not an image.

    Raises:
        ValueError: for shapes that do not match, features that are not finite, or labels outside [0, num_classes).
        TypeError: for labels that are not integers, or features that are not real numbers.

    Example:
        >>> import numpy as np
        >>> from leakcore import datasets
        >>> data = datasets.Dataset(
        ...     features=np.zeros((6, 4)), labels=[0, 1, 2, 0, 1, 2], num_classes=3, name="zeros", scaling="none",
        ...     source="generated", licence="CC0", shape=(1, 2, 2),
        ... )
        >>> train, test = data.split(4, seed=0)
        >>> len(train), len(test), data.images().shape
        (4, 2, (6, 1, 2, 2))
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
                "`features` and `labels` must be (rows, dimensions) and (rows,), "
                f"got {features.shape} and {labels.shape}"
            )
        if self.shape is not None:
            object.__setattr__(self, "shape", check.sizes(shape=self.shape))
        if self.shape is not None and math.prod(self.shape) != features.shape[1]:
            raise ValueError(f"`shape` must hold the {features.shape[1]} columns of features, got {self.shape}")
        if not np.isfinite(features).all():
            raise ValueError("`features` must be finite")
        if labels.dtype.kind not in "iu":  # durations are integers to np.issubdtype
            raise TypeError(f"`labels` must be integers, got {labels.dtype}")
        if labels.size and labels.max() > np.iinfo(np.int64).max:
            raise ValueError(f"`labels` must fit int64, got [{labels.min()}, {labels.max()}]")
        labels = labels.astype(np.int64)
        object.__setattr__(self, "num_classes", check.integer(1, None, num_classes=self.num_classes))
        if labels.size and not (labels.min() >= 0 and labels.max() < self.num_classes):
            raise ValueError(f"`labels` must lie in [0, {self.num_classes - 1}], got [{labels.min()}, {labels.max()}]")
        features.flags.writeable = False
        labels.flags.writeable = False
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, first: int, *, seed: int) -> tuple[Dataset, Dataset]:
        """Two disjoint parts of the rows after a seeded shuffle.

        The shuffle sorts the rows by a uniform variate of Philox (stream DATA_ORDER, row index as column), so the parts
        are the same on every machine.

        Args:
            first: number of rows of the first part.
            seed: of the shuffle.

        Returns:
            A part of `first` rows and a part of all other rows.

        Raises:
            ValueError: unless 0 ≤ first ≤ rows.

        Example:
            >>> from leakcore import datasets
            >>> train, test = datasets.digits().split(1500, seed=0)
            >>> len(train), len(test)
            (1500, 297)
        """
        first = check.integer(0, len(self), first=first)
        order = self.order(seed)
        return self._rows(order[:first]), self._rows(order[first:])

    def order(self, seed: int) -> np.ndarray:
        """The order into which `split` shuffles the rows.

        Args:
            seed: of the shuffle.

        Returns:
            (rows,) row numbers.
        """
        keys = kernels.uniform((1, len(self)), seed=check.seed(seed=seed), purpose=kernels.Stream.DATA_ORDER)
        return np.argsort(keys[0], kind="stable")

    def images(self) -> np.ndarray:
        """The features as images.

        Returns:
            (rows, channels, height, width), a view of the features.

        Raises:
            ValueError: if the features are not images (`shape` is None).
        """
        if self.shape is None:
            raise ValueError(f"{self.name}: its features are not images")
        return self.features.reshape(len(self), *self.shape)

    def _rows(self, index: np.ndarray) -> Dataset:
        return dataclasses.replace(self, features=self.features[index], labels=self.labels[index])
