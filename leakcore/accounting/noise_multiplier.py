"""σ for an (ε, δ): the smallest with which it is proved."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.one_thread import one_thread
from leakcore._base.results import Result
from leakcore.accounting.arguments import STEPS, Accountant
from leakcore.accounting.epsilon import epsilon_limits
from leakcore.accounting.provenance import PROVENANCE, assumptions
from leakcore.numerics import ExactCurve, PrivacyLoss, fft_rounding, gaussian_pair, least_noise, replacement, search


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class NoiseMultiplier(Result):
    """σ for an (ε, δ), as `accounting.noise_multiplier` returns it.

    Attributes:
        value: the smallest σ (to a relative 1e-9) with which the method proves (`epsilon`, `delta`).
        epsilon: the ε that was asked for.
        delta: the δ that was asked for.
    """

    compared_at: ClassVar[tuple[str, ...]] = ("epsilon",)

    quantity: str = "noise multiplier"
    epsilon: float
    delta: float


@one_thread()
def noise_multiplier(
    sample_rate: float,
    steps: int,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
    method: str = "exact",
    orders: Any = None,
) -> NoiseMultiplier:
    """The smallest σ, the same in every step, with which DP-SGD is proved (ε, δ)-private.

    It inverts `epsilon` in σ by a search that ends on the safe side, within a relative 1e-9 (1e-6 for "pld" and "rdp").

    Args:
        sample_rate: q in [0, 1], a number.
        steps: T ≥ 0.
        epsilon: ε in [0, ∞).
        delta: δ in [0, 1).
        adjacency: "add-remove" or "replace".
        method: "exact", "pld" or "rdp", as in `epsilon`.
        orders: of method "rdp" only, as in `epsilon`.

    Returns:
        `NoiseMultiplier` of kind "upper": this much noise suffices. T = 0 or q = 0 give 0; δ = 0 gives inf where
        anything leaks. Where the search rests on looser bounds of ε, a note says that a little less noise may do.

    Raises:
        ValueError: for a value that is not allowed, and for a δ too small for "pld"; the text names the argument.
        TypeError: for an argument of another type.
        ImportError: for "pld" and "rdp" without dp-accounting.
        AccuracyError: (an ArithmeticError) where a method has no answer.

    Guarantees:
        Deterministic.

    Example:
        >>> from leakcore import accounting
        >>> noise = accounting.noise_multiplier(1.0, 100, epsilon=2.0, delta=1e-5)
        >>> f"{noise.value:.2f}"
        '19.94'
        >>> accounting.epsilon(noise.value, 1.0, 100, delta=1e-5).value <= 2.0
        True
    """
    wanted, slack = validate.non_negative(epsilon=epsilon), validate.below_one(delta=delta)
    rate = validate.probability(sample_rate=sample_rate)
    at_one = Accountant.parse(1.0, rate, steps, adjacency=adjacency, method=method, orders=orders)
    count = validate.integer(0, steps=steps)
    notes: tuple[str, ...] = ()

    def loss_at(sigma: float) -> PrivacyLoss:
        return PrivacyLoss.of_steps(np.asarray(sigma), np.asarray(rate), count)

    def limits(sigma: float, **how: Any) -> tuple[float, float]:
        return epsilon_limits(dataclasses.replace(at_one, loss=loss_at(sigma)), slack, **how)

    def split_at(sigma: float) -> float:
        return replacement.best_split(ExactCurve(loss_at(sigma)), math.log(slack))

    if count == 0 or rate == 0.0:
        value = 0.0
    elif slack == 0.0:
        value = math.inf
    elif at_one.method == "exact" and limits(0.0)[1] <= wanted:
        value = 0.0
    elif at_one.method == "pld" and slack <= (least := STEPS[at_one.relation] * fft_rounding(count)):
        raise ValueError(
            f"`delta` must be above {least:.2g} with method='pld', got {slack!r}: its convolutions round as much over "
            f"{count} steps; use method='exact'"
        )
    else:
        # Full batches leak at least as much as subsampled ones.
        separation = gaussian_pair.gaussian_separation(wanted, slack) * (0.5 if at_one.relation == "replace" else 1.0)
        guess = math.sqrt(count) / separation
        if at_one.method == "exact":
            value, tight = least_noise(
                limits, wanted, guess, split_at if at_one.relation == "replace" and rate < 1.0 else None
            )
            notes = () if tight else ("a little less noise may do: the search rests on upper bounds of epsilon here",)
        else:
            value, below = search.least_sigma(lambda sigma: limits(sigma)[1], wanted, guess, 1e-6)
            if value > below * (1.0 + 1e-5) and below > 0.0:
                notes = (f"noise_multiplier above {below:.9g} may do: epsilon could not be computed between",)
    return NoiseMultiplier(
        value=value,
        kind="upper",
        confidence=None,
        interval=None,
        method=at_one.method,
        assumptions=assumptions(at_one, notes),
        provenance=PROVENANCE[at_one.method],
        epsilon=wanted,
        delta=slack,
    )
