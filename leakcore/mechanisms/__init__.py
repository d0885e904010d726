"""What is run, as a pair of laws that dominates it: the one seam from a training scheme to every bound.

Each mechanism says its neighbouring relation and what is proved of it, and where. `a @ b` composes.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
