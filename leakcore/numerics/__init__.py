"""What bounds and accounting share: exact binomial limits and the numerical methods behind the bounds."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.numerics import search as search
    from leakcore.numerics.activations import ACTIVATIONS as ACTIVATIONS
    from leakcore.numerics.activations import Activation as Activation
    from leakcore.numerics.activations import activation as activation
    from leakcore.numerics.dot import dot as dot
    from leakcore.numerics.gaussian import gaussian_pair as gaussian_pair
    from leakcore.numerics.gaussian.epsilon import gaussian_pair_epsilon as gaussian_pair_epsilon
    from leakcore.numerics.gaussian.step_ratio import step_log_ratio as step_log_ratio
    from leakcore.numerics.gaussian.step_tables import StepTable as StepTable
    from leakcore.numerics.gaussian.step_tables import step_table as step_table
    from leakcore.numerics.lattice import tail as tail
    from leakcore.numerics.lattice.cells import StepLaw as StepLaw
    from leakcore.numerics.lattice.lattice_profile import Sides as Sides
    from leakcore.numerics.lattice.schedule import repeated as repeated
    from leakcore.numerics.lattice.schedule import sides_of as sides_of
    from leakcore.numerics.lattice.steps import SampledStep as SampledStep
    from leakcore.numerics.limits.betting import betting_upper_limit as betting_upper_limit
    from leakcore.numerics.limits.betting import choose_bet as choose_bet
    from leakcore.numerics.limits.betting_from_sums import PairSums as PairSums
    from leakcore.numerics.limits.betting_from_sums import lower_limit as lower_limit
    from leakcore.numerics.limits.binomial import clopper_pearson as clopper_pearson
    from leakcore.numerics.limits.order_band import simultaneous_lower_limits as simultaneous_lower_limits
    from leakcore.numerics.pairs.allocation import AllocationStep as AllocationStep
    from leakcore.numerics.pairs.atoms import AtomLaw as AtomLaw
    from leakcore.numerics.pairs.fixed_batch import FixedBatchStep as FixedBatchStep
    from leakcore.numerics.pairs.sampled_replacement import ReplacementStep as ReplacementStep
    from leakcore.numerics.pairs.shuffled import ShuffledLowerStep as ShuffledLowerStep
    from leakcore.numerics.privacy_loss import blow_up as blow_up
    from leakcore.numerics.privacy_loss.blow_up import log_blow_up_exact as log_blow_up_exact
    from leakcore.numerics.privacy_loss.blow_up import with_escape as with_escape
    from leakcore.numerics.privacy_loss.loss import AccuracyError as AccuracyError
    from leakcore.numerics.privacy_loss.loss import PrivacyLoss as PrivacyLoss
    from leakcore.numerics.privacy_loss.loss import StepGroup as StepGroup
    from leakcore.numerics.privacy_loss.loss import parse_schedule as parse_schedule
    from leakcore.numerics.profile import dp_accounting_rdp as dp_accounting_rdp
    from leakcore.numerics.profile.curves import Bounded as Bounded
    from leakcore.numerics.profile.curves import Bracket as Bracket
    from leakcore.numerics.profile.curves import Capped as Capped
    from leakcore.numerics.profile.curves import Curve as Curve
    from leakcore.numerics.profile.curves import DiscreteCurve as DiscreteCurve
    from leakcore.numerics.profile.curves import EitherWay as EitherWay
    from leakcore.numerics.profile.curves import ExactCurve as ExactCurve
    from leakcore.numerics.profile.curves import LatticeCurve as LatticeCurve
    from leakcore.numerics.profile.dp_accounting_pld import DiscreteLoss as DiscreteLoss
    from leakcore.numerics.profile.dp_accounting_pld import fft_rounding as fft_rounding
    from leakcore.numerics.profile.dp_accounting_pld import import_dp_accounting as import_dp_accounting
    from leakcore.numerics.profile.dp_accounting_rdp import AUTHORS_ORDERS as AUTHORS_ORDERS
    from leakcore.numerics.profile.least_noise import least_noise as least_noise
    from leakcore.numerics.profile.profile import BEST as BEST
    from leakcore.numerics.profile.profile import Effort as Effort
    from leakcore.numerics.profile.profile import chernoff_log_delta as chernoff_log_delta
    from leakcore.numerics.profile.profile import log_delta as log_delta
    from leakcore.numerics.profile.replacement import Between as Between

_NAMES = {
    "clopper_pearson": ".limits.binomial",
    "gaussian_pair_epsilon": ".gaussian.epsilon",
    "AccuracyError": ".privacy_loss.loss",
    "simultaneous_lower_limits": ".limits.order_band",
}
_SHARED = {
    "AllocationStep": ".pairs.allocation",
    "AtomLaw": ".pairs.atoms",
    "Between": ".profile.replacement",
    "Bounded": ".profile.curves",
    "Bracket": ".profile.curves",
    "FixedBatchStep": ".pairs.fixed_batch",
    "Capped": ".profile.curves",
    "LatticeCurve": ".profile.curves",
    "ReplacementStep": ".pairs.sampled_replacement",
    "SampledStep": ".lattice.steps",
    "ShuffledLowerStep": ".pairs.shuffled",
    "Sides": ".lattice.lattice_profile",
    "StepGroup": ".privacy_loss.loss",
    "StepLaw": ".lattice.cells",
    "repeated": ".lattice.schedule",
    "sides_of": ".lattice.schedule",
    "ACTIVATIONS": ".activations",
    "AUTHORS_ORDERS": ".profile.dp_accounting_rdp",
    "Activation": ".activations",
    "BEST": ".profile.profile",
    "Curve": ".profile.curves",
    "DiscreteCurve": ".profile.curves",
    "DiscreteLoss": ".profile.dp_accounting_pld",
    "Effort": ".profile.profile",
    "EitherWay": ".profile.curves",
    "ExactCurve": ".profile.curves",
    "PairSums": ".limits.betting_from_sums",
    "PrivacyLoss": ".privacy_loss.loss",
    "StepTable": ".gaussian.step_tables",
    "activation": ".activations",
    "betting_upper_limit": ".limits.betting",
    "blow_up": ".privacy_loss.blow_up",
    "chernoff_log_delta": ".profile.profile",
    "choose_bet": ".limits.betting",
    "dot": ".dot",
    "dp_accounting_rdp": ".profile.dp_accounting_rdp",
    "fft_rounding": ".profile.dp_accounting_pld",
    "gaussian_pair": ".gaussian.gaussian_pair",
    "import_dp_accounting": ".profile.dp_accounting_pld",
    "least_noise": ".profile.least_noise",
    "log_blow_up_exact": ".privacy_loss.blow_up",
    "log_delta": ".profile.profile",
    "lower_limit": ".limits.betting_from_sums",
    "parse_schedule": ".privacy_loss.loss",
    "search": ".search",
    "tail": ".lattice.tail",
    "step_log_ratio": ".gaussian.step_ratio",
    "step_table": ".gaussian.step_tables",
    "with_escape": ".privacy_loss.blow_up",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
