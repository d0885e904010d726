"""Where the leak sits: measures of what each layer's gradient carries."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.leakage._sensitivity import Sensitivity as Sensitivity
    from leakcore.leakage._sensitivity import sensitivity as sensitivity
    from leakcore.leakage._subspace import SubspaceDistance as SubspaceDistance
    from leakcore.leakage._subspace import subspace_distance as subspace_distance

_NAMES = {
    "Sensitivity": "._sensitivity",
    "sensitivity": "._sensitivity",
    "SubspaceDistance": "._subspace",
    "subspace_distance": "._subspace",
}
__getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
