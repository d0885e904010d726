"""Curves to compare the blow-up bound with: the older Rényi bound, least squared error, symmetric candidates."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore._base.validate import asks_adjacency
from leakcore.bounds.methods.method import ATTACKER, Kappa, ReconstructionBound
from leakcore.mechanisms import Poisson
from leakcore.numerics import AccuracyError, PrivacyLoss, dot

_RDP_ROUNDING = 2.0**-49


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
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        Deterministic; never below κ and never above 1.

    Example:
        >>> from leakcore import bounds
        >>> older = bounds.reconstruction_rdp(1.0, 0.01, 100, kappa=0.1)
        >>> f"{older.value:.3f}", f"{bounds.reconstruction(1.0, 0.01, 100, kappa=0.1).value:.3f}"
        ('0.144', '0.127')
    """
    mechanism = Poisson(noise_multiplier, sample_rate, steps)
    prior = Kappa.parse(kappa, log_kappa)
    loss = mechanism.added_loss
    if loss.log_no_escape != 0.0:
        log_value = np.zeros_like(prior.log)
    elif not loss.groups:
        size = 0.5 * loss.gaussian_variance - prior.log
        gap = np.sqrt(-prior.log) - math.sqrt(0.5 * loss.gaussian_variance)
        log_value = -(np.maximum(gap, 0.0) ** 2) + _RDP_ROUNDING * np.minimum(size, 1e300)
    else:
        log_value = np.array([_least_renyi_exponent(loss, float(k)) for k in prior.log])
        # The moments are sums whose rounding grows with the steps.
        log_value += _RDP_ROUNDING * (8.0 + loss.num_mixture_steps + np.abs(log_value))
    # Rounded up as far as taking the exponential needs.
    log_value = np.minimum(np.maximum(log_value, prior.log) + _RDP_ROUNDING * np.abs(prior.log), 0.0)
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


