"""A loaded data set: features, labels, where they come from; and how its file is found, fetched and checked."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.reading import open_regular
from leakcore._base.writing import replacing


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
        shape: shape of one row's features as an image, (channels, height, width); None where the features are not an
            image.

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
        features = validate.plain_array(features=self.features).copy()
        if features.dtype != np.float32:
            features = features.astype(np.float64)
        labels = validate.even_array(labels=self.labels).copy()
        if features.ndim != 2 or labels.shape != features.shape[:1]:
            raise ValueError(
                "`features` and `labels` must be (rows, dimensions) and (rows,), "
                f"got {features.shape} and {labels.shape}"
            )
        if self.shape is not None:
            object.__setattr__(self, "shape", validate.sizes(shape=self.shape))
        if self.shape is not None and math.prod(self.shape) != features.shape[1]:
            raise ValueError(f"`shape` must hold the {features.shape[1]} columns of features, got {self.shape}")
        if not np.isfinite(features).all():
            raise ValueError("`features` must be finite")
        if labels.dtype.kind not in "iu":  # durations are integers to np.issubdtype
            raise TypeError(f"`labels` must be integers, got {labels.dtype}")
        if labels.size and labels.max() > np.iinfo(np.int64).max:
            raise ValueError(f"`labels` must fit int64, got [{labels.min()}, {labels.max()}]")
        labels = labels.astype(np.int64)
        object.__setattr__(self, "num_classes", validate.integer(1, None, num_classes=self.num_classes))
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
            seed: 64-bit seed of the shuffle.

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
        first = validate.integer(0, len(self), first=first)
        order = self.order(seed)
        return self._rows(order[:first]), self._rows(order[first:])

    def order(self, seed: int) -> np.ndarray:
        """The order into which `split` shuffles the rows.

        Args:
            seed: 64-bit seed of the shuffle.

        Returns:
            (rows,) row numbers.
        """
        keys = kernels.uniform((1, len(self)), seed=validate.seed(seed=seed), purpose=kernels.Stream.DATA_ORDER)
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


_log = logging.getLogger(__name__)
_TIMEOUT = 30.0
"""Seconds without an answer before a mirror counts as dead."""


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A canonical file: its folder, its name, its SHA-256, and where to download it (nowhere if `urls` is empty)."""

    folder: str
    name: str
    sha256: str
    urls: tuple[str, ...] = ()


def find(file: RemoteFile, path: str | os.PathLike[str] | None, download: bool) -> Path:
    """The path of the file, whose SHA-256 is checked.

    `path` is a folder that holds the file directly or in its own subfolder. Without `path`, LEAKCORE_DATA is searched
    if it is set, then the cache (LEAKCORE_CACHE, or leakcore under XDG_CACHE_HOME or ~/.cache), then the mirrors, from
    which the file is downloaded into the cache. FileNotFoundError says where it was looked for and how to get it;
    ValueError where the bytes are not the canonical ones.
    """
    searched = list(_folders(file, path))
    for folder in searched:
        candidate = folder / file.name
        if candidate.is_file():
            return _checked(candidate, file)
    tried = "".join(f"\n  {folder / file.name}" for folder in searched)
    if path is None and download and file.urls:
        return _download(file, tried)
    how = f"download {file.urls[0]}" if file.urls else "it has no public address"
    raise FileNotFoundError(
        f"{file.name} of {file.folder} was not found; looked for{tried}\nSet LEAKCORE_DATA to a folder that holds "
        f"{file.folder}/{file.name}, or pass path= (on the command line --data; {how}; SHA-256 {file.sha256})"
    )


def _folders(file: RemoteFile, path: str | os.PathLike[str] | None) -> Iterator[Path]:
    roots = [Path(path)] if path is not None else []
    if path is None:
        if folder := os.environ.get("LEAKCORE_DATA", ""):
            roots.append(Path(folder))
        roots.append(_cache())
    for root in roots:
        yield root / file.folder
        if path is not None:
            yield root


def _cache() -> Path:
    if folder := os.environ.get("LEAKCORE_CACHE", ""):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # A relative one is to be ignored, says the specification of these folders.
        return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "leakcore"
    except RuntimeError:  # no HOME, and a user without an entry
        raise ValueError("no home folder for data sets: set LEAKCORE_DATA, LEAKCORE_CACHE or HOME") from None


def _checked(path: Path, file: RemoteFile) -> Path:
    with open_regular(path) as stream:
        _require(_digest(stream), path, file)
    return path


def _require(digest: str, where: object, file: RemoteFile) -> None:
    if digest != file.sha256:
        raise ValueError(
            f"{where}: its SHA-256 is {digest}, the canonical file's is {file.sha256}: remove or replace it"
        )


def _digest(stream: BinaryIO, copy: BinaryIO | None = None) -> str:
    """SHA-256 of a stream, which is copied while it is read."""
    total = hashlib.sha256()
    while block := stream.read(2**20):
        total.update(block)
        if copy is not None:
            copy.write(block)
    return total.hexdigest()


def _download(file: RemoteFile, tried: str) -> Path:
    import urllib.request

    target = _cache() / file.folder / file.name
    failures = []
    for url in file.urls:
        _log.info("downloading %s", url)
        try:
            with replacing(target) as out, urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
                _require(_digest(response, copy=out), url, file)
            return target
        except (OSError, ValueError) as why:
            failures.append(f"\n  {url}: {why}")
    raise FileNotFoundError(
        f"{file.name} of {file.folder} was not found; looked for{tried}\nand no mirror sent it:{''.join(failures)}\n"
        f"Without a network, put the file into {target.parent} or set LEAKCORE_DATA to a folder that holds "
        f"{file.folder}/{file.name} (SHA-256 {file.sha256})"
    )
