"""Membership benchmarks of Shokri et al. (2017): tables of zeros and ones with cluster numbers as classes."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np

from leakcore._base.archives import read_tar
from leakcore._base.text import printable
from leakcore.datasets.dataset import Dataset, RemoteFile, find

Folder = str | os.PathLike[str]

_LOCATION = RemoteFile(
    "location30", "dataset_location.tgz", "927203f85a868f8ee17a0ded1dc61699efe602167beabe34fbf45b4b1de94b33"
)
_SOURCE = (
    "R. Shokri, M. Stronati, C. Song and V. Shmatikov, Membership Inference Attacks against Machine Learning Models"
)


def location30(*, path: Folder | None = None) -> Dataset:
    """Location30 of Shokri et al. (2017): 5,010 users of a location service, 446 binary features, 30 clusters.

    A feature is 1 where the user visited a region or a kind of place. The file is never downloaded.

    Args:
        path: a folder that holds dataset_location.tgz, directly or in its subfolder `location30`. None searches
            LEAKCORE_DATA, then the user's cache.

    Returns:
        A `Dataset` of (5010, 446) float32 features that are 0 or 1.

    Raises:
        FileNotFoundError: says where the file was looked for.
        ValueError: if the SHA-256 of the file is not the canonical one, or the file is not such a table.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.location30(path=folder)
        Traceback (most recent call last):
        FileNotFoundError: dataset_location.tgz of location30 was not found; ...
    """
    where = find(_LOCATION, path, download=False)
    return _table(where, "location30", columns=446, classes=30, source=f"{_SOURCE}, 2017; from Foursquare check-ins")


def purchase100(path: Folder) -> Dataset:
    """Purchase100 of Shokri et al. (2017): 197,324 shoppers, 600 binary features, 100 clusters, from your own copy.

    A feature is 1 where the shopper bought a product. The file may not be redistributed, so its bytes are not compared
    with a SHA-256; its columns, values and classes are checked.

    Args:
        path: the file dataset_purchase.tgz, or a folder that holds it directly or in its subfolder `purchase100`.

    Returns:
        A `Dataset` of (rows, 600) float32 features that are 0 or 1.

    Raises:
        FileNotFoundError: says where the file was looked for.
        ValueError: if the file is not an archive of one such table.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.purchase100(folder)
        Traceback (most recent call last):
        FileNotFoundError: dataset_purchase.tgz was not found; ...
    """
    start = Path(path)
    tried = [start, start / "dataset_purchase.tgz", start / "purchase100" / "dataset_purchase.tgz"]
    for where in tried:
        if where.is_file():
            return _table(where, "purchase100", columns=600, classes=100, source=f"{_SOURCE}, 2017; from Kaggle's data")
    raise FileNotFoundError(f"dataset_purchase.tgz was not found; looked for {', '.join(map(str, tried))}")


def _table(where: Path, name: str, *, columns: int, classes: int, source: str) -> Dataset:
    """A data set from an archive whose one file has a line "class",f1,... for each row, classes counted from 1."""
    try:
        files = read_tar(where)
        if len(files) != 1:
            raise ValueError(f"it must hold one file, got {len(files)}")
        text = files.popitem()[1].replace(b'"', b"")
    except ValueError as why:
        raise ValueError(f"{printable(where)}: not an archive of one table ({why})") from why
    if odd := set(text) - set(b"0123456789,\n\r "):
        raise ValueError(
            f"{printable(where)}: its entries must be whole numbers between commas, got {bytes([min(odd)])!r}"
        )
    if not text.strip():
        raise ValueError(f"{printable(where)}: has no rows")
    try:
        table = np.loadtxt(io.BytesIO(text), dtype=np.int16, delimiter=",", ndmin=2)
    except ValueError as why:
        raise ValueError(f"{printable(where)}: {why}") from why
    if table.shape[1] != columns + 1:
        raise ValueError(
            f"{printable(where)}: its rows must have {columns + 1} entries each, got {table.size} in {len(table)} rows"
        )
    if not np.isin(table[:, 1:], (0, 1)).all() or not (table[:, 0].min() >= 1 and table[:, 0].max() <= classes):
        raise ValueError(f"{printable(where)}: features must be 0 or 1, classes 1 to {classes}")
    return Dataset(
        features=table[:, 1:].astype(np.float32),
        labels=table[:, 0].astype(np.int64) - 1,
        num_classes=classes,
        name=name,
        scaling="0 or 1, as they are",
        source=source,
        licence="none stated; research use",
    )
