"""Where the leak sits: measures of what each layer's gradient carries."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
