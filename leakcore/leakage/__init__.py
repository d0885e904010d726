"""Where the leak sits: measures of what each layer's gradient carries.

Whatever takes an argument that is not allowed raises a ValueError or TypeError that names the argument.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
