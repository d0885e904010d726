"""Success against a discrete prior of unequal weights, and against a label: sharper than κ = the largest weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from leakcore import accounting
from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Assumptions, Result
from leakcore.bounds.methods.method import ATTACKER, Kappa
from leakcore.bounds.reconstruction.kappa import parse_prior
from leakcore.bounds.reconstruction.reconstruction import limits
from leakcore.mechanisms import Mechanism, Poisson, as_mechanism, over_grids
from leakcore.numerics import (
    AccuracyError,
    PrivacyLoss,
    chernoff_log_delta,
    dot,
    gaussian_pair,
    log_blow_up_exact,
    log_delta,
)

_NEGLIGIBLE = -41.5
"""log of 1e-18: less than the rounding of any success probability."""
_PROMISE = 1e-9
"""Relative error of B that numerical inversion may have; results need not be narrower."""
_NODES = 65
"""Distinct weights for which the profile is computed; between them it is convex and a chord lies above."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DiscretePriorBound(Result):
    """The largest probability of naming the right candidate, as `discrete_prior` and `label_success` return it.

    Attributes:
        value: the largest probability of naming the right candidate.
        blind: the largest weight of the prior, the success of a blind guess.
        advantage: (value − blind)/(1 − blind), 0 at blind = 1.
        blow_up: B_κ at κ = blind, the looser bound of the paper.
    """

    quantity: str = "success probability"
    blind: float
    advantage: float
    blow_up: float


@over_grids
def discrete_prior(
    noise_multiplier: Any, sample_rate: Any = None, steps: int | None = None, *, prior: Any
) -> DiscretePriorBound:
    """The largest probability with which any attack names the right one of n candidates with probabilities p_z.

    If the attack answers z on the event E_z, then Σ_z ν(E_z) ≤ 1 for the outputs ν without the record, and μ_z(E_z) ≤
    B(ν(E_z)) for each candidate's outputs μ_z. So success ≤ max{Σ p_z B(a_z) : Σ a_z ≤ 1}, which is at most B(max p)
    (Hayes et al. 2023, Theorem 2), with equality for equal weights. It is computed in dual form, min over λ > 0 of λ +
    Σ p_z δ(log(λ/p_z)) with δ(ε) = E_μ(1 − e^{ε−L})_+, where every λ gives a bound. More: docs/explanation/bounds.md.

    Args:
        noise_multiplier: as in `reconstruction`.
        sample_rate: as in `reconstruction`.
        steps: as in `reconstruction`.
        prior: probabilities of the candidates, (n,), which sum to 1.

    Returns:
        `DiscretePriorBound` of kind "upper".

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

    Guarantees:
        The mechanism's own adjacency; deterministic; in [max p, B(max p)]. Approximations are on the safe side: beyond
        65 distinct weights, and for mechanisms on a lattice, they add a few per cent at most as a rule.

    Example:
        >>> from leakcore import bounds
        >>> bound = bounds.discrete_prior(2.0, 1.0, 1, prior=[0.5, 0.3, 0.2])
        >>> f"{bound.blind:.2f} < {bound.value:.3f} < {bound.blow_up:.3f}"
        '0.50 < 0.579 < 0.691'
    """
    weights = parse_prior(prior)
    mechanism = as_mechanism(noise_multiplier, sample_rate, steps)
    relation = mechanism.adjacency
    loss = mechanism.steps_loss(relation)
    value, blow_up = _success_from_curve(mechanism, weights) if loss is None else _success(loss, weights)
    without = ("each candidate against the outputs without the record", *mechanism.notes(relation))
    return DiscretePriorBound(
        **_fields(value, blow_up, weights),
        assumptions=Assumptions(adjacency=relation, attacker=ATTACKER, notes=without),
    )


