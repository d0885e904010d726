"""The older bound, from Rényi differential privacy, that the blow-up bound improves on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from leakcore._base.results import Assumptions
from leakcore.bounds.reconstruction.arguments import ATTACKER, Kappa, ReconstructionBound, SampledGaussian
from leakcore.numerics import AccuracyError, PrivacyLoss

_ROUNDING = 2.0**-49


def reconstruction_rdp(
    noise_multiplier: Any, sample_rate: Any, steps: int, *, kappa: Any = None, log_kappa: Any = None
) -> ReconstructionBound:
    """The older bound from Rényi differential privacy, which `reconstruction` improves on.

    γ = min_{α > 1} (κ·e^{ε(α)})^{(α−1)/α} (Hayes et al. 2023, equation 2 and the line above it). At q = 1 ε(α) =
    αΣ1/(2σ²), so γ = exp(−max{0, √log(1/κ) − √(T/(2σ²))}²). At q < 1 ε(α) = Σ_t log E_ν[(μ_t/ν_t)^α]/(α−1) of the
    Poisson-sampled Gaussian, the same as dp-accounting's, and α is real.

    Args:
        noise_multiplier: as in `reconstruction`.
        sample_rate: as in `reconstruction`.
        steps: as in `reconstruction`.
        kappa: as in `reconstruction`.
        log_kappa: as in `reconstruction`.

    Returns:
        `ReconstructionBound` of kind "upper". σ = 0 with q > 0 gives 1.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic; never below κ and never above 1.

    Example:
        >>> from leakcore import bounds
        >>> older = bounds.reconstruction_rdp(1.0, 0.01, 100, kappa=0.1)
        >>> f"{older.value:.3f}", f"{bounds.reconstruction(1.0, 0.01, 100, kappa=0.1).value:.3f}"
        ('0.144', '0.127')
    """
    mechanism = SampledGaussian.parse(noise_multiplier, sample_rate, steps)
    prior = Kappa.parse(kappa, log_kappa)
    loss = mechanism.loss()
    if loss.log_no_escape != 0.0:
        log_value = np.zeros_like(prior.log)
    elif not loss.groups:
        size = 0.5 * loss.gaussian_variance - prior.log
        gap = np.sqrt(-prior.log) - math.sqrt(0.5 * loss.gaussian_variance)
        log_value = -(np.maximum(gap, 0.0) ** 2) + _ROUNDING * np.minimum(size, 1e300)
    else:
        log_value = np.array([_least_renyi_exponent(loss, float(k)) for k in prior.log])
        # The moments are sums whose rounding grows with the steps.
        log_value += _ROUNDING * (8.0 + loss.num_mixture_steps + np.abs(log_value))
    # Rounded up as far as taking the exponential needs.
    log_value = np.minimum(np.maximum(log_value, prior.log) + _ROUNDING * np.abs(prior.log), 0.0)
    fields = prior.fields(log_value, None, None)
    value = np.exp(log_value)
    above = np.nextafter(np.nextafter(value, 2.0), 2.0)
    fields["value"] = prior.shaped(np.minimum(np.where(log_value < 0.0, above, value), 1.0))
    return ReconstructionBound(
        kind="upper",
        confidence=None,
        method="rdp",
        assumptions=Assumptions(adjacency="add-remove", attacker=ATTACKER, notes=("looser than the blow-up bound",)),
        provenance="Hayes, Mahloujifar and Balle (2023), equation (2), after Balle, Cherubin and Hayes (2022)",
        **fields,
    )


def _least_renyi_exponent(loss: PrivacyLoss, log_kappa: float) -> float:
    """min over α > 1 of ((α−1) log κ + K(α))/α, where ε(α) = K(α)/(α−1); any α gives an upper bound."""

    def exponent(log_excess: float) -> float:
        excess = math.exp(log_excess)
        return (excess * log_kappa + loss.cumulants(1.0 + excess).value) / (1.0 + excess)

    # At α → 1 the exponent is 0 (γ = 1); beyond the best order K(α) grows like α², so the walk up ends by itself.
    grid = [-9.0]
    values = [exponent(grid[0])]
    while grid[-1] < 30.0 and values[-1] <= min(values) + 1.0:
        try:
            values.append(exponent(grid[-1] + 0.25))
        except AccuracyError:
            break
        grid.append(grid[-1] + 0.25)
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    ratio = 0.5 * (math.sqrt(5.0) - 1.0)
    least = values[best]
    for _ in range(30):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        at_a, at_b = exponent(a), exponent(b)
        least = min(least, at_a, at_b)
        low, high = (low, b) if at_a < at_b else (a, high)
    return min(least, 0.0)
