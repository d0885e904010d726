"""What is shown beside the exact reconstruction bound: the older RDP bound, membership, and an attack's exact
success.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.one_thread import one_thread
from leakcore._base.results import Assumptions, Number, Result
from leakcore.bounds.reconstruction.arguments import ATTACKER, Kappa, ReconstructionBound, SampledGaussian
from leakcore.bounds.reconstruction.reconstruction import reconstruction
from leakcore.numerics import AccuracyError, PrivacyLoss, gaussian_pair

_ROUNDING = 2.0**-49


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MembershipBound(Result):
    """The largest true-positive rate of a membership attack at a false-positive rate.

    value: TPR at `fpr`. advantage: TPR − FPR there. max_advantage: the largest over all false-positive rates.
    """

    fpr: Number
    advantage: Number
    max_advantage: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OrthogonalSuccess(Result):
    """Success of the optimal attack among `prior_size` candidates with gradients in a fixed geometry."""

    prior_size: int
    geometry: str


def reconstruction_rdp(
    noise_multiplier: Any, sample_rate: Any, steps: int, *, kappa: Any = None, log_kappa: Any = None
) -> ReconstructionBound:
    """The bound from Rényi differential privacy that `reconstruction` improves on.

    γ = min_{α > 1} (κ·e^{ε(α)})^{(α−1)/α} (Hayes et al. 2023, equation 2 and the line above it). At q = 1
    ε(α) = αΣ1/(2σ²) and γ = exp(−max{0, √log(1/κ) − √(T/(2σ²))}²). At q < 1 ε(α) = Σ_t log E_ν[(μ_t/ν_t)^α]/(α−1), the
    Poisson-sampled Gaussian's (the same as dp-accounting's), and α is real.

    Arguments as in `reconstruction`. Returns a `ReconstructionBound` of kind "upper", deterministic, never below κ and
    never above 1. σ = 0 with q > 0 gives 1. Raises ValueError or TypeError that names the argument.
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


@one_thread()
def membership(noise_multiplier: Any, sample_rate: Any, steps: int, *, fpr: Any) -> MembershipBound:
    """The largest true-positive rate of any membership attack on DP-SGD at false-positive rate `fpr`.

    TPR = B_fpr, the same quantity as in `reconstruction` (Hayes et al. 2023, Section 3 after equation 3): the test of ν
    (record absent) against μ (record present). `max_advantage` = max_α B_α − α = δ(0), the total variation distance (of
    full batches, which is no less, where the numerics do not reach).

    fpr: in (0, 1], a float or an array. Other arguments as in `reconstruction`, method "auto".
    Returns a `MembershipBound` of kind "upper", deterministic, interval = numerical error; by "importance" (99.9%, seed
    0) where the exact route does not reach, for fpr below about 1e-290.
    """
    from leakcore.numerics import log_delta

    level = validate.real_array("in (0, 1]", lambda v: (v > 0.0) & (v <= 1.0), fpr=fpr)
    curve = reconstruction(noise_multiplier, sample_rate, steps, kappa=level)
    loss = SampledGaussian.parse(noise_multiplier, sample_rate, steps).loss()
    try:
        _, log_largest = log_delta(loss, 0.0, "remove")
    except AccuracyError:
        _, log_largest = gaussian_pair.log_profile_limits(0.0, loss.full_batch_separation())
    return MembershipBound(
        value=curve.value,
        kind="upper",
        confidence=curve.confidence,
        interval=curve.interval,
        method=curve.method,
        seed=curve.seed,
        assumptions=Assumptions(adjacency="add-remove", attacker=ATTACKER, notes=curve.assumptions.notes),
        provenance=curve.provenance,
        fpr=curve.kappa,
        advantage=curve.value - curve.kappa,
        max_advantage=min(1.0, math.exp(log_largest)),
    )


def orthogonal_success(
    noise_multiplier: float, steps: int, prior_size: int, *, geometry: str = "orthogonal"
) -> OrthogonalSuccess:
    """How often the optimal attack names the right one of n equally likely candidates with symmetric gradients.

    Full batch (q = 1), every candidate's clipped gradient of norm C in every step, and mutually orthogonal: the
    prior-aware attack (Hayes et al. 2023, Algorithm 2) is then maximum likelihood and succeeds with probability
    E_z[Φ(z + √T/σ)^{n−1}], z ~ N(0, 1). geometry="simplex": gradients at the corners of a regular simplex, √T/σ
    times √(n/(n−1)). n = 2 in a simplex is an antipodal pair, Φ(√T/σ), which meets the bound B_{1/2}.

    noise_multiplier: σ in [0, ∞]; steps: T ≥ 0; prior_size: n ≥ 1. σ = 0 with T > 0, or n = 1, gives 1; T = 0
    gives 1/n. Returns an `OrthogonalSuccess` of kind "estimate": a reference curve between attack and bound, no
    guarantee about other candidates. Deterministic, quadrature error below 1e-12. Raises ValueError for
    arguments out of range.
    """
    sigma = float(validate.real(noise_multiplier=noise_multiplier))
    if sigma < 0.0:
        raise ValueError(f"noise_multiplier={noise_multiplier!r}: must be in [0, inf]")
    count = validate.integer(0, steps=steps)
    n = validate.integer(1, prior_size=prior_size)
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
        prior_size=n,
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
