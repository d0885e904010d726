"""The main job: audit a DP-SGD run and report what was bounded, attacked and proved."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
