"""The confidence interval of Hayes et al. (2023), Section 3.3, by its own name."""

from __future__ import annotations

from typing import Any

from leakcore.bounds.methods.dkw import DKW
from leakcore.bounds.reconstruction.arguments import ReconstructionBound
from leakcore.bounds.reconstruction.reconstruction import reconstruction


def reconstruction_dkw(
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    *,
    kappa: Any = None,
    log_kappa: Any = None,
    num_samples: int = 1_000_000,
    confidence: float = 0.999,
    seed: int = 0,
) -> ReconstructionBound:
    """The interval that the paper puts around Algorithm 1: `reconstruction` by `methods.DKW`, which has the formulas.

    Args:
        noise_multiplier: σ > 0. sample_rate: q. steps: T. kappa, log_kappa: as in `reconstruction`.
        num_samples: 2 to 2²⁶, which are held and sorted.
        confidence: in (0, 1 − 1e-12].
        seed: of the samples.

    Returns:
        A `ReconstructionBound` of kind "estimate", method "dkw-bennett".

    Raises:
        ValueError, TypeError: as `reconstruction`; ValueError for noise_multiplier=0.
    """
    method = DKW(num_samples=num_samples, confidence=confidence, seed=seed)
    return reconstruction(noise_multiplier, sample_rate, steps, kappa=kappa, log_kappa=log_kappa, method=method)
