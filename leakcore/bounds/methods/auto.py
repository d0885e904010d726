"""The method that chooses: a closed form, else the exact route, else importance sampling."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from leakcore.bounds.methods.closed_form import ClosedForm
from leakcore.bounds.methods.exact import Exact, computed
from leakcore.bounds.methods.importance import Importance
from leakcore.bounds.methods.method import SampledLimits
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.numerics import AccuracyError, blow_up


@dataclasses.dataclass(frozen=True)
class Auto(SampledLimits):
    """`ClosedForm` where it applies; else `Exact`; where that raises AccuracyError, `Importance` with these options.

    AccuracyError comes with few steps of small q and κ far out, as σ = 1, q = .001, T = 100, κ = 4⁻⁷⁸⁴; importance
    then serves all κ of the call. Where it raises AccuracyError too, nothing covers the mechanism.
    """

    name: ClassVar[str] = "auto"

    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        """See `Method`."""
        loss = mechanism.loss()
        try:
            tail = blow_up.log_blow_up_exact(loss, prior.log)
        except AccuracyError:
            return Importance(self.num_samples, self.confidence, self.seed).bound(mechanism, prior)
        return computed((ClosedForm if blow_up.has_closed_form(loss) else Exact).name, prior, tail)
