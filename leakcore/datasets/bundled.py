"""The data sets that come through scikit-learn: two bundled with it, and Labelled Faces in the Wild."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from leakcore._base import validate
from leakcore._base.version import need
from leakcore.datasets.dataset import Dataset


def digits() -> Dataset:
    """1,797 scans of handwritten digits of 8×8 pixels, ten classes, as bundled with scikit-learn.

    The pixel counts 0..16 are divided by 16, so features lie in [0, 1]. Rows keep scikit-learn's order.

    Returns:
        A `Dataset` of (1797, 64) float64 features.

    Example:
        >>> from leakcore import datasets
        >>> data = datasets.digits()
        >>> data.features.shape, data.num_classes, float(data.features.max())
        ((1797, 64), 10, 1.0)
    """
    need("sklearn")
    from sklearn.datasets import load_digits

    raw = load_digits()
    return Dataset(
        features=raw.data / 16.0,
        labels=raw.target,
        num_classes=10,
        name="digits",
        scaling="pixel counts 0..16 divided by 16",
        source="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, "
        "1998 (its test part), as bundled with scikit-learn",
        licence="CC BY 4.0",
    )


def breast_cancer() -> Dataset:
    """569 biopsies with 30 measurements each, two classes (0 malignant, 1 benign), as bundled with scikit-learn.

    Each feature is standardised to mean 0 and (population) standard deviation 1 over all 569 rows. This uses statistics
    of the data set itself, which a private training run would have to pay for; for attacks on gradients it is only a
    choice of units. Rows keep scikit-learn's order.

    Returns:
        A `Dataset` of (569, 30) float64 features.

    Example:
        >>> from leakcore import datasets
        >>> data = datasets.breast_cancer()
        >>> data.features.shape, int((data.labels == 0).sum())
        ((569, 30), 212)
    """
    need("sklearn")
    from sklearn.datasets import load_breast_cancer

    raw = load_breast_cancer()
    data = np.asarray(raw.data, dtype=np.float64)
    return Dataset(
        features=(data - data.mean(axis=0)) / data.std(axis=0),
        labels=raw.target,
        num_classes=2,
        name="breast-cancer",
        scaling="each feature standardised to mean 0, standard deviation 1 over all rows",
        source="W. H. Wolberg, W. N. Street and O. L. Mangasarian, Breast Cancer Wisconsin (Diagnostic), UCI Machine "
        "Learning Repository, 1995, as bundled with scikit-learn",
        licence="CC BY 4.0",
    )


_LFW = ("lfw_funneled", "pairs.txt", "pairsDevTrain.txt", "pairsDevTest.txt")
"""What scikit-learn needs in its folder lfw_home: a folder of photographs for each person, and three lists."""


def lfw(*, min_faces: int = 20, path: str | os.PathLike[str] | None = None, download: bool = False) -> Dataset:
    """Labelled Faces in the Wild: colour photographs of 3×62×47 pixels, one class per person.

    Pixels lie in [0, 1]; rows keep the order of scikit-learn's `fetch_lfw_people`. The attributes that Mo et al. (2021)
    use are not part of this data set; `leakage.input_attributes` makes plain ones.

    Args:
        min_faces: keep the persons with at least this many photographs.
        path: scikit-learn's data folder; None takes its default.
        download: allow scikit-learn to fetch 200 MB.

    Returns:
        A `Dataset` of float32 features.

    Raises:
        FileNotFoundError: if the data set is not in the folder and `download` is False; names what is missing there.
        ValueError: if `min_faces` is below 1.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.lfw(path=folder)
        Traceback (most recent call last):
        FileNotFoundError: lfw: not in scikit-learn's data folder; looked in ...
    """
    need("sklearn")
    from sklearn.datasets import fetch_lfw_people, get_data_home

    least = validate.integer(1, None, min_faces=min_faces)
    home = None if path is None else os.fspath(path)
    try:
        raw = fetch_lfw_people(
            data_home=home, min_faces_per_person=least, color=True, resize=0.5, download_if_missing=download
        )
    except OSError as error:
        place = Path(get_data_home(home)) / "lfw_home"
        missing = [name for name in _LFW if not (place / name).exists()]
        raise FileNotFoundError(
            f"lfw: not in scikit-learn's data folder; looked in {place}"
            + (f", which lacks {', '.join(missing)}" if missing else f" ({error})")
            + "; pass download=True to fetch 200 MB, or path= for a folder that holds lfw_home"
        ) from error
    images = np.asarray(raw.images, dtype=np.float32)
    if images.max() > 1:
        images = images / np.float32(255)
    images = images.transpose(0, 3, 1, 2)
    return Dataset(
        features=images.reshape(len(images), -1),
        labels=np.asarray(raw.target, dtype=np.int64),
        num_classes=len(raw.target_names),
        name=f"lfw, at least {least} faces",
        scaling="pixels in [0, 1], half size",
        source="G. B. Huang et al., Labeled Faces in the Wild, 2008, through scikit-learn",
        licence="none stated; research use",
        shape=tuple(int(s) for s in images.shape[1:]),
    )
