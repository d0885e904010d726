"""The confidence interval of Hayes et al. (2023), Section 3.3, to compare with the certificate's."""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import Executor
from typing import ClassVar

import numpy as np

from leakcore._base import validate
from leakcore.bounds.methods.method import SampledLimits, assumptions
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.bounds.reconstruction.pair import draw_all, mixture_pair
from leakcore.numerics import AccuracyError

_MAX_SAMPLES = 1 << 26
"""All samples are in memory and sorted, half a gigabyte twice; `Certified` keeps none."""


@dataclasses.dataclass(frozen=True)
class DKW(SampledLimits):
    """σ > 0: the paper's own interval, by DKW for the threshold of Algorithm 1 and a Bennett-type bound for the mean.

    Nothing is done about the threshold having been chosen on the same samples, so the kind is "estimate", and the value
    is Algorithm 1's (E1). The interval is [κ, 1] where it says nothing. docs/explanation/bounds.md has the formulas.

    Args:
        num_samples: 2 to 2²⁶, which are held in memory and sorted.
        confidence: in (0, 1 − 1e-12].
        seed: of the samples.
        executor: maps shards of samples; the answer is bit-identical without it.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import bounds
        >>> estimate = bounds.reconstruction(1.0, 0.5, 10, kappa=0.1, method=bounds.methods.DKW(num_samples=20_000))
        >>> estimate.kind, estimate.interval[0] < estimate.value < estimate.interval[1]
        ('estimate', True)
    """

    name: ClassVar[str] = "dkw-bennett"
    executor: Executor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.integer(2, _MAX_SAMPLES, num_samples=self.num_samples)

    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        """See `Method`."""
        loss, count = mechanism.loss(), self.num_samples
        if loss.log_no_escape != 0.0:
            raise ValueError(
                "`noise_multiplier` must be positive, got 0: the ratio has no variance; use method='exact'"
            )
        descending = np.sort(draw_all(mixture_pair(mechanism), count, "null", self.seed, self.executor))[::-1]
        with np.errstate(over="ignore"):
            mass = np.exp(np.logaddexp.accumulate(descending) - math.log(count))

        def mean_above(share: np.ndarray) -> np.ndarray:
            """γ̂ at the empirical quantile of each share."""
            size = np.clip(np.ceil(share * count * (1.0 - 1e-12)).astype(np.int64), 0, count)
            return np.where(size > 0, mass[np.maximum(size - 1, 0)], 0.0)

        tail = 1.0 - self.confidence
        eta = math.sqrt(math.log(4.0 / tail) / (2.0 * count))
        try:
            log_second = loss.cumulants(2.0).value if loss.groups or loss.gaussian_variance > 0.0 else 0.0
        except AccuracyError:
            log_second = math.inf
        scale = math.exp(min(0.5 * log_second, 700.0)) / math.sqrt(count)
        plain = prior.plain
        high = np.clip(mean_above(plain + eta) + scale * math.sqrt(2.0 * math.log(4.0 / tail)), plain, 1.0)
        high = np.where(plain + eta >= 1.0, 1.0, high)
        low = np.clip(mean_above(plain - eta) - scale * math.sqrt(4.0 / tail - 1.0), plain, 1.0)
        with np.errstate(divide="ignore"):
            value = np.log(np.clip(mean_above(plain), plain, 1.0))
            log_low, log_high = np.log(low), np.log(np.maximum(high, low))
        return ReconstructionBound(
            kind="estimate",
            confidence=self.confidence,
            method=self.name,
            assumptions=assumptions(
                "as the text does it: the threshold is chosen on the samples that are counted", f"eta={eta:.3g}"
            ),
            seed=self.seed,
            provenance="Hayes, Mahloujifar and Balle (2023), Section 3.3 after Proposition 4",
            num_samples=count,
            **prior.fields(value, log_low, log_high),
        )
