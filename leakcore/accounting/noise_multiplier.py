"""σ for an (ε, δ): the smallest with which it is proved."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import timed
from leakcore._base.results import Result
from leakcore.accounting.epsilon import Accountant, assumptions, epsilon_limits, provenance
from leakcore.mechanisms import Mechanism, Poisson, might_be_numbers, no_mechanism
from leakcore.numerics import AccuracyError, fft_rounding, gaussian_pair, least_noise, search


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


@timed
@one_thread()
def noise_multiplier(
    sample_rate: Any,
    steps: int | None = None,
    *,
    epsilon: float,
    delta: float,
    adjacency: str | None = None,
    method: str = "exact",
    orders: Any = None,
) -> NoiseMultiplier:
    """The smallest σ, the same in every step, with which a mechanism is proved (ε, δ)-private.

    It inverts `epsilon` in σ by a search that ends on the safe side, within a relative 1e-9 (1e-6 for "pld", "rdp" and
    lattice laws).

    Args:
        sample_rate: a mechanism, whose own noise multiplier does not count; or q in [0, 1] of Poisson sampling.
        steps: T ≥ 0. None with a mechanism.
        epsilon: ε in [0, ∞).
        delta: δ in [0, 1).
        adjacency: neighbouring relation, as in `epsilon`.
        method: "exact", "pld" or "rdp", as in `epsilon`.
        orders: Rényi orders of method "rdp", as in `epsilon`.

    Returns:
        `NoiseMultiplier` of kind "upper": this much noise suffices. T = 0 or q = 0 give 0; δ = 0 gives inf where
        anything leaks. Where the search rests on looser bounds of ε, a note says that a little less noise may do.

    Raises:
        ValueError: for a value that is not allowed, and for a δ too small for "pld"; the text names the argument.
        TypeError: for an argument of another type, or a mechanism without a noise multiplier.
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
    scheme = _scheme(sample_rate, steps)
    at_one = Accountant.parse(scheme, None, None, adjacency=adjacency, method=method, orders=orders)
    notes: tuple[str, ...] = ()

    def limits(sigma: float, **how: Any) -> tuple[float, float]:
        return epsilon_limits(at_one.with_noise(sigma), slack, **how)

    if at_one.silent:
        value = 0.0
    elif slack == 0.0:
        value = math.inf
    elif _noiseless_suffices(at_one, wanted, slack):
        value = 0.0
    elif at_one.method == "pld" and slack <= (least := _pld_rounding(at_one)):
        raise ValueError(
            f"`delta` must be above {least:.2g} with method='pld', got {slack!r}: its convolutions round as much over "
            f"so many steps; use method='exact'"
        )
    else:
        # The Gaussian pair leaks at least as much.
        guess = _sampled(at_one, at_one.separation / gaussian_pair.gaussian_separation(wanted, slack))
        if at_one.method == "exact":
            value, tight = least_noise(limits, wanted, guess)
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
        provenance=provenance(at_one, at_one.method),
        epsilon=wanted,
        delta=slack,
    )


def _scheme(sample_rate: Any, steps: Any) -> Mechanism:
    """The mechanism at σ = 1."""
    if isinstance(sample_rate, Mechanism):
        if steps is not None:
            raise TypeError(f"`steps` must be left out where a mechanism is passed, got {steps!r}")
        return sample_rate.with_noise(1.0)
    if not might_be_numbers(sample_rate):
        raise no_mechanism("sample_rate", sample_rate)
    if steps is None:
        raise TypeError("`steps` must be passed next to `sample_rate`, unless that is a mechanism")
    return Poisson(1.0, validate.probability(sample_rate=sample_rate), steps)


def _sampled(accountant: Accountant, guess: float) -> float:
    """The guess without sampling, as sampling lowers it: T steps come near a Gaussian pair of separation
    q√(T(e^{1/σ²} − 1)) (Dong, Roth and Su 2022, Corollary 5.4)."""
    mechanism = accountant.mechanism
    if not isinstance(mechanism, Poisson) or np.ndim(mechanism.sample_rate):
        return guess
    sampled = max(float(mechanism.sample_rate) * guess, 1e-100)
    return guess if sampled > 100.0 else 1.0 / math.sqrt(math.log1p(sampled**-2.0))


def _noiseless_suffices(accountant: Accountant, wanted: float, slack: float) -> bool:
    """Whether (ε, δ) is proved without noise: sampling alone may do."""
    try:
        return accountant.method == "exact" and epsilon_limits(accountant.with_noise(0.0), slack)[1] <= wanted
    except (AccuracyError, ValueError):  # a scheme for which σ = 0 is not defined
        return False


def _pld_rounding(accountant: Accountant) -> float:
    steps = accountant.mechanism.steps if isinstance(accountant.mechanism, Poisson) else 1
    return (1.0 if accountant.loss is not None else 2.0) * fft_rounding(steps)
