"""ε, δ and σ of a DP-SGD configuration, under either neighbouring relation.

Three routes: "exact", our own privacy profile by tilted Fourier inversion (no discretisation, error reported);
"pld" and "rdp" by Google's dp-accounting (`pip install leakcore[accounting]`). Every result carries its adjacency.
Nothing converts between relations silently: σ = 1, one full-batch step, δ = 1e-5 is ε = 4.38 under add/remove and
9.997 under replacement.
"""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.accounting.delta import Delta as Delta
    from leakcore.accounting.delta import delta as delta
    from leakcore.accounting.epsilon import METHODS as METHODS
    from leakcore.accounting.epsilon import Epsilon as Epsilon
    from leakcore.accounting.epsilon import epsilon as epsilon
    from leakcore.accounting.epsilon import to_replacement as to_replacement
    from leakcore.accounting.last_iterate import LastIterateEpsilon as LastIterateEpsilon
    from leakcore.accounting.last_iterate import last_iterate_epsilon as last_iterate_epsilon
    from leakcore.accounting.noise_multiplier import NoiseMultiplier as NoiseMultiplier
    from leakcore.accounting.noise_multiplier import noise_multiplier as noise_multiplier

_NAMES = {
    "Delta": ".delta",
    "Epsilon": ".epsilon",
    "LastIterateEpsilon": ".last_iterate",
    "METHODS": ".epsilon",
    "NoiseMultiplier": ".noise_multiplier",
    "delta": ".delta",
    "epsilon": ".epsilon",
    "last_iterate_epsilon": ".last_iterate",
    "noise_multiplier": ".noise_multiplier",
    "to_replacement": ".epsilon",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
