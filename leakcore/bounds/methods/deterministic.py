"""B_κ without samples: in closed form, by Fourier inversion, by dp-accounting, or by the first method that serves."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from leakcore.bounds.methods.importance import Importance
from leakcore.bounds.methods.method import PROVENANCE, Kappa, Method, ReconstructionBound, SampledLimits, assumptions
from leakcore.mechanisms import Poisson
from leakcore.numerics import AccuracyError, DiscreteLoss, blow_up


@dataclasses.dataclass(frozen=True)
class ClosedForm(Method):
    """Mechanisms that have a closed form; ValueError for anything else.

    q = 1 in every step: Φ(Φ⁻¹(κ) + √Σσ_t⁻²). One step: (1−q)κ + qΦ(Φ⁻¹(κ) + 1/σ). σ = 0: 1 − (1−q)^T(1−κ). Nothing
    leaks (T = 0, q = 0, σ = ∞): κ.

    Example:
        >>> from leakcore import bounds
        >>> f"{bounds.reconstruction(1.0, 1.0, 1, kappa=0.5, method=bounds.methods.ClosedForm()).value:.3f}"  # Φ(1)
        '0.841'
    """

    name: ClassVar[str] = "closed-form"

    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        loss = mechanism.added_loss
        if not blow_up.has_closed_form(loss):
            raise ValueError(
                "`method='closed-form'` needs sample_rate=1 in every step, a single step, or noise_multiplier=0, got "
                f"{loss.num_mixture_steps} subsampled steps; use method='exact'"
            )
        return computed(self.name, prior, blow_up.log_blow_up_exact(loss, prior.log))


@dataclasses.dataclass(frozen=True)
class Exact(Method):
    """Every mechanism: Fourier inversion of the tilted privacy loss, or a recursion where it is too rough.

    The numerical error is reported, 1e-12 as a rule; AccuracyError above 1e-6.

    Example:
        >>> from leakcore import bounds
        >>> bound = bounds.reconstruction(1.0, 0.1, 10, kappa=0.1, method=bounds.methods.Exact())
        >>> bound.interval[1] - bound.interval[0] < 1e-6
        True
    """

    name: ClassVar[str] = "exact"

    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        try:
            tail = blow_up.log_blow_up_exact(mechanism.added_loss, prior.log, force_numerical=True)
        except AccuracyError as error:
            raise AccuracyError(f"{error}; method='pld' or 'importance' gives an upper bound") from error
        return computed(self.name, prior, tail)


def computed(method: str, prior: Kappa, tail: blow_up.Tail) -> ReconstructionBound:
    """The bound whose logarithm was computed to within the limits of `tail`."""
    return ReconstructionBound(
        kind="upper",
        confidence=None,
        method=method,
        assumptions=assumptions("interval: numerical error, rounded outward"),
        provenance=PROVENANCE,
        **prior.fields(tail.log_value, tail.log_low, tail.log_high),
    )


_LEAST_ROUNDING = 1e-10
"""Least allowance for rounding of the sums in a blow-up of a discretised loss; they never reach it."""


@dataclasses.dataclass(frozen=True)
class PLD(Method):
    """σ > 0, by dp-accounting: slower than `Exact`, and not tight.

    The interval is (optimistic, pessimistic), the value its upper end. Without dp-accounting it raises ImportError,
    which names the package to install (`pip install leakcore[accounting]`).
    """

    name: ClassVar[str] = "pld"

    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        loss = mechanism.added_loss
        if loss.silent:
            low = high = prior.log
            note = "nothing leaks in any step"
        else:
            above, below = (DiscreteLoss(loss, pessimistic=side) for side in (True, False))
            rounding = max(above.rounding, below.rounding, _LEAST_ROUNDING)
            high = np.clip(np.logaddexp(above.log_blow_up(prior.log), np.log(rounding)), prior.log, 0.0)
            with np.errstate(invalid="ignore", divide="ignore"):
                low = np.log(np.maximum(np.exp(below.log_blow_up(prior.log)) - rounding, 0.0))
            low = np.minimum(np.clip(low, prior.log, 0.0), high)
            note = f"interval: dp-accounting's optimistic and pessimistic discretisation, {rounding:.2g} for rounding"
        return ReconstructionBound(
            kind="upper",
            confidence=None,
            method=self.name,
            assumptions=assumptions(note),
            provenance=PROVENANCE,
            **prior.fields(high, low, high, proved=True),
        )


@dataclasses.dataclass(frozen=True)
class Auto(SampledLimits):
    """The default method: `ClosedForm` where it applies, else `Exact`, else `Importance` with these options.

    Where `Exact` raises AccuracyError for one κ, `Importance` serves all κ of the call. If that raises AccuracyError
    too, nothing covers the mechanism.

    Args:
        num_samples: number of draws in all, if `Importance` is needed.
        confidence: level of the limits for each κ, in (0, 1 − 1e-12].
        seed: seed of the draws.

    Example:
        >>> from leakcore import bounds
        >>> bounds.reconstruction(1.0, 1.0, 10, kappa=0.1, method=bounds.methods.Auto()).method
        'closed-form'
    """

    name: ClassVar[str] = "auto"

    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        loss = mechanism.added_loss
        try:
            tail = blow_up.log_blow_up_exact(loss, prior.log)
        except AccuracyError:
            return Importance(self.num_samples, self.confidence, self.seed).bound(mechanism, prior)
        return computed((ClosedForm if blow_up.has_closed_form(loss) else Exact).name, prior, tail)