def label_success(
    noise_multiplier: Any, sample_rate: Any, steps: int, *, num_classes: int | None = None, prior: Any = None
) -> DiscretePriorBound:
    """The largest probability with which any attack names the label of a training record.

    The attacker knows everything but the label: features, all other records, all noisy sums. The candidates are the
    record with each label, so this is `discrete_prior` with the label's prior. Two classes are also compared with each
    other, p + (1 − p)·δ(log(p/(1 − p))) with δ under replacement, and the smaller number counts. With q = 1 that is the
    best test of two opposite clipped gradients, Φ(√T/σ) at equal weights.

    Args:
        noise_multiplier: as in `reconstruction`.
        sample_rate: as in `reconstruction`.
        steps: as in `reconstruction`.
        num_classes: K ≥ 1 equally likely labels; 2 if neither this nor prior is given.
        prior: probabilities of the labels given the features, instead of num_classes.

    Returns:
        `DiscretePriorBound` of kind "upper". σ = 0 with q = 1 gives 1; σ = ∞, q = 0 or T = 0 give the largest weight.

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

    Guarantees:
        Replacement adjacency (one label changes); deterministic.

    Example:
        >>> from leakcore import bounds
        >>> f"{bounds.label_success(1.0, 1.0, 1).value:.3f}"  # Φ(1)
        '0.841'
    """
    if num_classes is not None and prior is not None:
        raise ValueError(
            f"at most one of `num_classes` and `prior` may be given, got num_classes={num_classes!r} and "
            f"prior={prior!r}"
        )
    if prior is not None:
        weights = parse_prior(prior)
        num_labels = len(weights)
    else:
        classes = num_labels = 2 if num_classes is None else validate.integer(1, 2**63 - 1, num_classes=num_classes)
        weights = np.array([1.0 / classes])  # equal weights are one question, however many
    mechanism = Poisson(noise_multiplier, sample_rate, steps)
    value, blow_up = _success(mechanism.added_loss, weights)
    if num_labels == 2:
        value = min(value, _two_labels(mechanism, float(weights.max())))
    return DiscretePriorBound(
        **_fields(value, blow_up, weights),
        assumptions=Assumptions(
            adjacency="replace",
            attacker="knows the record's features, all other records, the hyperparameters and every noisy gradient sum",
            notes=("labels are compared through the data set without the record, two also directly; Poisson sampling",),
        ),
    )


def _two_labels(mechanism: Poisson, likelier: float) -> float:
    """sup over tests of p·μ₁(says 1) + (1 − p)·μ₂(says 2) = p + (1 − p)·δ(log(p/(1 − p))) of one row's replacement."""
    if likelier == 1.0:
        return 1.0
    epsilon = math.log(likelier / (1.0 - likelier))
    return likelier + (1.0 - likelier) * float(accounting.delta(mechanism, epsilon=epsilon, adjacency="replace"))


def _fields(value: float, blow_up: float, weights: np.ndarray) -> dict[str, Any]:
    blind = float(weights.max())
    return {
        "value": value,
        "kind": "upper",
        "confidence": None,
        "interval": None,
        "method": "dual over events",
        "provenance": "Hayes, Mahloujifar and Balle (2023), Theorem 2, before its last step",
        "blind": blind,
        "advantage": 0.0 if blind == 1.0 else (value - blind) / (1.0 - blind),
        "blow_up": blow_up,
    }


@one_thread()
def _success(loss: PrivacyLoss, weights: np.ndarray) -> tuple[float, float]:
    """(the bound, B at κ = the largest weight)."""
    distinct, counts = np.unique(weights, return_counts=True)
    whole = _whole_batches(loss, float(distinct[-1]))
    if whole <= distinct[-1] * (1.0 + _PROMISE):
        return whole, whole
    try:
        blow_up = math.exp(float(log_blow_up_exact(loss, np.log(distinct[-1:])).log_high[0]))
    except AccuracyError:
        blow_up = whole
    if len(distinct) == 1 or math.isinf(loss.log_no_escape):
        return blow_up, blow_up
    nodes = distinct
    if len(distinct) > _NODES:
        # Evenly in the logarithm, from where the weights below no longer matter, and the least of all: chords between
        # them lie above what is convex in the weight.
        least = int(np.searchsorted(np.cumsum(distinct * counts), 1e-3 * distinct[-1]))
        wanted = np.geomspace(distinct[least], distinct[-1], _NODES - 1)[:-1]
        nodes = np.unique(np.concatenate((distinct[[0, -1]], distinct[np.searchsorted(distinct, wanted)])))

    def dual(log_price: float) -> float:
        gains = np.array([p * _profile(loss, log_price - math.log(p)) for p in nodes])
        return math.exp(log_price) + dot(counts, np.interp(distinct, nodes, gains))

    # The dual bends within a deviation of the loss around each weight's logarithm.
    deviation = math.sqrt(loss.cumulants(1.0).variance) if loss.groups else 0.0
    best = _least_near(dual, _price(loss, distinct, counts), min(0.1, deviation or 0.1))
    return min(max(best, float(distinct[-1])), blow_up, 1.0), blow_up


def _whole_batches(loss: PrivacyLoss, blind: float) -> float:
    """B at κ = blind were every row in every batch, in closed form: no less than B itself. Who sees outputs with every
    row in them can replace each, with probability 1 − q, by a draw without the record."""
    if loss.log_no_escape != 0.0:
        return 1.0
    steps = (math.sqrt(group.count) / group.sigma for group in loss.groups)
    separation = math.hypot(math.sqrt(loss.gaussian_variance), *steps)
    return max(blind, math.exp(float(gaussian_pair.log_blow_up(np.log([blind]), separation)[0])))


