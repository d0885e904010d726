"""The mechanism under audit: DP-SGD, many independent runs at a time."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
