"""The two data sets that come with scikit-learn: real measurements that need no download."""

from __future__ import annotations

import numpy as np

from leakcore.datasets.dataset import Dataset


def digits() -> Dataset:
    """1,797 scans of handwritten digits, 8×8 pixels, ten classes.

    Features are the pixel counts 0..16 divided by 16, so they lie in [0, 1]. Rows keep scikit-learn's order.
    """
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
    """569 biopsies, 30 measurements each, two classes (0 malignant, 1 benign).

    Each feature is standardised to mean 0 and (population) standard deviation 1 over all 569 rows. That uses
    statistics of the data set itself, which a private training run would have to pay for; for attacks on gradients it
    is a mere choice of units. Rows keep scikit-learn's order.
    """
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
