"""Loaders of real data sets; each says how it scaled the features, where the data come from and under what licence."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
