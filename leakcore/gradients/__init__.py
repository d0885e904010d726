"""Gradients of any torch module: by row, by layer, and as a function of one parameter vector."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
