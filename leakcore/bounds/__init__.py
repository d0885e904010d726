"""What no attacker can beat, and what an audit proves. Every result says its kind, its confidence and its adjacency."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.bounds import laplace as laplace
    from leakcore.bounds import methods as methods
    from leakcore.bounds.audited_epsilon.counts import EpsilonCeiling as EpsilonCeiling
    from leakcore.bounds.audited_epsilon.counts import EpsilonLowerBound as EpsilonLowerBound
    from leakcore.bounds.audited_epsilon.counts import epsilon_lower_bound as epsilon_lower_bound
    from leakcore.bounds.audited_epsilon.counts import epsilon_opt as epsilon_opt
    from leakcore.bounds.audited_epsilon.families import Hypothesis as Hypothesis
    from leakcore.bounds.audited_epsilon.one_run import MembershipEpsilon as MembershipEpsilon
    from leakcore.bounds.audited_epsilon.one_run import OneRunEpsilon as OneRunEpsilon
    from leakcore.bounds.audited_epsilon.one_run import epsilon_from_membership as epsilon_from_membership
    from leakcore.bounds.audited_epsilon.one_run import epsilon_lower_bound_one_run as epsilon_lower_bound_one_run
    from leakcore.bounds.audited_epsilon.ridge import RidgeEpsilon as RidgeEpsilon
    from leakcore.bounds.audited_epsilon.ridge import ridge_output_perturbation as ridge_output_perturbation
    from leakcore.bounds.audited_epsilon.scores import EpsilonBest as EpsilonBest
    from leakcore.bounds.audited_epsilon.scores import epsilon_lower_bound_best as epsilon_lower_bound_best
    from leakcore.bounds.audited_epsilon.scores import (
        epsilon_lower_bound_from_scores as epsilon_lower_bound_from_scores,
    )
    from leakcore.bounds.audited_epsilon.sequential import SequentialEpsilon as SequentialEpsilon
    from leakcore.bounds.audited_epsilon.sequential import SequentialTest as SequentialTest
    from leakcore.bounds.audited_epsilon.thresholds import EpsilonFromScores as EpsilonFromScores
    from leakcore.bounds.audited_epsilon.thresholds import SimultaneousThreshold as SimultaneousThreshold
    from leakcore.bounds.audited_epsilon.thresholds import SplitThreshold as SplitThreshold
    from leakcore.bounds.audited_epsilon.thresholds import Threshold as Threshold
    from leakcore.bounds.discrete_prior import DiscretePriorBound as DiscretePriorBound
    from leakcore.bounds.discrete_prior import discrete_prior as discrete_prior
    from leakcore.bounds.discrete_prior import label_success as label_success
    from leakcore.bounds.labels import LabelEpsilon as LabelEpsilon
    from leakcore.bounds.labels import LabelEpsilonExtrapolation as LabelEpsilonExtrapolation
    from leakcore.bounds.labels import LikelihoodRatioTest as LikelihoodRatioTest
    from leakcore.bounds.labels import SignTest as SignTest
    from leakcore.bounds.labels import ThresholdTest as ThresholdTest
    from leakcore.bounds.labels import extrapolate_label_epsilon as extrapolate_label_epsilon
    from leakcore.bounds.labels import label_epsilon as label_epsilon
    from leakcore.bounds.methods.method import ReconstructionBound as ReconstructionBound
    from leakcore.bounds.methods.pairs import StatedPair as StatedPair
    from leakcore.bounds.methods.pairs import measured_pair as measured_pair
    from leakcore.bounds.reconstruction.calibrate_noise import CalibratedNoise as CalibratedNoise
    from leakcore.bounds.reconstruction.calibrate_noise import calibrate_noise as calibrate_noise
    from leakcore.bounds.reconstruction.information import AnalyticInformation as AnalyticInformation
    from leakcore.bounds.reconstruction.information import FanoBound as FanoBound
    from leakcore.bounds.reconstruction.information import RenyiInformation as RenyiInformation
    from leakcore.bounds.reconstruction.information import SampledInformation as SampledInformation
    from leakcore.bounds.reconstruction.information import fano_advantage as fano_advantage
    from leakcore.bounds.reconstruction.kappa import KappaBound as KappaBound
    from leakcore.bounds.reconstruction.kappa import kappa_from_samples as kappa_from_samples
    from leakcore.bounds.reconstruction.kappa import kappa_pixels as kappa_pixels
    from leakcore.bounds.reconstruction.membership import MembershipBound as MembershipBound
    from leakcore.bounds.reconstruction.membership import membership as membership
    from leakcore.bounds.reconstruction.reconstruction import reconstruction as reconstruction
    from leakcore.bounds.reconstruction.reconstruction import reconstruction_dkw as reconstruction_dkw
    from leakcore.bounds.reconstruction.reconstruction import reconstruction_of as reconstruction_of
    from leakcore.bounds.reconstruction.reference_curves import MseLowerBound as MseLowerBound
    from leakcore.bounds.reconstruction.reference_curves import OrthogonalSuccess as OrthogonalSuccess
    from leakcore.bounds.reconstruction.reference_curves import mse_lower_bound as mse_lower_bound
    from leakcore.bounds.reconstruction.reference_curves import orthogonal_success as orthogonal_success
    from leakcore.bounds.reconstruction.reference_curves import reconstruction_rdp as reconstruction_rdp

_NAMES = {
    "DiscretePriorBound": ".discrete_prior",
    "discrete_prior": ".discrete_prior",
    "label_success": ".discrete_prior",
    "LabelEpsilon": ".labels",
    "LabelEpsilonExtrapolation": ".labels",
    "LikelihoodRatioTest": ".labels",
    "SignTest": ".labels",
    "ThresholdTest": ".labels",
    "extrapolate_label_epsilon": ".labels",
    "label_epsilon": ".labels",
    "laplace": ".laplace",
    "methods": ".methods",
    "EpsilonCeiling": ".audited_epsilon.counts",
    "EpsilonLowerBound": ".audited_epsilon.counts",
    "epsilon_lower_bound": ".audited_epsilon.counts",
    "epsilon_opt": ".audited_epsilon.counts",
    "Hypothesis": ".audited_epsilon.families",
    "MembershipEpsilon": ".audited_epsilon.one_run",
    "OneRunEpsilon": ".audited_epsilon.one_run",
    "epsilon_from_membership": ".audited_epsilon.one_run",
    "epsilon_lower_bound_one_run": ".audited_epsilon.one_run",
    "RidgeEpsilon": ".audited_epsilon.ridge",
    "ridge_output_perturbation": ".audited_epsilon.ridge",
    "EpsilonBest": ".audited_epsilon.scores",
    "epsilon_lower_bound_best": ".audited_epsilon.scores",
    "epsilon_lower_bound_from_scores": ".audited_epsilon.scores",
    "SequentialEpsilon": ".audited_epsilon.sequential",
    "SequentialTest": ".audited_epsilon.sequential",
    "EpsilonFromScores": ".audited_epsilon.thresholds",
    "SimultaneousThreshold": ".audited_epsilon.thresholds",
    "SplitThreshold": ".audited_epsilon.thresholds",
    "Threshold": ".audited_epsilon.thresholds",
    "ReconstructionBound": ".methods.method",
    "StatedPair": ".methods.pairs",
    "measured_pair": ".methods.pairs",
    "CalibratedNoise": ".reconstruction.calibrate_noise",
    "calibrate_noise": ".reconstruction.calibrate_noise",
    "AnalyticInformation": ".reconstruction.information",
    "FanoBound": ".reconstruction.information",
    "RenyiInformation": ".reconstruction.information",
    "SampledInformation": ".reconstruction.information",
    "fano_advantage": ".reconstruction.information",
    "KappaBound": ".reconstruction.kappa",
    "kappa_from_samples": ".reconstruction.kappa",
    "kappa_pixels": ".reconstruction.kappa",
    "MembershipBound": ".reconstruction.membership",
    "membership": ".reconstruction.membership",
    "reconstruction": ".reconstruction.reconstruction",
    "reconstruction_dkw": ".reconstruction.reconstruction",
    "reconstruction_of": ".reconstruction.reconstruction",
    "MseLowerBound": ".reconstruction.reference_curves",
    "OrthogonalSuccess": ".reconstruction.reference_curves",
    "mse_lower_bound": ".reconstruction.reference_curves",
    "orthogonal_success": ".reconstruction.reference_curves",
    "reconstruction_rdp": ".reconstruction.reference_curves",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
