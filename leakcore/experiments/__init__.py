"""The figures and tables of the papers, with the papers' numbers and ours."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
