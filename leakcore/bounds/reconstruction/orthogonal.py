"""An attack's exact success among candidates in a symmetric geometry: a curve between attack and bound."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OrthogonalSuccess(Result):
    """Success of the optimal attack among candidates in a symmetric geometry, as `orthogonal_success` returns it.

    Attributes:
        value: probability of naming the right candidate.
        num_candidates: as asked.
        geometry: as asked.
    """

    quantity: str = "success probability"
    num_candidates: int
    geometry: str


def orthogonal_success(
    noise_multiplier: float, steps: int, num_candidates: int, *, geometry: str = "orthogonal"
) -> OrthogonalSuccess:
    """How often the optimal attack names the right one of n equally likely candidates with symmetric gradients.

    Full batches (q = 1), every candidate's clipped gradient of norm C in every step, mutually orthogonal: the
    prior-aware attack (Hayes et al. 2023, Algorithm 2) is then maximum likelihood and succeeds with probability E_z[Φ(z
    + √T/σ)^{n−1}], z ~ N(0, 1). "simplex": gradients at the corners of a regular simplex, √T/σ times √(n/(n−1)). Two
    corners are an antipodal pair, Φ(√T/σ), which meets the bound B_{1/2}.

    Args:
        noise_multiplier: σ in [0, ∞].
        steps: T ≥ 0.
        num_candidates: n ≥ 1.
        geometry: "orthogonal" or "simplex".

    Returns:
        `OrthogonalSuccess` of kind "estimate": a reference curve between attack and bound. σ = 0 with T > 0, or n = 1,
        gives 1; T = 0 gives 1/n.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic, quadrature error below 1e-12. Nothing about other candidates.

    Example:
        >>> from leakcore import bounds
        >>> attack = bounds.orthogonal_success(1.0, 1, 10)
        >>> f"{attack.value:.2f} of at most {bounds.reconstruction(1.0, 1.0, 1, kappa=0.1).value:.2f}"
        '0.34 of at most 0.39'
    """
    sigma = float(validate.real(noise_multiplier=noise_multiplier))
    if sigma < 0.0:
        raise ValueError(f"`noise_multiplier` must be at least 0, got {noise_multiplier!r}")
    count = validate.integer(0, steps=steps)
    n = validate.integer(1, num_candidates=num_candidates)
    kind = validate.one_of("orthogonal", "simplex", geometry=geometry)
    separation = 0.0 if count == 0 else (math.inf if sigma == 0.0 else math.sqrt(count) / sigma)
    if kind == "simplex" and n > 1:
        separation *= math.sqrt(n / (n - 1.0))
    return OrthogonalSuccess(
        value=_best_of(n, separation),
        kind="estimate",
        confidence=None,
        interval=None,
        method=f"quadrature ({kind})",
        assumptions=Assumptions(
            adjacency="add-remove",
            attacker="the prior-aware attack, which is optimal for these candidates; full batches (q = 1)",
            notes=(
                f"reference curve: exact for {n} equally likely candidates whose clipped gradients have norm C and are "
                + ("mutually orthogonal" if kind == "orthogonal" else "the corners of a regular simplex")
                + " in every step; no bound for other candidates",
            ),
        ),
        provenance="Hayes, Mahloujifar and Balle (2023), Algorithm 2, evaluated for symmetric candidates",
        num_candidates=n,
        geometry=kind,
    )


def _best_of(n: int, separation: float) -> float:
    if n == 1 or math.isinf(separation):
        return 1.0
    if separation == 0.0:
        return 1.0 / n
    # The integrand is entire and decays like a Gaussian: the trapezoid rule converges geometrically.
    step = 1.0 / 64.0
    z = np.arange(-40.0, 40.0 + step, step)
    logs = -0.5 * z * z + (n - 1) * special.log_ndtr(z + separation)
    return min(float(np.exp(logs).sum() * step / math.sqrt(2.0 * math.pi)), 1.0)
