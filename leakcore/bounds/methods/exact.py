"""B_κ by Fourier inversion of the tilted privacy loss, with its numerical error reported."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from leakcore.bounds.methods.method import PROVENANCE, Method, assumptions
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.numerics import AccuracyError, blow_up


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

    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        """See `Method`."""
        try:
            tail = blow_up.log_blow_up_exact(mechanism.loss(), prior.log, force_numerical=True)
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
