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
    """value: the smallest ε that the method proves at `delta`."""

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

    add-remove: the larger of the two directions' profiles δ_remove(ε) = E_μ(1 − e^{ε−L})_+ and
    δ_add(ε) = E_ν(1 − e^{ε+L})_+ of L = Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))).
    replace: at q = 1 a Gaussian pair with separation 2√Σσ_t⁻², exact; at q < 1 the composition of removing and adding
    through the dataset between (k = 2 add/remove steps), δ(ε) ≤ inf over ε₁ of δ_remove(ε₁) + e^{ε₁}·δ_add(ε − ε₁), an
    upper bound that the notes name.

    noise_multiplier: σ_t in [0, ∞]; sample_rate: q_t in [0, 1]; scalars, or arrays of length `steps` ≥ 0.
    delta: in [0, 1). method: "exact", "pld" or "rdp" (with replace and q < 1: "exact" or "pld"). "pld" adds to δ(ε)
        what its convolutions may round, 1e-13 + 1e-15 per step: at a δ of no more than that its ε is infinite.
    orders: of "rdp" only: None for dp-accounting's default, "authors" for 1.1, …, 10.9 and 11, …, 63 (released code of
        Hayes et al. 2023), or a sequence of orders above 1.

    Returns an `Epsilon` of kind "upper", deterministic; interval = numerical error for "exact", rounded outward, else
    None. T = 0, q = 0 or σ = ∞ give 0; δ = 0 or σ = 0 give inf where anything leaks beyond δ. Where "exact" cannot
    keep its promise of 1e-6 (little noise, rare large losses), lattice laws bound the profile from both sides: `method`
    is then "exact, bounded", value an upper bound all the same and interval wider; where no float holds the loss,
    value is ε of full batches or inf. Raises ValueError or TypeError that names the argument, ImportError when
    dp-accounting is missing, AccuracyError (an ArithmeticError) where a method has no answer.
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
    """(low, high) of the smallest ε ≥ 0. directions: of the profile under "add-remove"; split: the logit of the part of
    δ that the removal takes where a replacement is composed."""
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
