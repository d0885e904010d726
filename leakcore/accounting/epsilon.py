"""ε at a δ: the smallest that is proved."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import timed
from leakcore._base.results import Result
from leakcore.accounting.arguments import FAINT, Accountant, naming
from leakcore.accounting.provenance import NEGLIGIBLE, assumptions, label, provenance
from leakcore.mechanisms import over_grids
from leakcore.numerics import BEST, Effort, gaussian_pair


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Epsilon(Result):
    """ε at a δ, as `accounting.epsilon` returns it.

    Attributes:
        value: the smallest ε that the method proves at `delta`.
        delta: the δ that was asked for.
        poisson_claim: of a mechanism that is often accounted for as if it were Poisson sampling: the ε that this
            accounting claims, which may lie below the lower limit; else None.
    """

    quantity: str = "ε"
    delta: float
    poisson_claim: float | None = None


@timed
@over_grids
@one_thread()
def epsilon(
    noise_multiplier: Any,
    sample_rate: Any = None,
    steps: int | None = None,
    *,
    delta: float,
    adjacency: str | None = None,
    method: str = "exact",
    orders: Any = None,
) -> Epsilon:
    """The smallest ε ≥ 0 for which a mechanism is proved (ε, δ)-private.

    The larger of δ_remove(ε) = E_μ(1 − e^{ε−L})_+ and δ_add(ε) = E_ν(1 − e^{ε+L})_+ of the mechanism's pair (Zhu, Dong
    and Wang 2022). Three numbers stand for `mechanisms.Poisson`. More: docs/explanation/bounds.md.

    Args:
        noise_multiplier: a mechanism; or σ_t in [0, ∞], relative to the clipping norm, a number or an array of length
            `steps`.
        sample_rate: q_t in [0, 1]; likewise. None with a mechanism.
        steps: T ≥ 0. None with a mechanism.
        delta: δ in [0, 1).
        adjacency: "add-remove", "zero-out" or "replace"; None: the mechanism's own, add-remove for Poisson sampling.
        method: "exact", "pld" or "rdp"; the last two for Poisson sampling and full batches.
        orders: of method "rdp" only. None: dp-accounting's default; "authors": those of Hayes et al. (2023); or a
            sequence of orders above 1.

    Returns:
        `Epsilon` of kind "upper". T = 0, q = 0 or σ = ∞ give 0; δ = 0 or σ = 0 give inf where anything leaks beyond δ.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.
        ImportError: for "pld" and "rdp" without dp-accounting.
        AccuracyError: (an ArithmeticError) where a method has no answer.

    Guarantees:
        Deterministic. `interval` is the numerical error of "exact", or a bracket where `method` says so; the value is
        its upper end. The other methods have no interval.

    Example:
        >>> from leakcore import accounting
        >>> spent = accounting.epsilon(1.0, 0.01, 1000, delta=1e-5)
        >>> f"{spent.value:.3f}", spent.kind, spent.adjacency
        ('1.828', 'upper', 'add-remove')
    """
    accountant = Accountant.parse(
        noise_multiplier, sample_rate, steps, adjacency=adjacency, method=method, orders=orders
    )
    target = validate.below_one(delta=delta)
    with naming(accountant.mechanism):
        low, high = epsilon_limits(accountant, target)
    claimed = accountant.mechanism.poisson_claim
    route = label(accountant, (low, high), high)
    return Epsilon(
        value=high,
        kind="upper",
        confidence=None,
        interval=(low, high) if accountant.method == "exact" else None,
        method=route,
        assumptions=assumptions(accountant),
        provenance=provenance(accountant, route),
        delta=target,
        poisson_claim=None if claimed is None else float(epsilon(claimed, delta=target)),
    )


def epsilon_limits(
    accountant: Accountant, delta: float, *, effort: Effort = BEST, directions: tuple[str, ...] = ("remove", "add")
) -> tuple[float, float]:
    """(low, high) of the smallest ε ≥ 0. directions: which profiles count."""
    loss, method = accountant.loss, accountant.method
    if accountant.silent:
        return 0.0, 0.0
    if delta == 0.0 or (loss is not None and loss.log_no_escape != 0.0 and method != "exact"):
        return math.inf, math.inf
    target = math.log(delta)
    if method == "rdp":
        from leakcore.numerics import dp_accounting_rdp

        assert loss is not None
        value = dp_accounting_rdp.epsilon(loss, target, accountant.orders)
        return value, value
    if method == "exact" and (high := _next_to_nothing(accountant, delta)) < NEGLIGIBLE:
        return 0.0, high
    curve = accountant.curve
    low, high = -math.inf, -math.inf
    for direction in directions:
        if direction not in accountant.directions and low > -math.inf:
            continue
        # ε of adding ends at −minimum.
        if direction == "add" and loss is not None and -loss.minimum - loss.log_no_escape <= low > -math.inf:
            continue
        pair = curve.epsilon(target, direction, effort=effort)
        if math.isnan(pair[0]) or math.isnan(pair[1]):  # `max` would pass over it, and leave no bound at all
            pair = (-math.inf, math.inf)
        low, high = max(low, pair[0]), max(high, pair[1])
    if high == math.inf and method == "exact" and accountant.separation < math.inf:
        high = gaussian_pair.epsilon_limits(target, accountant.separation)[1]
    return max(0.0, low), max(0.0, high)


def _next_to_nothing(accountant: Accountant, delta: float) -> float:
    """An upper bound of ε ≥ 0 for losses too small, or δ too large, for the profile: 0 where δ is beyond the total
    variation, else the full batches' ε."""
    if accountant.total_variation() * (1.0 + 1e-12) <= delta:
        return 0.0
    separation = accountant.separation
    return max(0.0, gaussian_pair.epsilon_limits(math.log(delta), separation)[1]) if separation < FAINT else math.inf
