"""What no attacker can beat, and what an audit proves. Every result says its kind, its confidence and its adjacency."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.bounds import laplace as laplace
    from leakcore.bounds._calibrate import CalibratedNoise as CalibratedNoise
    from leakcore.bounds._calibrate import calibrate_noise as calibrate_noise
    from leakcore.bounds._discrete_prior import DiscretePriorBound as DiscretePriorBound
    from leakcore.bounds._discrete_prior import discrete_prior as discrete_prior
    from leakcore.bounds._discrete_prior import label_success as label_success
    from leakcore.bounds._dkw import reconstruction_dkw as reconstruction_dkw
    from leakcore.bounds._epsilon import EpsilonCeiling as EpsilonCeiling
    from leakcore.bounds._epsilon import EpsilonLowerBound as EpsilonLowerBound
    from leakcore.bounds._epsilon import epsilon_lower_bound as epsilon_lower_bound
    from leakcore.bounds._epsilon import epsilon_opt as epsilon_opt
    from leakcore.bounds._epsilon_choice import EpsilonBest as EpsilonBest
    from leakcore.bounds._epsilon_choice import epsilon_lower_bound_best as epsilon_lower_bound_best
    from leakcore.bounds._epsilon_membership import MembershipEpsilon as MembershipEpsilon
    from leakcore.bounds._epsilon_membership import epsilon_from_membership as epsilon_from_membership
    from leakcore.bounds._epsilon_one_run import OneRunEpsilon as OneRunEpsilon
    from leakcore.bounds._epsilon_one_run import epsilon_lower_bound_one_run as epsilon_lower_bound_one_run
    from leakcore.bounds._epsilon_scores import EpsilonFromScores as EpsilonFromScores
    from leakcore.bounds._epsilon_scores import epsilon_lower_bound_from_scores as epsilon_lower_bound_from_scores
    from leakcore.bounds._fixed_batch import FixedBatchPair as FixedBatchPair
    from leakcore.bounds._fixed_batch import fixed_batch_pair as fixed_batch_pair
    from leakcore.bounds._kappa import KappaBound as KappaBound
    from leakcore.bounds._kappa import kappa_from_samples as kappa_from_samples
    from leakcore.bounds._kappa import kappa_pixels as kappa_pixels
    from leakcore.bounds._label import LabelEpsilon as LabelEpsilon
    from leakcore.bounds._label import label_epsilon as label_epsilon
    from leakcore.bounds._label_growth import LabelEpsilonExtrapolation as LabelEpsilonExtrapolation
    from leakcore.bounds._label_growth import extrapolate_label_epsilon as extrapolate_label_epsilon
    from leakcore.bounds._other_bounds import FanoBound as FanoBound
    from leakcore.bounds._other_bounds import MseLowerBound as MseLowerBound
    from leakcore.bounds._other_bounds import fano_advantage as fano_advantage
    from leakcore.bounds._other_bounds import mse_lower_bound as mse_lower_bound
    from leakcore.bounds._reconstruction import measured_pair as measured_pair
    from leakcore.bounds._reconstruction import reconstruction as reconstruction
    from leakcore.bounds._reconstruction import reconstruction_of as reconstruction_of
    from leakcore.bounds._reconstruction_beside import MembershipBound as MembershipBound
    from leakcore.bounds._reconstruction_beside import OrthogonalSuccess as OrthogonalSuccess
    from leakcore.bounds._reconstruction_beside import membership as membership
    from leakcore.bounds._reconstruction_beside import orthogonal_success as orthogonal_success
    from leakcore.bounds._reconstruction_beside import reconstruction_rdp as reconstruction_rdp
    from leakcore.bounds._reconstruction_input import ReconstructionBound as ReconstructionBound
    from leakcore.bounds._ridge import RidgeEpsilon as RidgeEpsilon
    from leakcore.bounds._ridge import ridge_output_perturbation as ridge_output_perturbation

_NAMES = {
    "laplace": ".laplace",
    "epsilon_lower_bound": "._epsilon",
    "epsilon_opt": "._epsilon",
    "EpsilonLowerBound": "._epsilon",
    "EpsilonCeiling": "._epsilon",
    "EpsilonBest": "._epsilon_choice",
    "epsilon_lower_bound_best": "._epsilon_choice",
    "MembershipEpsilon": "._epsilon_membership",
    "epsilon_from_membership": "._epsilon_membership",
    "OneRunEpsilon": "._epsilon_one_run",
    "epsilon_lower_bound_one_run": "._epsilon_one_run",
    "EpsilonFromScores": "._epsilon_scores",
    "epsilon_lower_bound_from_scores": "._epsilon_scores",
    "label_epsilon": "._label",
    "extrapolate_label_epsilon": "._label_growth",
    "LabelEpsilon": "._label",
    "LabelEpsilonExtrapolation": "._label_growth",
    "reconstruction": "._reconstruction",
    "reconstruction_of": "._reconstruction",
    "measured_pair": "._reconstruction",
    "fixed_batch_pair": "._fixed_batch",
    "FixedBatchPair": "._fixed_batch",
    "reconstruction_rdp": "._reconstruction_beside",
    "membership": "._reconstruction_beside",
    "orthogonal_success": "._reconstruction_beside",
    "CalibratedNoise": "._calibrate",
    "calibrate_noise": "._calibrate",
    "DiscretePriorBound": "._discrete_prior",
    "discrete_prior": "._discrete_prior",
    "label_success": "._discrete_prior",
    "KappaBound": "._kappa",
    "kappa_from_samples": "._kappa",
    "kappa_pixels": "._kappa",
    "FanoBound": "._other_bounds",
    "MseLowerBound": "._other_bounds",
    "fano_advantage": "._other_bounds",
    "mse_lower_bound": "._other_bounds",
    "reconstruction_dkw": "._dkw",
    "ReconstructionBound": "._reconstruction_input",
    "RidgeEpsilon": "._ridge",
    "ridge_output_perturbation": "._ridge",
    "MembershipBound": "._reconstruction_beside",
    "OrthogonalSuccess": "._reconstruction_beside",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
