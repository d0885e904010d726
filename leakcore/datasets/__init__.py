"""Loaders of real data sets; each says how it scaled the features, where the data come from and under what licence."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.datasets.bundled import breast_cancer as breast_cancer
    from leakcore.datasets.bundled import digits as digits
    from leakcore.datasets.bundled import lfw as lfw
    from leakcore.datasets.cifar import cifar10 as cifar10
    from leakcore.datasets.cifar import cifar100 as cifar100
    from leakcore.datasets.dataset import Dataset as Dataset
    from leakcore.datasets.images import fashion_mnist as fashion_mnist
    from leakcore.datasets.images import mnist as mnist
    from leakcore.datasets.images import uniform_noise as uniform_noise
    from leakcore.datasets.membership import location30 as location30
    from leakcore.datasets.membership import purchase100 as purchase100
    from leakcore.datasets.tabular import bank_marketing as bank_marketing
    from leakcore.datasets.tabular import cervical_cancer as cervical_cancer
    from leakcore.datasets.text import Reviews as Reviews
    from leakcore.datasets.text import imdb as imdb

_NAMES = {
    "Dataset": ".dataset",
    "breast_cancer": ".bundled",
    "digits": ".bundled",
    "lfw": ".bundled",
    "cifar10": ".cifar",
    "cifar100": ".cifar",
    "fashion_mnist": ".images",
    "mnist": ".images",
    "uniform_noise": ".images",
    "location30": ".membership",
    "purchase100": ".membership",
    "bank_marketing": ".tabular",
    "cervical_cancer": ".tabular",
    "Reviews": ".text",
    "imdb": ".text",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
