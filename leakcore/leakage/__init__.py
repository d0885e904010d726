"""Where the leak sits: measures of what each layer's gradient carries."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.leakage.by_layer import LayerMeasures as LayerMeasures
    from leakcore.leakage.by_layer import LeakageByLayer as LeakageByLayer
    from leakcore.leakage.by_layer import by_layer as by_layer
    from leakcore.leakage.by_layer import input_attributes as input_attributes
    from leakcore.leakage.by_layer import measure_layers as measure_layers
    from leakcore.leakage.families import FAMILIES as FAMILIES
    from leakcore.leakage.families import MLP as MLP
    from leakcore.leakage.families import Family as Family
    from leakcore.leakage.families import Logistic as Logistic
    from leakcore.leakage.families import RandomForest as RandomForest
    from leakcore.leakage.mutual_information import MineNetwork as MineNetwork
    from leakcore.leakage.mutual_information import MutualInformation as MutualInformation
    from leakcore.leakage.mutual_information import mutual_information as mutual_information
    from leakcore.leakage.sensitivity import JacobianBudget as JacobianBudget
    from leakcore.leakage.sensitivity import L1Measured as L1Measured
    from leakcore.leakage.sensitivity import Sensitivity as Sensitivity
    from leakcore.leakage.sensitivity import l1_sensitivity as l1_sensitivity
    from leakcore.leakage.sensitivity import sensitivity as sensitivity
    from leakcore.leakage.subspace_distance import SubspaceDistance as SubspaceDistance
    from leakcore.leakage.subspace_distance import subspace_distance as subspace_distance
    from leakcore.leakage.v_information import CrossValidation as CrossValidation
    from leakcore.leakage.v_information import VInformation as VInformation
    from leakcore.leakage.v_information import v_information as v_information
    from leakcore.leakage.v_information_original import OriginalInformation as OriginalInformation
    from leakcore.leakage.v_information_original import PairInversion as PairInversion
    from leakcore.leakage.v_information_original import v_information_original as v_information_original

_NAMES = {
    "PairInversion": ".v_information_original",
    "CrossValidation": ".v_information",
    "JacobianBudget": ".sensitivity",
    "MineNetwork": ".mutual_information",
    "LayerMeasures": ".by_layer",
    "L1Measured": ".sensitivity",
    "l1_sensitivity": ".sensitivity",
    "input_attributes": ".by_layer",
    "LeakageByLayer": ".by_layer",
    "by_layer": ".by_layer",
    "MutualInformation": ".mutual_information",
    "mutual_information": ".mutual_information",
    "OriginalInformation": ".v_information_original",
    "v_information_original": ".v_information_original",
    "FAMILIES": ".families",
    "Family": ".families",
    "Logistic": ".families",
    "MLP": ".families",
    "RandomForest": ".families",
    "Sensitivity": ".sensitivity",
    "sensitivity": ".sensitivity",
    "SubspaceDistance": ".subspace_distance",
    "subspace_distance": ".subspace_distance",
    "VInformation": ".v_information",
    "v_information": ".v_information",
}
_SHARED = {"measure_layers": ".by_layer"}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
