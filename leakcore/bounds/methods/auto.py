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
    """The default method: `ClosedForm` where it applies, else `Exact`, else `Importance` with these options.

    Where `Exact` raises AccuracyError for one κ, `Importance` serves all κ of the call. If that raises AccuracyError
    too, nothing covers the mechanism.

    Args:
        num_samples: drawn in all, if `Importance` is needed.
        confidence: of its limits, in (0, 1 − 1e-12], for each κ.
        seed: of its samples.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import bounds
        >>> bounds.reconstruction(1.0, 1.0, 10, kappa=0.1, method=bounds.methods.Auto()).method
        'closed-form'
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