_SLACK = 2.0**-48
"""Rounding: relative of sums and exponentials, absolute of the moments of one step."""
_TINY = 1e-9
"""A divergence below it is lost in the rounding of an integral over densities; K(1 − α) ≤ K(α) (Mironov, Talwar and
Zhang 2019, Theorem 5) then leaves sums over the binomial."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MseLowerBound(Result):
    """Least squared error of an unbiased reconstruction, as `mse_lower_bound` returns it.

    Attributes:
        value: least mean squared error per coordinate.
        epsilon: the Rényi parameter of order 2 from which it follows.
        constant_guess: Σ_i diam_i²/(4d), which the error of the best constant guess never exceeds. Where `value` is
            larger, the bound says nothing about biased attacks.
        warnings: says so there; else empty.
    """

    quantity: str = "mean squared error"
    epsilon: float
    constant_guess: float
    warnings: tuple[str, ...]


@asks_adjacency
def mse_lower_bound(
    noise_multiplier: Any, sample_rate: Any, steps: int, *, diameters: Any, adjacency: str
) -> MseLowerBound:
    """Least mean squared error of *unbiased* reconstruction: Σ_i diam_i²/(4d(e^ε − 1)) under (2, ε)-Rényi privacy.

    Guo, Karrer, Chaudhuri and van der Maaten (2022a), as Hayes et al. (2023) compare with it. The proof compares two
    values of one record, so ε is that of *replacing* a record: Σ4/σ² at q = 1, and at most Σ_t [1.5·D₄(μ‖ν) + D₃(ν‖μ)]
    at q < 1, through the dataset without the record (Mironov 2017, Proposition 11, with p = q = 2).

    Args:
        noise_multiplier: as in `reconstruction`.
        sample_rate: as in `reconstruction`.
        steps: as in `reconstruction`.
        diameters: diam_i > 0 of each of the d coordinates of a record, (d,); 1.0 each for images in [0, 1]^d.
        adjacency: "replace" for the bound. "add-remove" uses the larger of D₂(μ‖ν) and D₂(ν‖μ), which is often plugged
            in but is not a bound.

    Returns:
        `MseLowerBound` of kind "lower" ("estimate" under add-remove): inf where nothing leaks, 0 for σ = 0 with q > 0.

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

    Guarantees:
        Deterministic, rounded down. Biased attacks may err less: a constant guess errs by at most Σ_i diam_i²/(4d),
        which is below the bound whenever ε < log 2. `warnings` then says so.

    Example:
        >>> from leakcore import bounds
        >>> bound = bounds.mse_lower_bound(2.0, 1.0, 1, diameters=[1.0] * 784, adjacency="replace")
        >>> f"{bound.value:.3f}", f"{bound.constant_guess:.3f}"
        ('0.145', '0.250')
    """
    relation = parse_adjacency(adjacency)
    widths = validate.real_array("in (0, 1e150)", lambda v: (v > 0.0) & (v < validate.LARGE), diameters=diameters)
    if widths.ndim != 1 or len(widths) == 0:
        raise ValueError(f"`diameters` must be one-dimensional and not empty, got shape {widths.shape}")
    loss = Poisson(noise_multiplier, sample_rate, steps).added_loss
    epsilon = _renyi_of_order_two(loss, relation == "replace")
    guess = dot(widths, widths) / (4.0 * len(widths))
    value = math.inf if epsilon == 0.0 else (0.0 if epsilon > 700.0 else guess / math.expm1(epsilon))
    value *= 1.0 - _SLACK * (8.0 + min(epsilon, 700.0)) - 2.0**-52 * len(widths)  # a lower bound: rounded down
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ("unbiased reconstructions only",)
    if relation != "replace":
        notes += ("no lower bound: the proof compares two values of one record, so it needs adjacency 'replace'",)
    if value > guess:
        message = f"exceeds {guess:.6g}, which a constant guess achieves: the bound says nothing about biased attacks"
        warnings = (message,)
    return MseLowerBound(
        value=value,
        kind="lower" if relation == "replace" else "estimate",
        confidence=None,
        interval=None,
        method="Rényi divergence of order 2",
        assumptions=Assumptions(adjacency=relation, attacker=ATTACKER, notes=notes),
        provenance="Guo, Karrer, Chaudhuri and van der Maaten (2022), Theorem 1; Hayes et al. (2023), Section 5",
        epsilon=epsilon,
        constant_guess=guess,
        warnings=warnings,
    )


def _renyi_of_order_two(loss: PrivacyLoss, replace: bool) -> float:
    if loss.log_no_escape != 0.0:
        return math.inf
    if not loss.groups:
        return loss.gaussian_variance * (4.0 if replace else 1.0)
    # D_α(μ‖ν) = K(α)/(α − 1) and D_α(ν‖μ) = K(1 − α)/(α − 1).
    if replace:
        full = PrivacyLoss((), loss.gaussian_variance)
        rest = PrivacyLoss(loss.groups)
        cumulant = 0.5 * (rest.cumulants(4.0).value + rest.cumulants(-2.0).value) + _SLACK * rest.num_mixture_steps
        if cumulant < _TINY:
            cumulant = 0.5 * (_whole_cumulant(rest, 4) + _whole_cumulant(rest, 3))
        return _renyi_of_order_two(full, True) + cumulant
    cumulant = max(loss.cumulants(2.0).value, loss.cumulants(-1.0).value) + _SLACK * loss.num_mixture_steps
    return _whole_cumulant(loss, 2) if cumulant < _TINY else cumulant


def _whole_cumulant(loss: PrivacyLoss, order: int) -> float:
    """log E_ν[r^order] to full relative accuracy: Σ_k C(n, k) q^k (1−q)^(n−k) (e^{k(k−1)/(2σ²)} − 1), k ≥ 2."""
    total = loss.gaussian_variance * order * (order - 1) / 2.0
    for group in loss.groups:
        q, unit = group.rate, 0.5 / (group.sigma * group.sigma)
        if order * (order - 1) * unit > 700.0:
            return math.inf
        moments = (
            math.comb(order, k) * q**k * (1.0 - q) ** (order - k) * math.expm1(k * (k - 1) * unit)
            for k in range(2, order + 1)
        )
        total += group.count * math.log1p(math.fsum(moments))
    return total


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
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
