"""Noise for a wanted limit on reconstruction, compared with the noise that calibrating ε for the same limit takes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore import accounting
from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import timed
from leakcore._base.results import Assumptions, Result
from leakcore.bounds.methods.method import ATTACKER, Kappa
from leakcore.bounds.reconstruction.kappa import parse_prior
from leakcore.bounds.reconstruction.reconstruction import limits
from leakcore.mechanisms import Mechanism, Poisson, might_be_numbers, no_mechanism
from leakcore.numerics import AccuracyError, log_blow_up_exact

_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CalibratedNoise(Result):
    """Noise for a limit on reconstruction, as `calibrate_noise` returns it.

    Attributes:
        value: the smallest σ (to a relative 1e-9, on the safe side) with B_κ ≤ target_success.
        target_success: γ that was asked for.
        log_kappa: log κ that was asked for.
        success: B_κ at `value`.
        epsilon_noise_multiplier: σ if (ε, δ) is calibrated so that it alone implies the same limit; NaN where no
            accountant reaches it.
        epsilon: that ε.
        delta: δ that was asked for.
        savings: epsilon_noise_multiplier/value, NaN where both are 0.
    """

    compared_at: ClassVar[tuple[str, ...]] = ("target_success",)

    quantity: str = "noise multiplier"
    target_success: float
    log_kappa: float
    success: float
    epsilon_noise_multiplier: float
    epsilon: float
    delta: float
    savings: float


@timed
@one_thread()
def calibrate_noise(
    mechanism: Any = None,
    target_success: Any = None,
    *,
    kappa: Any = None,
    log_kappa: Any = None,
    prior: Any = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    delta: float = 1e-5,
) -> CalibratedNoise:
    """The smallest noise multiplier with which no attack reconstructs a record with probability above `target_success`.

    The least σ with B_κ(σ) ≤ γ (Hayes et al. 2023, Theorem 2). Compared with the usual way, which knows no more than
    (ε, δ): B_κ ≤ min(e^ε κ + δ, 1 − e^{−ε}(1 − δ − κ)) at most γ, and the least σ that is (ε, δ)-private.

    Args:
        mechanism: a scheme, whose own noise multiplier does not count. Without one `target_success` comes first, and
            sample_rate and steps of Poisson sampling are needed.
        target_success: γ in (κ, 1].
        kappa: κ, a number. Exactly one of kappa, log_kappa and prior.
        log_kappa: log κ, a number at most 0.
        prior: probabilities of a discrete prior; κ is the largest.
        sample_rate: q in [0, 1].
        steps: T ≥ 0.
        delta: δ at which ε is calibrated for the comparison; useful in (0, γ − κ).

    Returns:
        `CalibratedNoise` of kind "upper": this much noise suffices. γ = 1, T = 0 or q = 0 give 0.
        `epsilon_noise_multiplier` is inf where δ leaves no room.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, and for γ ≤ κ, unless nothing leaks.
        AccuracyError: (an ArithmeticError) where the exact bound reaches no σ that suffices.

    Guarantees:
        Deterministic. Where the exact bound reaches no smaller σ (little noise, tiny κ), less noise may do, and the
        notes say so.

    Example:
        >>> from leakcore import bounds
        >>> noise = bounds.calibrate_noise(0.5, kappa=0.1, sample_rate=1.0, steps=100)
        >>> f"{noise.value:.2f} instead of {noise.epsilon_noise_multiplier:.2f}"
        '7.80 instead of 24.24'
    """
    scheme, target_success = _scheme(mechanism, target_success, sample_rate, steps)
    relation = scheme.adjacency
    goal = validate.probability(target_success=target_success)
    if prior is not None:
        if kappa is not None or log_kappa is not None:
            raise ValueError("exactly one of `kappa`, `log_kappa` and `prior` must be given")
        kappa = float(parse_prior(prior).max())
    level = Kappa.parse(kappa, log_kappa)
    if level.shape != ():
        raise ValueError(f"`kappa` must be a number, got shape {level.shape}")
    log_k = float(level.log[0])
    slack = validate.open_probability(delta=delta)
    silent = scheme.separation(relation) == 0.0
    log_goal = math.log(goal) if goal > 0.0 else -math.inf
    if log_goal < log_k or (log_goal == log_k and not silent and log_k < 0.0):
        raise ValueError(
            f"`target_success` must be above {level}, the success of a blind guess, got {target_success!r}"
        )

    def log_bound(sigma: float) -> float:
        at = scheme.with_noise(sigma)
        loss = at.steps_loss(relation)
        if loss is None:
            return float(limits(at, np.array([log_k]))[1][0])
        return float(log_blow_up_exact(loss, np.array([log_k])).log_high[0])

    def without_noise() -> bool:
        try:
            return log_goal >= 0.0 if scheme.steps_loss(relation) is None else log_bound(0.0) <= log_goal
        except ValueError:  # a scheme for which a noise multiplier of 0 is not defined
            return log_goal >= 0.0

    enough = silent or without_noise()
    sigma, unreachable = (0.0, False) if enough else _least(log_bound, log_goal)
    notes: tuple[str, ...] = ("this much noise suffices",)
    if unreachable:
        notes += ("less noise may do: the exact bound reaches no smaller noise multiplier",)
    epsilon = _epsilon_that_implies(goal, log_k, slack)
    if silent or math.isinf(epsilon):
        usual = 0.0
    elif epsilon < 0.0:
        usual = math.inf
    else:
        try:
            for_epsilon = accounting.noise_multiplier(scheme, epsilon=epsilon, delta=slack)
            usual = float(for_epsilon.value)
        except AccuracyError:
            usual = math.nan
            notes += ("the noise that calibrating epsilon takes: beyond the accountant",)
    return CalibratedNoise(
        value=sigma,
        kind="upper",
        confidence=None,
        interval=None,
        method="exact",
        assumptions=Assumptions(adjacency=relation, attacker=ATTACKER, notes=notes + scheme.notes(relation)),
        provenance=f"Hayes, Mahloujifar and Balle (2023), Theorem 2, inverted in sigma; {scheme.proof(relation)}",
        target_success=goal,
        log_kappa=log_k,
        success=1.0 if sigma == 0.0 and goal == 1.0 else min(1.0, math.exp(log_bound(sigma))),
        epsilon_noise_multiplier=usual,
        epsilon=epsilon,
        delta=slack,
        savings=usual / sigma if sigma > 0.0 else (math.nan if usual == 0.0 else math.inf),
    )


def _scheme(mechanism: Any, target: Any, sample_rate: Any, steps: Any) -> tuple[Mechanism, Any]:
    """(the scheme at σ = 1, the target): a first argument that is not a mechanism is the target."""
    if isinstance(mechanism, Mechanism):
        for name, value in (("sample_rate", sample_rate), ("steps", steps)):
            if value is not None:
                raise TypeError(f"`{name}` must be left out where a mechanism is passed, got {value!r}")
        return mechanism.with_noise(1.0), target
    if mechanism is not None:
        if target is not None:
            raise TypeError(f"`mechanism` must be a mechanism, got {mechanism!r}")
        if not might_be_numbers(mechanism):
            raise no_mechanism("mechanism", mechanism)
        target = mechanism
    if isinstance(sample_rate, Mechanism) or not might_be_numbers(sample_rate):
        raise no_mechanism("sample_rate", sample_rate)
    for name, value in (("sample_rate", sample_rate), ("steps", steps)):
        if value is None:
            raise TypeError(f"`{name}` must be passed unless a mechanism is")
    return Poisson(1.0, validate.probability(sample_rate=sample_rate), steps), target


def _epsilon_that_implies(goal: float, log_kappa: float, delta: float) -> float:
    """The largest ε ≥ 0 with min(e^ε κ + δ, 1 − e^{−ε}(1 − δ − κ)) ≤ γ; negative where not even ε = 0 suffices."""
    if goal >= 1.0:
        return math.inf
    kappa = math.exp(log_kappa)
    if goal < kappa + delta or goal <= delta:
        return -1.0
    first = math.log(goal - delta) - log_kappa
    rest = 1.0 - delta - kappa
    second = math.log(rest / (1.0 - goal)) if rest > 0.0 else -math.inf
    return max(first, second, 0.0)


def _least(log_bound: Any, log_goal: float) -> tuple[float, bool]:
    """The least σ with log_bound(σ) ≤ log_goal: a bracket, then interpolation in log σ kept inside it. And whether it
    is the least for which the bound could be computed instead: little noise may be too little for the numerics."""
    unreachable: list[float] = []

    def gap(sigma: float) -> float:
        try:
            return float(log_bound(sigma)) - log_goal
        except AccuracyError:
            if sigma >= 0.3:
                raise
            unreachable.append(sigma)
            return math.inf

    high = 1.0
    at_high = gap(high)
    while at_high > 0.0:
        high *= 2.0
        at_high = gap(high)
        if high > 1e12:
            return math.inf, False
    low = 0.5 * high
    at_low = gap(low)
    while at_low <= 0.0:
        low, high, at_high = 0.5 * low, low, at_low
        if low < 1e-6:
            return high, False
        at_low = gap(low)
    halve = False
    while math.log(high / low) > _TOLERANCE:
        width = math.log(high / low)
        share = 0.5
        if not halve and math.isfinite(at_low):
            share = at_low / (at_low - at_high)
        # A hair to the far side of the root, alternately bisecting, so that both ends move.
        for nudge in (0.25, -0.25):
            shift = min(max(share * width + nudge * max(_TOLERANCE, 0.05 * width * width), 0.01 * width), 0.99 * width)
            middle = low * math.exp(shift)
            if not low < middle < high:
                continue
            value = gap(middle)
            if value <= 0.0:
                high, at_high = middle, value
            else:
                low, at_low = middle, value
        halve = math.log(high / low) > 0.5 * width
    return high, low in unreachable
