"""For trainings in JAX: what a recorder computes, as a function that runs under `jit`."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
