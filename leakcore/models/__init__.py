"""The papers' models as torch modules, and their weights as safetensors. torch is imported at the first call."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
