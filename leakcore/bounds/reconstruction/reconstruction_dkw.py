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
    """The confidence interval that Hayes et al. (2023, Section 3.3) put around their Algorithm 1.

    It is `reconstruction` by `methods.DKW`; docs/explanation/bounds.md has the formulas. To bound attacks use
    `reconstruction` itself.

    Args:
        noise_multiplier: σ > 0, as in `reconstruction`.
        sample_rate: as in `reconstruction`.
        steps: as in `reconstruction`.
        kappa: as in `reconstruction`.
        log_kappa: as in `reconstruction`.
        num_samples: 2 to 2²⁶, which are held in memory and sorted.
        confidence: in (0, 1 − 1e-12].
        seed: of the samples.

    Returns:
        `ReconstructionBound` of kind "estimate", method "dkw-bennett".

    Raises:
        ValueError: for a value that is not allowed, noise_multiplier=0 among them; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic given the seed. Not a bound: the threshold is chosen on the samples that are counted.

    Example:
        >>> from leakcore import bounds
        >>> estimate = bounds.reconstruction_dkw(1.0, 0.01, 10, kappa=0.1, num_samples=20_000)
        >>> exact = bounds.reconstruction(1.0, 0.01, 10, kappa=0.1)
        >>> estimate.kind, abs(estimate.value - exact.value) < 0.01
        ('estimate', True)
    """
    method = DKW(num_samples=num_samples, confidence=confidence, seed=seed)
    return reconstruction(noise_multiplier, sample_rate, steps, kappa=kappa, log_kappa=log_kappa, method=method)
