"""Loaders of real data sets; each says how it scaled the features, where the data come from and under what licence."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.datasets._bundled import breast_cancer as breast_cancer
    from leakcore.datasets._bundled import digits as digits
    from leakcore.datasets._dataset import Dataset as Dataset

__getattr__, __dir__, __all__ = _attach(
    __name__, {"Dataset": "._dataset", "breast_cancer": "._bundled", "digits": "._bundled"}
)
