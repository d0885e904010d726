"""What no membership attack can beat: the same curve as the reconstruction bound."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

from leakcore._base import pictures, validate
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import timed
from leakcore._base.results import Number, Result
from leakcore.bounds.reconstruction.reconstruction import reconstruction
from leakcore.mechanisms import as_mechanism, over_grids
from leakcore.numerics import AccuracyError, gaussian_pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MembershipBound(Result):
    """The largest true-positive rate of a membership attack, as `membership` returns it.

    Attributes:
        value: the true-positive rate at `fpr`.
        fpr: the false-positive rate that was asked for.
        advantage: TPR − FPR there.
        max_advantage: the largest advantage over all false-positive rates.
        poisson_claim: as in `ReconstructionBound`.
    """

    compared_at: ClassVar[tuple[str, ...]] = ("fpr",)

    quantity: str = "true-positive rate"
    fpr: Number
    advantage: Number
    max_advantage: float
    poisson_claim: Number | None = None

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the largest true-positive rate over the false-positive rate, on `ax` or on a new figure."""
        axes = pictures.curve(ax, self.fpr, self.value, self.interval, label=f"no attacker above ({self.method})")
        axes.plot([0, 1], [0, 1], linestyle=":", color="0.5", label="guessing")
        axes.set(xlabel="false-positive rate", ylabel=self.quantity, xlim=(0.0, 1.0), ylim=(0.0, 1.02))
        axes.legend()
        return axes


@timed
@over_grids
@one_thread()
def membership(
    noise_multiplier: Any, sample_rate: Any = None, steps: int | None = None, *, fpr: Any
) -> MembershipBound:
    """The largest true-positive rate of any membership attack on a mechanism at false-positive rate `fpr`.

    TPR = B_fpr, the same quantity as in `reconstruction` (Hayes et al. 2023, Section 3 after equation 3), for the test
    of ν (record absent) against μ (record present). `max_advantage` = max_α B_α − α = δ(0), the total variation
    distance (that of full batches, which is at least as large, where the numerics do not reach).

    Args:
        noise_multiplier: as in `reconstruction`.
        sample_rate: as in `reconstruction`.
        steps: as in `reconstruction`.
        fpr: false-positive rate in (0, 1], a float or an array.

    Returns:
        `MembershipBound` of kind "upper", by method "auto". `interval` is the numerical error. Where the exact route
        does not reach (fpr below about 1e-290) it comes from "importance", at 99.9%, seed 0.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        The mechanism's own adjacency, add-remove for Poisson sampling; deterministic.

    Example:
        >>> from leakcore import bounds
        >>> bound = bounds.membership(1.0, 0.01, 100, fpr=0.01)
        >>> f"TPR at 1% FPR {bound.value:.3f}, advantage at most {bound.max_advantage:.3f}"
        'TPR at 1% FPR 0.015, advantage at most 0.051'
    """
    level = validate.real_array("in (0, 1]", lambda v: (v > 0.0) & (v <= 1.0), fpr=fpr)
    mechanism = as_mechanism(noise_multiplier, sample_rate, steps)
    curve = reconstruction(mechanism, kappa=level)
    relation = mechanism.adjacency
    log_largest = 0.0
    with contextlib.suppress(AccuracyError):
        log_largest = mechanism.curve(relation).log_delta(0.0, "remove")[1]
    if mechanism.separation(relation) < math.inf:
        log_largest = min(log_largest, gaussian_pair.log_profile_limits(0.0, mechanism.separation(relation))[1])
    return MembershipBound(
        value=curve.value,
        kind="upper",
        confidence=curve.confidence,
        interval=curve.interval,
        method=curve.method,
        seed=curve.seed,
        assumptions=curve.assumptions,
        provenance=curve.provenance,
        fpr=curve.kappa,
        advantage=curve.value - curve.kappa,
        poisson_claim=curve.poisson_claim,
        max_advantage=min(1.0, math.exp(log_largest)),
    )
