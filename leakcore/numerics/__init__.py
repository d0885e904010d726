"""What bounds and accounting share: exact binomial limits and the numerical methods behind the bounds."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.numerics.gaussian.epsilon import gaussian_pair_epsilon as gaussian_pair_epsilon
    from leakcore.numerics.limits.binomial import clopper_pearson as clopper_pearson
    from leakcore.numerics.limits.order_band import simultaneous_lower_limits as simultaneous_lower_limits
    from leakcore.numerics.privacy_loss.loss import AccuracyError as AccuracyError

_NAMES = {
    "clopper_pearson": ".limits.binomial",
    "gaussian_pair_epsilon": ".gaussian.epsilon",
    "AccuracyError": ".privacy_loss.loss",
    "simultaneous_lower_limits": ".limits.order_band",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
