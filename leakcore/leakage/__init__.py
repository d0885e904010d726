"""Where the leak sits: measures of what each layer's gradient carries."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.leakage._attributes import input_attributes as input_attributes
    from leakcore.leakage._by_layer import LeakageByLayer as LeakageByLayer
    from leakcore.leakage._by_layer import by_layer as by_layer
    from leakcore.leakage._families import FAMILIES as FAMILIES
    from leakcore.leakage._families import MLP as MLP
    from leakcore.leakage._families import Family as Family
    from leakcore.leakage._families import Logistic as Logistic
    from leakcore.leakage._families import RandomForest as RandomForest
    from leakcore.leakage._l1_sensitivity import L1Measured as L1Measured
    from leakcore.leakage._l1_sensitivity import l1_sensitivity as l1_sensitivity
    from leakcore.leakage._mutual_information import MutualInformation as MutualInformation
    from leakcore.leakage._mutual_information import mutual_information as mutual_information
    from leakcore.leakage._original import OriginalInformation as OriginalInformation
    from leakcore.leakage._original import v_information_original as v_information_original
    from leakcore.leakage._sensitivity import Sensitivity as Sensitivity
    from leakcore.leakage._sensitivity import sensitivity as sensitivity
    from leakcore.leakage._subspace import SubspaceDistance as SubspaceDistance
    from leakcore.leakage._subspace import subspace_distance as subspace_distance
    from leakcore.leakage._v_information import VInformation as VInformation
    from leakcore.leakage._v_information import v_information as v_information

_NAMES = {
    "L1Measured": "._l1_sensitivity",
    "l1_sensitivity": "._l1_sensitivity",
    "input_attributes": "._attributes",
    "LeakageByLayer": "._by_layer",
    "by_layer": "._by_layer",
    "MutualInformation": "._mutual_information",
    "mutual_information": "._mutual_information",
    "OriginalInformation": "._original",
    "v_information_original": "._original",
    "FAMILIES": "._families",
    "Family": "._families",
    "Logistic": "._families",
    "MLP": "._families",
    "RandomForest": "._families",
    "Sensitivity": "._sensitivity",
    "sensitivity": "._sensitivity",
    "SubspaceDistance": "._subspace",
    "subspace_distance": "._subspace",
    "VInformation": "._v_information",
    "v_information": "._v_information",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
