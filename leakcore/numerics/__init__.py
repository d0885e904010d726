"""What bounds and accounting share: exact binomial limits and the numerical methods behind the bounds."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.numerics import blow_up as blow_up
    from leakcore.numerics import gaussian_pair as gaussian_pair
    from leakcore.numerics import moments as moments
    from leakcore.numerics import search as search
    from leakcore.numerics.activations import ACTIVATIONS as ACTIVATIONS
    from leakcore.numerics.activations import Activation as Activation
    from leakcore.numerics.activations import activation as activation
    from leakcore.numerics.allocation import AllocationStep as AllocationStep
    from leakcore.numerics.arithmetic import AccuracyError as AccuracyError
    from leakcore.numerics.arithmetic import dot as dot
    from leakcore.numerics.blow_up import log_blow_up_exact as log_blow_up_exact
    from leakcore.numerics.blow_up import with_escape as with_escape
    from leakcore.numerics.curves import Between as Between
    from leakcore.numerics.curves import Bounded as Bounded
    from leakcore.numerics.curves import Bracket as Bracket
    from leakcore.numerics.curves import Capped as Capped
    from leakcore.numerics.curves import Curve as Curve
    from leakcore.numerics.curves import EitherWay as EitherWay
    from leakcore.numerics.curves import ExactCurve as ExactCurve
    from leakcore.numerics.curves import LatticeCurve as LatticeCurve
    from leakcore.numerics.gaussian_pair import gaussian_pair_epsilon as gaussian_pair_epsilon
    from leakcore.numerics.lattice import StepLaw as StepLaw
    from leakcore.numerics.lattice_profile import DominatingLaws as DominatingLaws
    from leakcore.numerics.limits import PairSums as PairSums
    from leakcore.numerics.limits import betting_upper_limit as betting_upper_limit
    from leakcore.numerics.limits import choose_bet as choose_bet
    from leakcore.numerics.limits import clopper_pearson as clopper_pearson
    from leakcore.numerics.limits import lower_limit as lower_limit
    from leakcore.numerics.limits import simultaneous_lower_limits as simultaneous_lower_limits
    from leakcore.numerics.loss import PrivacyLoss as PrivacyLoss
    from leakcore.numerics.loss import StepGroup as StepGroup
    from leakcore.numerics.loss import parse_schedule as parse_schedule
    from leakcore.numerics.one_step import StepTable as StepTable
    from leakcore.numerics.one_step import step_log_ratio as step_log_ratio
    from leakcore.numerics.one_step import step_table as step_table
    from leakcore.numerics.peers import AUTHORS_ORDERS as AUTHORS_ORDERS
    from leakcore.numerics.peers import DiscreteLoss as DiscreteLoss
    from leakcore.numerics.peers import fft_rounding as fft_rounding
    from leakcore.numerics.peers import import_dp_accounting as import_dp_accounting
    from leakcore.numerics.peers import rdp_epsilon as rdp_epsilon
    from leakcore.numerics.peers import rdp_log_delta as rdp_log_delta
    from leakcore.numerics.profile import BEST as BEST
    from leakcore.numerics.profile import MIN_LOG_DELTA as MIN_LOG_DELTA
    from leakcore.numerics.profile import Precision as Precision
    from leakcore.numerics.profile import chernoff_log_delta as chernoff_log_delta
    from leakcore.numerics.profile import log_delta as log_delta
    from leakcore.numerics.search import least_noise as least_noise
    from leakcore.numerics.step_laws import AtomLaw as AtomLaw
    from leakcore.numerics.step_laws import FixedBatchStep as FixedBatchStep
    from leakcore.numerics.step_laws import ReplacementStep as ReplacementStep
    from leakcore.numerics.step_laws import SampledStep as SampledStep
    from leakcore.numerics.step_laws import ShuffledLowerStep as ShuffledLowerStep
    from leakcore.numerics.step_laws import dominating_laws as dominating_laws
    from leakcore.numerics.step_laws import repeated as repeated

_NAMES = {
    "AccuracyError": ".arithmetic",
    "clopper_pearson": ".limits",
    "gaussian_pair_epsilon": ".gaussian_pair",
    "simultaneous_lower_limits": ".limits",
}
_SHARED = {
    "ACTIVATIONS": ".activations",
    "AUTHORS_ORDERS": ".peers",
    "Activation": ".activations",
    "AllocationStep": ".allocation",
    "AtomLaw": ".step_laws",
    "BEST": ".profile",
    "Between": ".curves",
    "Bounded": ".curves",
    "Bracket": ".curves",
    "Capped": ".curves",
    "Curve": ".curves",
    "DiscreteLoss": ".peers",
    "DominatingLaws": ".lattice_profile",
    "EitherWay": ".curves",
    "ExactCurve": ".curves",
    "FixedBatchStep": ".step_laws",
    "LatticeCurve": ".curves",
    "MIN_LOG_DELTA": ".profile",
    "PairSums": ".limits",
    "Precision": ".profile",
    "PrivacyLoss": ".loss",
    "ReplacementStep": ".step_laws",
    "SampledStep": ".step_laws",
    "ShuffledLowerStep": ".step_laws",
    "StepGroup": ".loss",
    "StepLaw": ".lattice",
    "StepTable": ".one_step",
    "activation": ".activations",
    "betting_upper_limit": ".limits",
    "blow_up": ".blow_up",
    "chernoff_log_delta": ".profile",
    "choose_bet": ".limits",
    "dominating_laws": ".step_laws",
    "dot": ".arithmetic",
    "fft_rounding": ".peers",
    "gaussian_pair": ".gaussian_pair",
    "import_dp_accounting": ".peers",
    "least_noise": ".search",
    "log_blow_up_exact": ".blow_up",
    "log_delta": ".profile",
    "lower_limit": ".limits",
    "moments": ".moments",
    "parse_schedule": ".loss",
    "rdp_epsilon": ".peers",
    "rdp_log_delta": ".peers",
    "repeated": ".step_laws",
    "search": ".search",
    "step_log_ratio": ".one_step",
    "step_table": ".one_step",
    "with_escape": ".blow_up",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
