"""Loaders of real data sets; each says how it scaled the features, where the data come from and under what licence."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.datasets._bundled import breast_cancer as breast_cancer
    from leakcore.datasets._bundled import digits as digits
    from leakcore.datasets._dataset import Dataset as Dataset
    from leakcore.datasets._faces import lfw as lfw
    from leakcore.datasets._images import cifar10 as cifar10
    from leakcore.datasets._images import cifar100 as cifar100
    from leakcore.datasets._images import fashion_mnist as fashion_mnist
    from leakcore.datasets._images import mnist as mnist
    from leakcore.datasets._images import uniform_noise as uniform_noise
    from leakcore.datasets._membership import location30 as location30
    from leakcore.datasets._membership import purchase100 as purchase100
    from leakcore.datasets._tabular import bank_marketing as bank_marketing
    from leakcore.datasets._tabular import cervical_cancer as cervical_cancer
    from leakcore.datasets._text import Reviews as Reviews
    from leakcore.datasets._text import imdb as imdb

_NAMES = {
    "Dataset": "._dataset",
    "breast_cancer": "._bundled",
    "digits": "._bundled",
    "lfw": "._faces",
    "cifar10": "._images",
    "cifar100": "._images",
    "fashion_mnist": "._images",
    "mnist": "._images",
    "uniform_noise": "._images",
    "location30": "._membership",
    "purchase100": "._membership",
    "bank_marketing": "._tabular",
    "cervical_cancer": "._tabular",
    "Reviews": "._text",
    "imdb": "._text",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
