"""The two data sets that come with scikit-learn: real measurements that need no download."""

from __future__ import annotations

import numpy as np

from leakcore._base.installed import need
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
