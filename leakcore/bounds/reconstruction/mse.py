"""Least squared error of an unbiased reconstruction: the bound of Guo et al. (2022a)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore._base.validate import asks_adjacency
from leakcore.bounds.reconstruction.arguments import ATTACKER, SampledGaussian
from leakcore.numerics import PrivacyLoss, dot

_ROUNDING = 2.0**-48
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
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

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
    loss = SampledGaussian.parse(noise_multiplier, sample_rate, steps).loss()
    epsilon = _renyi_of_order_two(loss, relation == "replace")
    guess = dot(widths, widths) / (4.0 * len(widths))
    value = math.inf if epsilon == 0.0 else (0.0 if epsilon > 700.0 else guess / math.expm1(epsilon))
    value *= 1.0 - _ROUNDING * (8.0 + min(epsilon, 700.0)) - 2.0**-52 * len(widths)  # a lower bound: rounded down
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
        cumulant = 0.5 * (rest.cumulants(4.0).value + rest.cumulants(-2.0).value) + _ROUNDING * rest.num_mixture_steps
        if cumulant < _TINY:
            cumulant = 0.5 * (_whole_cumulant(rest, 4) + _whole_cumulant(rest, 3))
        return _renyi_of_order_two(full, True) + cumulant
    cumulant = max(loss.cumulants(2.0).value, loss.cumulants(-1.0).value) + _ROUNDING * loss.num_mixture_steps
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
