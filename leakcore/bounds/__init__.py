"""What no attacker can beat, and what an audit proves. Every result says its kind, its confidence and its adjacency."""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
