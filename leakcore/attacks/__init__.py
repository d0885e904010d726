"""What an attacker can do: each attack is a pure function, or a game that repeats one and counts its successes.

Whatever takes an argument that is not allowed raises a ValueError or TypeError that names the argument.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