def _profile(loss: PrivacyLoss, epsilon: float) -> float:
    """δ(ε), or a Chernoff bound from above where the numerics do not reach, and where that bound is within 1e-18 of its
    limit for an ε beyond all losses: inversion is slow there, and with very little leakage, σ = 1e5, say, it fails."""
    if not loss.groups or loss.log_no_escape != 0.0:
        return math.exp(log_delta(loss, epsilon, "remove")[1])
    rest = chernoff_log_delta(loss, abs(epsilon), "remove" if epsilon > 0.0 else "add", enough=_NEGLIGIBLE)
    # E_μ(1 − e^{ε−L})_+ = 1 − e^ε + e^ε·E_ν(1 − e^{L−ε})_+.
    above = math.exp(rest) if epsilon > 0.0 else -math.expm1(epsilon) + math.exp(epsilon + rest)
    if rest < _NEGLIGIBLE:
        return above
    try:
        return math.exp(log_delta(loss, epsilon, "remove")[1])
    except AccuracyError:
        return min(above, 1.0)


def _price(loss: PrivacyLoss, distinct: np.ndarray, counts: np.ndarray) -> float:
    """log λ for which the events that B's slope allots to the candidates add up to 1, from B on a grid."""
    log_grid = np.concatenate(
        (np.linspace(math.log(1e-3 * distinct[0]), math.log(0.5), 48), np.log1p(-(0.5 ** np.arange(2, 26))))
    )
    try:
        value = np.exp(log_blow_up_exact(loss, log_grid).log_value)
    except AccuracyError:
        return math.log(distinct[-1])  # any start will do: the way down is longer
    log_slope = np.log(np.maximum(np.diff(value), 1e-300)) - np.log(np.diff(np.exp(log_grid)))
    log_slope = np.minimum.accumulate(log_slope)
    middle = 0.5 * (log_grid[1:] + log_grid[:-1])

    def allotted(log_price: float) -> float:
        share = np.interp(-(log_price - np.log(distinct)), -log_slope, middle)
        return dot(counts, np.exp(share))

    low, high = -60.0, 0.0
    for _ in range(60):
        price = 0.5 * (low + high)
        low, high = (price, high) if allotted(price) > 1.0 else (low, price)
    return high


def _least_near(function: Callable[[float], float], start: float, step: float) -> float:
    """The least value met on a walk downhill from `start` and in a parabola's vertex; the function is unimodal."""
    least = 0.3 * step
    x, at = start, function(start)
    left, right = function(x - step), function(x + step)
    for _ in range(40):
        if left < at:
            x, right, at = x - step, at, left
            left = function(x - step)
        elif right < at:
            x, left, at = x + step, at, right
            right = function(x + step)
        elif step < least:
            break
        else:
            step *= 0.25
            left, right = function(x - step), function(x + step)
    bend = left - 2.0 * at + right
    if bend > 0.0:
        at = min(at, function(x + 0.5 * step * (left - right) / bend))
    return at


_KAPPAS = 384


def _success_from_curve(mechanism: Mechanism, weights: np.ndarray) -> tuple[float, float]:
    """(the bound, B at κ = the largest weight) from B at a few hundred κ, for mechanisms whose loss has no formula.

    Σ p_z μ_z(E_z) is at most max{Σ p_z B(a_z) : Σ a_z ≤ 1} = min over λ of λ + Σ p_z max_a [B(a) − λa/p_z]. B is
    concave and rises: between nodes it lies below the upper limit at the next node, and below the line from 0 through
    the last one.
    """
    distinct, counts = np.unique(weights, return_counts=True)
    largest = float(distinct[-1])
    blow_up = float(np.exp(limits(mechanism, Kappa.parse(largest, None).log)[1][0]))
    if len(distinct) == 1:
        return blow_up, blow_up
    nodes = np.unique(np.concatenate((np.geomspace(1e-4 * distinct[0], 1.0, _KAPPAS), distinct)))
    nodes[-1] = 1.0
    above = np.exp(limits(mechanism, np.log(nodes))[1])
    # Corners of a function that B lies below: at each node the limit there, and before it the next one's.
    ratio = np.minimum.accumulate(above / nodes)
    corners = np.concatenate(([0.0], np.minimum(nodes[1:], above[1:] / ratio[:-1]), nodes))
    heights = np.concatenate((above[:1], above[1:], above))
    corners[1 : len(nodes)] = np.maximum(corners[1 : len(nodes)], nodes[:-1])

    def dual(price: float) -> float:
        gains = np.array([np.max(p * heights - price * corners) for p in distinct])
        return float(price + counts @ np.maximum(gains, 0.0))

    # The slope of B is at most that of its chords; the dual is convex in the price.
    low, high = 0.0, float(largest * ratio[0])
    for _ in range(200):
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (low, right) if dual(left) <= dual(right) else (left, high)
    return float(np.clip(min(dual(low), dual(high), blow_up), largest, 1.0)), blow_up
