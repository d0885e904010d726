"""What bounds and accounting share: exact binomial limits and the numerical methods behind the bounds."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.numerics._binomial import clopper_pearson as clopper_pearson
    from leakcore.numerics._gaussian_epsilon import gaussian_pair_epsilon as gaussian_pair_epsilon
    from leakcore.numerics._loss import AccuracyError as AccuracyError
    from leakcore.numerics._order_band import simultaneous_lower_limits as simultaneous_lower_limits

_NAMES = {
    "clopper_pearson": "._binomial",
    "gaussian_pair_epsilon": "._gaussian_epsilon",
    "AccuracyError": "._loss",
    "simultaneous_lower_limits": "._order_band",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
