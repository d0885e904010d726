"""What bounds and accounting share: exact binomial limits and the numerical methods behind the bounds."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
