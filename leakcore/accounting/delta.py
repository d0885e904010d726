"""δ at an ε: the smallest that is proved, the privacy profile itself."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import timed
from leakcore._base.results import Result
from leakcore.accounting.epsilon import MIN_SEPARATION, TINY, Accountant, above, assumptions, label, naming, provenance
from leakcore.mechanisms import over_grids
from leakcore.numerics import MIN_LOG_DELTA, gaussian_pair


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Delta(Result):
    """δ at an ε, as `accounting.delta` returns it.

    Attributes:
        value: the smallest δ that the method proves at `epsilon`.
        epsilon: the ε that was asked for.
        log_value: natural logarithm of δ (−inf at 0), which is precise where δ underflows.
        poisson_claim: δ that accounting as Poisson sampling claims, for a mechanism that is often accounted for so;
            else None.
    """

    compared_at: ClassVar[tuple[str, ...]] = ("epsilon",)

    quantity: str = "δ"
    epsilon: float
    log_value: float
    poisson_claim: float | None = None


@timed
@over_grids
@one_thread()
def delta(
    noise_multiplier: Any,
    sample_rate: Any = None,
    steps: int | None = None,
    *,
    epsilon: float,
    adjacency: str | None = None,
    method: str = "exact",
    orders: Any = None,
) -> Delta:
    """The smallest δ for which a mechanism is proved (ε, δ)-private.

    As a function of ε this is the privacy profile. `epsilon` has the formulas.

    Args:
        noise_multiplier: a mechanism; or σ_t in [0, ∞], relative to the clipping norm, a number or an array of length
            `steps`.
        sample_rate: q_t in [0, 1]; likewise. None with a mechanism.
        steps: T ≥ 0. None with a mechanism.
        epsilon: ε in [0, ∞).
        adjacency: "add-remove", "zero-out" or "replace"; None: the mechanism's own, add-remove for Poisson sampling.
        method: "exact", "pld" or "rdp", as in `epsilon`.
        orders: Rényi orders of method "rdp", as in `epsilon`.

    Returns:
        `Delta` of kind "upper". It is 0 where nothing leaks and 1 at most. A δ that underflows is reported as one of
        the smallest positive floats, and `log_value` says how small it is.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.
        ImportError: for "pld" and "rdp" without dp-accounting.
        AccuracyError: (an ArithmeticError) where a method has no answer.

    Guarantees:
        Deterministic. `interval` is the numerical error of "exact", rounded outward, or a bracket where `method` says
        so, and None for the others.

    Example:
        >>> from leakcore import accounting
        >>> spent = accounting.delta(1.0, 0.01, 1000, epsilon=1.0)
        >>> f"{spent.value:.1e}", spent.kind, spent.adjacency
        ('2.6e-03', 'upper', 'add-remove')
    """
    accountant = Accountant.parse(
        noise_multiplier, sample_rate, steps, adjacency=adjacency, method=method, orders=orders
    )
    target = validate.non_negative(epsilon=epsilon)
    with naming(accountant.mechanism):
        log_low, log_high = _log_limits(accountant, target)
    value = above(log_high)
    claimed = accountant.mechanism.poisson_claim
    route = label(accountant, (log_low, log_high), 0.0 if log_high > MIN_LOG_DELTA else math.inf)
    return Delta(
        value=value,
        kind="upper",
        confidence=None,
        interval=(_below(log_low), value) if accountant.method == "exact" else None,
        method=route,
        assumptions=assumptions(accountant),
        provenance=provenance(accountant, route),
        epsilon=target,
        log_value=log_high,
        poisson_claim=None if claimed is None else float(delta(claimed, epsilon=target)),
    )


def _log_limits(accountant: Accountant, epsilon: float) -> tuple[float, float]:
    """(low, high) of log δ(ε)."""
    loss, method = accountant.loss, accountant.method
    if accountant.silent:
        return -math.inf, -math.inf
    if loss is not None and loss.log_no_escape != 0.0 and method != "exact":
        return 0.0, 0.0
    if method == "rdp":
        from leakcore.numerics import rdp_log_delta

        assert loss is not None
        out = rdp_log_delta(loss, epsilon, accountant.orders)
        return out, out
    separation = accountant.separation
    if method == "exact" and separation < MIN_SEPARATION:
        bound = gaussian_pair.log_profile_limits(epsilon, separation)[1]
        if bound < math.log(1e-18):
            return -math.inf, bound
    curve = accountant.curve
    pairs = [curve.log_delta(epsilon, direction) for direction in accountant.directions]
    low, high = max(low for low, _ in pairs), max(high for _, high in pairs)
    if method == "exact":  # δ(ε) is at most δ(0)
        high = min(high, math.log(accountant.total_variation() * (1.0 + 1e-12)))
    if high >= 0.0 and method == "exact" and separation < math.inf:
        high = min(high, gaussian_pair.log_profile_limits(epsilon, separation)[1])
    return min(low, high), high


def _below(log_value: float) -> float:
    value = math.exp(log_value)
    return math.nextafter(value, 0.0) if value < TINY else value
