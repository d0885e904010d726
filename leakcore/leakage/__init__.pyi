from .by_layer import LayerMeasures as LayerMeasures
from .by_layer import LeakageByLayer as LeakageByLayer
from .by_layer import by_layer as by_layer
from .by_layer import input_attributes as input_attributes
from .families import FAMILIES as FAMILIES
from .families import MLP as MLP
from .families import Family as Family
from .families import Logistic as Logistic
from .families import RandomForest as RandomForest
from .mutual_information import MineNetwork as MineNetwork
from .mutual_information import MutualInformation as MutualInformation
from .mutual_information import mutual_information as mutual_information
from .sensitivity import JacobianBudget as JacobianBudget
from .sensitivity import L1Measured as L1Measured
from .sensitivity import Sensitivity as Sensitivity
from .sensitivity import l1_sensitivity as l1_sensitivity
from .sensitivity import sensitivity as sensitivity
from .subspace_distance import SubspaceDistance as SubspaceDistance
from .subspace_distance import subspace_distance as subspace_distance
from .v_information import CrossValidation as CrossValidation
from .v_information import VInformation as VInformation
from .v_information import v_information as v_information
from .v_information_original import OriginalInformation as OriginalInformation
from .v_information_original import PairInversion as PairInversion
from .v_information_original import v_information_original as v_information_original

"""For leakcore's other packages: no promise to users."""

from .by_layer import measure_layers as measure_layers
