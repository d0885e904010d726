"""B_κ by dp-accounting's privacy loss distributions, rounded to either side."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from leakcore.bounds.methods.method import PROVENANCE, Method, assumptions
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.numerics import DiscreteLoss

_LEAST_ROUNDING = 1e-10
"""Least allowance for rounding of the sums in a blow-up of a discretised loss; they never reach it."""


@dataclasses.dataclass(frozen=True)
class PLD(Method):
    """σ > 0, by dp-accounting: slower than `Exact`, and not tight.

    The interval is (optimistic, pessimistic), the value its upper end. Without dp-accounting it raises ImportError,
    which names the package to install (`pip install leakcore[accounting]`).

    Example:
        >>> from leakcore import bounds
        >>> bounds.methods.PLD().name
        'pld'
    """

    name: ClassVar[str] = "pld"

    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        """See `Method`."""
        loss = mechanism.loss()
        if loss.silent:
            low = high = prior.log
            note = "nothing leaks: no step samples and tells"
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
