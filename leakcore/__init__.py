"""leakcore: measure and bound how much a gradient leaks.

Three questions, each answered with a number that says its kind, its confidence and its adjacency:

- what can no attacker beat? `leakcore.mechanisms`, `leakcore.bounds`, `leakcore.accounting`
- what can an attacker do? `leakcore.attacks`
- how private is this training run? `leakcore.audit`

Importing leakcore imports neither torch nor SciPy; each part is loaded at first use.
"""

from leakcore._base.lazy import attach as _attach
from leakcore._base.version import __version__ as __version__
from leakcore._base.version import identify_by as _identify_by

__getattr__, __dir__, __all__ = _attach(__name__, __file__)


def _arithmetic() -> object:
    from leakcore.kernels import arithmetic

    return arithmetic()


_identify_by("arithmetic", _arithmetic)
