"""ε at a δ: the smallest that is proved."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from leakcore._base import validate
from leakcore._base.one_thread import one_thread
from leakcore._base.results import Result
from leakcore.accounting.arguments import FAINT, STEPS, Accountant, naming
from leakcore.accounting.provenance import NEGLIGIBLE, PROVENANCE, assumptions, label
from leakcore.numerics import BEST, Curve, DiscreteCurve, Effort, ExactCurve, gaussian_pair, replacement


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Epsilon(Result):
    """ε at a δ, as `accounting.epsilon` returns it.

    Attributes:
        value: the smallest ε that the method proves at `delta`.
        delta: the δ that was asked for.
    """

    quantity: str = "ε"
    delta: float


@one_thread()
def epsilon(
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    *,
    delta: float,
    adjacency: str = "add-remove",
    method: str = "exact",
    orders: Any = None,
) -> Epsilon:
    """The smallest ε ≥ 0 for which `steps` steps of DP-SGD with Poisson sampling are proved (ε, δ)-private.

    add-remove: the larger of δ_remove(ε) = E_μ(1 − e^{ε−L})_+ and δ_add(ε) = E_ν(1 − e^{ε+L})_+ for L = Σ_t log(1 − q_t
    + q_t·exp((2x_t − 1)/(2σ_t²))). replace: a Gaussian pair of separation 2√Σσ_t⁻² at q = 1; an upper bound by group
    composition at q < 1. More: docs/explanation/bounds.md.

    Args:
        noise_multiplier: σ_t in [0, ∞], relative to the clipping norm; a number, or an array of length `steps`.
        sample_rate: q_t in [0, 1]; likewise.
        steps: T ≥ 0.
        delta: δ in [0, 1).
        adjacency: "add-remove" or "replace".
        method: "exact", "pld" or "rdp" (with "replace" and q < 1: "exact" or "pld").
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
        Deterministic. `interval` is the numerical error of "exact", at most 1e-6 relative to 1 + ε unless `method` says
        "exact, bounded"; the value is its upper end. The other methods have no interval.

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
    with naming(noise_multiplier, sample_rate, steps):
        low, high = epsilon_limits(accountant, target)
    return Epsilon(
        value=high,
        kind="upper",
        confidence=None,
        interval=(low, high) if accountant.method == "exact" else None,
        method=(route := label(accountant.method, (low, high), high)),
        assumptions=assumptions(accountant),
        provenance=PROVENANCE[route],
        delta=target,
    )


def epsilon_limits(
    accountant: Accountant,
    delta: float,
    *,
    effort: Effort = BEST,
    directions: tuple[str, ...] = ("remove", "add"),
    split: float = math.nan,
) -> tuple[float, float]:
    """(low, high) of the smallest ε ≥ 0. directions: which profiles count under "add-remove"; split: the logit of the
    part of δ that goes to the removal where a replacement is composed."""
    accountant = accountant.as_added()
    loss, method = accountant.loss, accountant.method
    if loss.silent:
        return 0.0, 0.0
    if delta == 0.0 or (loss.log_no_escape != 0.0 and method != "exact"):
        return math.inf, math.inf
    target = math.log(delta)
    if method == "rdp":
        from leakcore.numerics import dp_accounting_rdp

        value = dp_accounting_rdp.epsilon(loss, target, accountant.orders)
        return value, value
    if method == "exact" and (high := _next_to_nothing(accountant, delta)) < NEGLIGIBLE:
        return 0.0, high
    curve: Curve = ExactCurve(loss) if method == "exact" else DiscreteCurve(loss)
    if accountant.relation == "replace":
        return replacement.epsilon(curve, target, effort=effort, split=split)
    low, high = -math.inf, -math.inf
    for direction in directions:
        # Full batches are a Gaussian pair, symmetric. ε of adding ends at −minimum.
        if direction == "add" and (not loss.groups or -loss.minimum - loss.log_no_escape <= low) and low > -math.inf:
            continue
        pair = curve.epsilon(target, direction, effort=effort)
        if math.isnan(pair[0]) or math.isnan(pair[1]):  # `max` would pass over it, and leave no bound at all
            pair = (-math.inf, math.inf)
        low, high = max(low, pair[0]), max(high, pair[1])
    return max(0.0, low), max(0.0, high)


def _next_to_nothing(accountant: Accountant, delta: float) -> float:
    """An upper bound of ε ≥ 0 for losses too small, or δ too large, for the profile: 0 where δ is beyond the total
    variation, else the full batches' ε."""
    if STEPS[accountant.relation] * accountant.loss.total_variation() * (1.0 + 1e-12) <= delta:
        return 0.0
    separation = accountant.full_batch_separation()
    return max(0.0, gaussian_pair.epsilon_limits(math.log(delta), separation)[1]) if separation < FAINT else math.inf
