"""B_κ far below 1/num_samples: certified limits from samples of the tilted privacy loss."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor
from typing import ClassVar

from leakcore.bounds.methods.method import POINTWISE, PROVENANCE, SampledLimits, assumptions
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.bounds.reconstruction.importance_limits import importance_limits, samples_needed
from leakcore.numerics import AccuracyError, with_escape

_MAX_STEPS = 1 << 24
"""Most steps of a sample by importance, the same as for the kernels' samples."""


@dataclasses.dataclass(frozen=True)
class Importance(SampledLimits):
    """Every mechanism, made for κ ≪ 1/num_samples, down to 4⁻³⁰⁷² and below by log_kappa.

    Limits with the guarantee of `Certified`, from samples of the loss tilted to the saddle point of its threshold. With
    10⁶ samples at 99.9% they are within 1.5% of B_κ where T ≥ 50; a few steps of small q are worse
    (docs/explanation/bounds.md).

    Args:
        num_samples: shared by the two limits, and drawn again for κ that need another tilt.
        confidence: in (0, 1 − 1e-12], for each κ.
        seed: of the samples.
        executor: maps shards of samples; the answer is bit-identical without it.

    Raises:
        ValueError: for a value that is not allowed, or too few samples for the confidence.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import bounds
        >>> method = bounds.methods.Importance(num_samples=2000)
        >>> bound = bounds.reconstruction(1.0, 0.1, 50, kappa=1e-12, method=method)
        >>> bound.kind, 1e-12 < bound.value < 1e-3
        ('upper', True)
    """

    name: ClassVar[str] = "importance"
    executor: Executor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = samples_needed(self.confidence)
        if self.num_samples < needed:
            raise ValueError(
                f"`num_samples` must be at least {needed} for confidence={self.confidence:g} by 'importance', got "
                f"{self.num_samples}"
            )

    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        """See `Method`."""
        loss = mechanism.loss()
        if loss.num_mixture_steps > _MAX_STEPS:
            raise AccuracyError(
                f"`steps` must be at most {_MAX_STEPS} for 'importance', which draws each of a sample's steps, got "
                f"{mechanism.steps}; 'reconstruction_rdp' gives an upper bound for any number"
            )
        limits = importance_limits(
            loss,
            prior.log,
            num_samples=self.num_samples,
            confidence=self.confidence,
            seed=self.seed,
            executor=self.executor,
        )
        low, high = (with_escape(part, loss.log_no_escape) for part in (limits.log_low, limits.log_high))
        return ReconstructionBound(
            kind="upper",
            confidence=self.confidence,
            method=self.name,
            assumptions=assumptions(
                f"{limits.num_laws} tilted law(s) of {self.num_samples} samples each",
                "exact except for float64 rounding: tables from both sides",
                *((POINTWISE,) if prior.shape else ()),
            ),
            seed=self.seed,
            provenance=PROVENANCE + "; exponential tilt, dual certificate by betting",
            num_samples=self.num_samples,
            **prior.fields(high, low, high, proved=True),
        )
