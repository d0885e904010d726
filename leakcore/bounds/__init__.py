"""What no attacker can beat, and what an audit proves. Every result says its kind, its confidence and its adjacency."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.bounds import laplace as laplace
    from leakcore.bounds import methods as methods
    from leakcore.bounds.audited_epsilon.best_of_several import EpsilonBest as EpsilonBest
    from leakcore.bounds.audited_epsilon.best_of_several import epsilon_lower_bound_best as epsilon_lower_bound_best
    from leakcore.bounds.audited_epsilon.counts import EpsilonCeiling as EpsilonCeiling
    from leakcore.bounds.audited_epsilon.counts import EpsilonLowerBound as EpsilonLowerBound
    from leakcore.bounds.audited_epsilon.counts import epsilon_lower_bound as epsilon_lower_bound
    from leakcore.bounds.audited_epsilon.counts import epsilon_opt as epsilon_opt
    from leakcore.bounds.audited_epsilon.hypothesis import Hypothesis as Hypothesis
    from leakcore.bounds.audited_epsilon.membership_guesses import MembershipEpsilon as MembershipEpsilon
    from leakcore.bounds.audited_epsilon.membership_guesses import epsilon_from_membership as epsilon_from_membership
    from leakcore.bounds.audited_epsilon.one_run import OneRunEpsilon as OneRunEpsilon
    from leakcore.bounds.audited_epsilon.one_run import epsilon_lower_bound_one_run as epsilon_lower_bound_one_run
    from leakcore.bounds.audited_epsilon.ridge import RidgeEpsilon as RidgeEpsilon
    from leakcore.bounds.audited_epsilon.ridge import ridge_output_perturbation as ridge_output_perturbation
    from leakcore.bounds.audited_epsilon.scores import (
        epsilon_lower_bound_from_scores as epsilon_lower_bound_from_scores,
    )
    from leakcore.bounds.audited_epsilon.sequential import SequentialEpsilon as SequentialEpsilon
    from leakcore.bounds.audited_epsilon.sequential import SequentialTest as SequentialTest
    from leakcore.bounds.audited_epsilon.simultaneous import SimultaneousThreshold as SimultaneousThreshold
    from leakcore.bounds.audited_epsilon.threshold import EpsilonFromScores as EpsilonFromScores
    from leakcore.bounds.audited_epsilon.threshold import SplitThreshold as SplitThreshold
    from leakcore.bounds.audited_epsilon.threshold import Threshold as Threshold
    from leakcore.bounds.labels.extrapolate import LabelEpsilonExtrapolation as LabelEpsilonExtrapolation
    from leakcore.bounds.labels.extrapolate import extrapolate_label_epsilon as extrapolate_label_epsilon
    from leakcore.bounds.labels.label_epsilon import LabelEpsilon as LabelEpsilon
    from leakcore.bounds.labels.label_epsilon import label_epsilon as label_epsilon
    from leakcore.bounds.labels.label_test import LikelihoodRatioTest as LikelihoodRatioTest
    from leakcore.bounds.labels.label_test import SignTest as SignTest
    from leakcore.bounds.labels.label_test import ThresholdTest as ThresholdTest
    from leakcore.bounds.prior.discrete_prior import DiscretePriorBound as DiscretePriorBound
    from leakcore.bounds.prior.discrete_prior import discrete_prior as discrete_prior
    from leakcore.bounds.prior.discrete_prior import label_success as label_success
    from leakcore.bounds.reconstruction.arguments import ReconstructionBound as ReconstructionBound
    from leakcore.bounds.reconstruction.calibrate_noise import CalibratedNoise as CalibratedNoise
    from leakcore.bounds.reconstruction.calibrate_noise import calibrate_noise as calibrate_noise
    from leakcore.bounds.reconstruction.fano import FanoBound as FanoBound
    from leakcore.bounds.reconstruction.fano import fano_advantage as fano_advantage
    from leakcore.bounds.reconstruction.information import AnalyticInformation as AnalyticInformation
    from leakcore.bounds.reconstruction.information import RenyiInformation as RenyiInformation
    from leakcore.bounds.reconstruction.information import SampledInformation as SampledInformation
    from leakcore.bounds.reconstruction.kappa import KappaBound as KappaBound
    from leakcore.bounds.reconstruction.kappa import kappa_from_samples as kappa_from_samples
    from leakcore.bounds.reconstruction.kappa import kappa_pixels as kappa_pixels
    from leakcore.bounds.reconstruction.membership import MembershipBound as MembershipBound
    from leakcore.bounds.reconstruction.membership import membership as membership
    from leakcore.bounds.reconstruction.mse import MseLowerBound as MseLowerBound
    from leakcore.bounds.reconstruction.mse import mse_lower_bound as mse_lower_bound
    from leakcore.bounds.reconstruction.orthogonal import OrthogonalSuccess as OrthogonalSuccess
    from leakcore.bounds.reconstruction.orthogonal import orthogonal_success as orthogonal_success
    from leakcore.bounds.reconstruction.pair import StatedPair as StatedPair
    from leakcore.bounds.reconstruction.pair import measured_pair as measured_pair
    from leakcore.bounds.reconstruction.rdp import reconstruction_rdp as reconstruction_rdp
    from leakcore.bounds.reconstruction.reconstruction import reconstruction as reconstruction
    from leakcore.bounds.reconstruction.reconstruction import reconstruction_of as reconstruction_of
    from leakcore.bounds.reconstruction.reconstruction_dkw import reconstruction_dkw as reconstruction_dkw

_NAMES = {
    "laplace": ".laplace",
    "methods": ".methods",
    "epsilon_lower_bound": ".audited_epsilon.counts",
    "epsilon_opt": ".audited_epsilon.counts",
    "EpsilonLowerBound": ".audited_epsilon.counts",
    "EpsilonCeiling": ".audited_epsilon.counts",
    "EpsilonBest": ".audited_epsilon.best_of_several",
    "epsilon_lower_bound_best": ".audited_epsilon.best_of_several",
    "MembershipEpsilon": ".audited_epsilon.membership_guesses",
    "epsilon_from_membership": ".audited_epsilon.membership_guesses",
    "OneRunEpsilon": ".audited_epsilon.one_run",
    "epsilon_lower_bound_one_run": ".audited_epsilon.one_run",
    "EpsilonFromScores": ".audited_epsilon.threshold",
    "Hypothesis": ".audited_epsilon.hypothesis",
    "SequentialEpsilon": ".audited_epsilon.sequential",
    "SequentialTest": ".audited_epsilon.sequential",
    "SimultaneousThreshold": ".audited_epsilon.simultaneous",
    "SplitThreshold": ".audited_epsilon.threshold",
    "Threshold": ".audited_epsilon.threshold",
    "epsilon_lower_bound_from_scores": ".audited_epsilon.scores",
    "LikelihoodRatioTest": ".labels.label_test",
    "SignTest": ".labels.label_test",
    "ThresholdTest": ".labels.label_test",
    "label_epsilon": ".labels.label_epsilon",
    "extrapolate_label_epsilon": ".labels.extrapolate",
    "LabelEpsilon": ".labels.label_epsilon",
    "LabelEpsilonExtrapolation": ".labels.extrapolate",
    "reconstruction": ".reconstruction.reconstruction",
    "reconstruction_dkw": ".reconstruction.reconstruction_dkw",
    "reconstruction_of": ".reconstruction.reconstruction",
    "StatedPair": ".reconstruction.pair",
    "measured_pair": ".reconstruction.pair",
    "reconstruction_rdp": ".reconstruction.rdp",
    "membership": ".reconstruction.membership",
    "orthogonal_success": ".reconstruction.orthogonal",
    "CalibratedNoise": ".reconstruction.calibrate_noise",
    "calibrate_noise": ".reconstruction.calibrate_noise",
    "DiscretePriorBound": ".prior.discrete_prior",
    "discrete_prior": ".prior.discrete_prior",
    "label_success": ".prior.discrete_prior",
    "KappaBound": ".reconstruction.kappa",
    "kappa_from_samples": ".reconstruction.kappa",
    "kappa_pixels": ".reconstruction.kappa",
    "AnalyticInformation": ".reconstruction.information",
    "RenyiInformation": ".reconstruction.information",
    "SampledInformation": ".reconstruction.information",
    "FanoBound": ".reconstruction.fano",
    "MseLowerBound": ".reconstruction.mse",
    "fano_advantage": ".reconstruction.fano",
    "mse_lower_bound": ".reconstruction.mse",
    "ReconstructionBound": ".reconstruction.arguments",
    "RidgeEpsilon": ".audited_epsilon.ridge",
    "ridge_output_perturbation": ".audited_epsilon.ridge",
    "MembershipBound": ".reconstruction.membership",
    "OrthogonalSuccess": ".reconstruction.orthogonal",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
