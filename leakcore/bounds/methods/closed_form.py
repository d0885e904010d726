"""B_κ in closed form: full batches, a single step, or no noise."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from leakcore.bounds.methods.exact import computed
from leakcore.bounds.methods.method import Method
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.numerics import blow_up


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

    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        """See `Method`."""
        loss = mechanism.loss()
        if not blow_up.has_closed_form(loss):
            raise ValueError(
                "`method='closed-form'` needs sample_rate=1 in every step, a single step, or noise_multiplier=0, got "
                f"{loss.num_mixture_steps} subsampled steps; use method='exact'"
            )
        return computed(self.name, prior, blow_up.log_blow_up_exact(loss, prior.log))
