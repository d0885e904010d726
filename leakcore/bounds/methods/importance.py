"""Certified limits of B_κ far below 1/N: samples of the tilted privacy loss, with weights that the event bounds.

ν_θ ∝ e^{θL}ν, θ ≥ 1, puts the event E = {L ≥ t} in the middle of its mass. With s = L − t, M = E_ν[e^{θL}]:
    ν(E)               = M e^{−θt}·E_θ[e^{−θs}; s ≥ 0]
    μ(E)               = M e^{(1−θ)t}·E_θ[e^{−(θ−1)s}; s ≥ 0]
    E_μ(1 − e^{t−L})_+ = M e^{(1−θ)t}·E_θ[e^{−(θ−1)s}(1 − e^{−s}); s ≥ 0]
and every variable on the right is in [0, 1], however small the left sides: betting limits of their means are limits of
B_κ. Upper: B_κ ≤ κe^t + E_μ(1 − e^{t−L})_+ for every t. Lower: with inner ⊂ outer events E₁ = {L ≥ t₁}, E₂ = {L ≥ t₂},
ν(E₁) ≤ κ ≤ ν(E₂), the test that adds to E₁ so much of E₂ that ν holds κ has, since dμ ≥ e^{t₂}dν on E₂,
    B_κ ≥ μ(E₁) + e^{t₂}(κ − ν(E₁)) = κe^{t₂} + E_μ[(1 − e^{t₂−L}); E₁].
Both err by the second order of the thresholds' error, and by the sampling error of one bounded mean. Steps are drawn
from tables (`numerics.step_table`): "dots" for the upper limit, which dominate the step, "cells" for the
lower one, which it dominates. Nothing is lost but the tables' resolution.
"""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import Executor
from typing import Any, ClassVar

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base.workers import in_order
from leakcore.bounds.methods.method import POINTWISE, PROVENANCE, Kappa, ReconstructionBound, SampledLimits, assumptions
from leakcore.mechanisms import Poisson
from leakcore.numerics import (
    AccuracyError,
    PairSums,
    PrivacyLoss,
    StepTable,
    betting_upper_limit,
    choose_bet,
    lower_limit,
    step_table,
    with_escape,
)

_MAX_STEPS = 1 << 24
"""Most steps of a sample by importance, the same as for the kernels' samples."""


@dataclasses.dataclass(frozen=True)
class Importance(SampledLimits):
    """Every mechanism, made for κ ≪ 1/num_samples, down to 4⁻³⁰⁷² and below by log_kappa.

    Limits with the guarantee of `Certified`, from samples of the loss tilted to the saddle point of its threshold. With
    10⁶ samples at 99.9% they are within 1.5% of B_κ where T ≥ 50; a few steps of small q are worse
    (docs/explanation/bounds.md).

    Args:
        num_samples: number of draws that the two limits share, drawn again for each κ that needs another tilt.
        confidence: level of the limits for each κ, in (0, 1 − 1e-12].
        seed: seed of the draws.
        executor: maps shards of the draws; the answer has the same bits without it.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, or too few samples for the confidence.

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

    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        loss = mechanism.added_loss
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


_CHUNK = 1 << 14
"""Samples per generator. Fixed, so that no result depends on who draws what."""
_SHARD = 8 * _CHUNK
_EDGES = 2048
_CELLS = 3 << 13
"""Cells of a step's table; fewer where a schedule needs many tables."""
_ALL_CELLS = 1 << 20
_TABLE_ERROR = 4e-14
"""Error of a step's table in total variation: thresholds of 48 bits and the rounding of the probabilities."""
_LOG_ROUNDING = 1e-11
_SIDES = ("dots", "cells")
_REPEATS = 8
"""A sample repeats its last eighth of steps as often: a fifth of the variance at twice the price."""
_UPPER_SHARE = 0.4
_PILOT = 12 * _CHUNK
_PAIR = len(dataclasses.fields(PairSums))


@dataclasses.dataclass(frozen=True)
class TiltedSampler:
    """Draws L under the tilted law of one side. Sample i is a function of (seed, side, law, i) only."""

    tables: tuple[tuple[StepTable, int], ...]
    gaussian_variance: float
    theta: float
    side: str
    law: int

    @classmethod
    def of(cls, loss: PrivacyLoss, theta: float, side: str, law: int) -> TiltedSampler:
        """The loss tilted by θ ≥ 1; `law` tells its random numbers from the numbers of other tilts."""
        cells = min(_CELLS, max(512, _ALL_CELLS // max(len(loss.groups), 1)))
        tables = tuple((step_table(group, theta, side, cells), group.count) for group in loss.groups)
        return cls(tables, loss.gaussian_variance, theta, side, law)

    @property
    def statistics(self) -> int:
        """Numbers that a threshold's limits need."""
        return _EDGES + 1 if self.side == "dots" else 2 * _PAIR

    @property
    def log_moment(self) -> float:
        """log M of this side's law."""
        full = 0.5 * self.gaussian_variance * self.theta * (self.theta - 1.0)
        return full + math.fsum(count * table.log_moment for table, count in self.tables)

    @property
    def slack(self) -> float:
        """Largest error of a mean of [0, 1] variables: mass left out, and the tables' resolution."""
        return math.fsum(count * (1.001 * table.left_out + _TABLE_ERROR) for table, count in self.tables) + 1e-13

    @property
    def log_beyond(self) -> float:
        """log of the mass under μ, at most, that the tables' last ends cut off and no sample shows."""
        parts = [math.log(count) + table.log_beyond for table, count in self.tables]
        return float(np.logaddexp.reduce(parts)) if parts else -math.inf

    def draw(self, seed: int, chunk: int, size: int) -> np.ndarray:
        """The first `size` samples of a chunk: (repeats, size), a column shares all but the last eighth of its steps.

        Columns are independent, rows are not: a column's mean is one bounded variable, of less variance than an entry.
        """
        purpose = kernels.Stream.IMPORTANCE_UPPER if self.side == "dots" else kernels.Stream.IMPORTANCE_LOWER
        bits = kernels.generator(seed, purpose, step=self.law, row=chunk).bit_generator
        inner = [count // _REPEATS for _, count in self.tables]
        gaussian = self.gaussian_variance
        repeats = 1
        if gaussian > 0.0 or any(inner):
            repeats, gaussian = _REPEATS, gaussian / _REPEATS
        else:
            inner = [0] * len(inner)
        common = np.zeros(_CHUNK)
        self._add(common, bits, self.gaussian_variance - (gaussian if repeats > 1 else 0.0), inner, outer=True)
        if repeats == 1:
            return common[None, :size]
        out = np.tile(common, (repeats, 1))
        for row in out:
            self._add(row, bits, gaussian, inner, outer=False)
        return out[:, :size]

    def _add(self, total: np.ndarray, bits: Any, gaussian: float, inner: list[int], *, outer: bool) -> None:
        if gaussian > 0.0:
            uniform = ((bits.random_raw(_CHUNK) >> np.uint64(11)) + 0.5) * 2.0**-53
            total += gaussian * (self.theta - 0.5)
            total += math.sqrt(gaussian) * special.ndtri(uniform)
        for (table, count), last in zip(self.tables, inner, strict=True):
            for _ in range(count - last if outer else last):
                table.add_draws(total, bits.random_raw(_CHUNK))


@dataclasses.dataclass(frozen=True)
class Limits:
    """log limits of B_κ, flat arrays: each misses with probability at most half of 1 − confidence."""

    log_low: np.ndarray
    log_high: np.ndarray
    num_laws: int


def samples_needed(confidence: float) -> int:
    """The fewest samples with which any limit can be better than none at this confidence."""
    # All outcomes alike: n·(λ − k(λ)λ²/2) ≥ log(8/(1 − confidence)) at λ = 1/2, on two thirds of the lower share.
    return math.ceil(math.log(8.0 / (1.0 - confidence)) / 0.3 / (1.0 - _UPPER_SHARE) * 1.5) + 10


def importance_limits(
    loss: PrivacyLoss,
    log_kappa: np.ndarray,
    *,
    num_samples: int,
    confidence: float,
    seed: int,
    executor: Executor | None = None,
) -> Limits:
    """Limits of B_κ for each κ, each pair at `confidence` (pointwise), most of `num_samples` for the upper. κ whose
    thresholds are within a standard deviation of each other share a tilted law; every law takes `num_samples`."""
    low, high = np.array(log_kappa), np.zeros_like(log_kappa)
    if loss.gaussian_variance == 0.0 and not loss.groups:
        return Limits(low, low, 0)
    pending = [int(i) for i in np.argsort(log_kappa, kind="stable") if log_kappa[i] < 0.0]
    laws = 0
    while pending:
        limited = loss.limited(float(log_kappa[pending[0]]))
        theta, together = _shared_tilt(loss, log_kappa, pending)
        pending = pending[len(together) :]
        asked = log_kappa[together]
        for side in _SIDES:
            count = round(num_samples * (_UPPER_SHARE if side == "dots" else 1.0 - _UPPER_SHARE))
            sampler = TiltedSampler.of(limited, theta, side, laws)
            limits_of_side = _one_side(sampler, asked, count, 0.5 * (1.0 - confidence), seed, executor)
            (high if side == "dots" else low)[together] = limits_of_side
        laws += 1
    high = np.clip(high, log_kappa, 0.0)
    return Limits(np.minimum(np.clip(low, log_kappa, 0.0), high), high, laws)


def _shared_tilt(loss: PrivacyLoss, log_kappa: np.ndarray, pending: list[int]) -> tuple[float, list[int]]:
    """θ for the smallest κ still pending, and the κ that it serves."""

    def tilt(k: float) -> float:
        return max(1.0, loss.limited(k).solve_tilt(loss.limited(k).log_tail_estimate, k, 0.0, 1.0))

    first = float(log_kappa[pending[0]])
    limited = loss.limited(first)
    try:
        theta = tilt(first)
        at = limited.cumulants(theta)
    except AccuracyError:
        # So little noise that the loss has no variance without a tilt: μ itself serves.
        return 1.0, pending
    served = 1
    while served < len(pending):
        other = limited.cumulants(tilt(float(log_kappa[pending[served]])))
        if theta > 1.0 and at.mean - other.mean > math.sqrt(at.variance):
            break
        served += 1
    return theta, pending[:served]


def _one_side(
    sampler: TiltedSampler, log_kappa: np.ndarray, count: int, alpha: float, seed: int, executor: Executor | None
) -> np.ndarray:
    """log upper limits ("dots") or log lower limits ("cells") at level alpha."""
    # Both limits are second order in the error of a threshold, but the lower one has two to keep on their sides of κ.
    num_pilot = max(1, min(count // 16 if sampler.side == "dots" else max(count // 8, min(count // 3, 2_000)), _PILOT))
    pilot_chunks = -(-num_pilot // _CHUNK)
    pilot = np.concatenate(
        [sampler.draw(seed, c, min(_CHUNK, num_pilot - c * _CHUNK)) for c in range(pilot_chunks)], axis=1
    )
    rest = count - num_pilot
    thresholds = _thresholds(sampler, pilot, log_kappa, rest, alpha)
    # The main sample starts at a chunk of its own: nothing of it was seen by the pilot.
    shards = [
        (sampler, thresholds, seed, pilot_chunks + a // _CHUNK, min(_SHARD, rest - a)) for a in range(0, rest, _SHARD)
    ]
    totals = np.zeros((len(thresholds), sampler.statistics))
    for part in in_order(_tally, shards, executor):
        totals += part
    tried = _counted(sampler, pilot, thresholds)
    limit = _upper if sampler.side == "dots" else _lower
    limits_of_side = [
        limit(sampler, float(k), ends, main, first, alpha)
        for k, ends, main, first in zip(log_kappa, thresholds, totals, tried, strict=True)
    ]
    return np.array(limits_of_side)


def _thresholds(
    sampler: TiltedSampler, pilot: np.ndarray, log_kappa: np.ndarray, count: int, alpha: float
) -> np.ndarray:
    """(κ, 1) for "dots": the t with ν(L ≥ t) ≈ κ according to the pilot. (κ, 2) for "cells": t₁ ≥ t₂ so far to either
    side that the main sample will say so too."""
    descending = np.sort(pilot, axis=None)[::-1]
    log_weights = sampler.log_moment - sampler.theta * descending
    log_count, last = math.log(len(descending)), len(descending) - 1
    log_mass = np.logaddexp.accumulate(log_weights) - log_count
    at = np.minimum(np.searchsorted(log_mass, log_kappa), last)
    if sampler.side == "dots":
        return np.asarray(descending[at][:, None])
    log_square = np.logaddexp.accumulate(2.0 * log_weights) - log_count
    relative = np.exp(0.5 * log_square[at] - log_mass[at])
    margin = relative * (math.sqrt(-2.0 * math.log(0.25 * alpha) / count) * 1.1 + 2.0 / math.sqrt(pilot.shape[1]))
    inner = np.searchsorted(log_mass, log_kappa - np.minimum(margin, 3.0), side="right") - 1
    outer = np.searchsorted(log_mass, log_kappa + np.minimum(margin, 3.0))
    return np.stack([descending[np.clip(i, 0, last)] for i in (inner, outer)], axis=1)


def _tally(shard: tuple[TiltedSampler, np.ndarray, int, int, int]) -> np.ndarray:
    sampler, thresholds, seed, first, size = shard
    out = np.zeros((len(thresholds), sampler.statistics))
    for chunk in range(-(-size // _CHUNK)):
        draws = sampler.draw(seed, first + chunk, min(_CHUNK, size - chunk * _CHUNK))
        out += _counted(sampler, draws, thresholds)
    return out


def _counted(sampler: TiltedSampler, draws: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Per κ what the limits need of column means, which are 0 off the event.

    "dots": fractional counts of e^{−(θ−1)s}(1 − e^{−s}), scaled to [0, 1], at the edges (j/EDGES)². Each outcome is
    split over the two edges around it so that its mean is kept; the logarithm of a bet's factor is concave in it, so
    the split outcomes win less than the outcome itself did, and limits from them are valid. "cells": the sums of
    a = e^{−(θ−1)s} and b = e^{−θs} for either threshold.
    """
    out = np.zeros((len(thresholds), sampler.statistics))
    theta = sampler.theta
    for row, ends in enumerate(thresholds):
        if sampler.side == "cells":
            sums: list[float] = []
            for t in ends:
                s = np.maximum(draws - t, 0.0)
                event = np.exp((1.0 - theta) * s) * (draws >= t)
                sums += dataclasses.astuple(PairSums.of(event.mean(axis=0), (event * np.exp(-s)).mean(axis=0)))
            out[row] = sums
            continue
        s = np.maximum(draws - ends[0], 0.0)
        x = (np.exp((1.0 - theta) * s) * -np.expm1(-s)).mean(axis=0) / _peak(theta)
        x = x[x > 0.0]
        out[row, 0] += draws.shape[1] - len(x)
        np.minimum(x, 1.0, out=x)
        cell = np.minimum((np.sqrt(x) * _EDGES).astype(np.int64), _EDGES - 1)
        upper = np.clip((x * _EDGES**2 - cell**2) / (2 * cell + 1), 0.0, 1.0)
        out[row] += np.bincount(cell + 1, weights=upper, minlength=_EDGES + 1)
        out[row] += np.bincount(cell, weights=1.0 - upper, minlength=_EDGES + 1)
    return out


def _peak(theta: float, share: float = 1.0) -> float:
    """max over v in [0, 1] of v^{θ−1}(1 − share·v), rounded up; 0 < share ≤ 1."""
    if theta == 1.0:
        return 1.0
    best = min(1.0, (1.0 - 1.0 / theta) / share)
    return math.exp((theta - 1.0) * math.log(best)) * (1.0 - share * best) * (1.0 + 1e-12)


_GRID = (np.arange(_EDGES + 1) / _EDGES) ** 2


def _upper(
    sampler: TiltedSampler, log_kappa: float, ends: np.ndarray, totals: np.ndarray, tried: np.ndarray, alpha: float
) -> float:
    """B_κ ≤ κe^t + E_μ(1 − e^{t−L})_+, the part beyond the tables in full."""
    t = float(ends[0])
    bet = choose_bet(_GRID, tried, round(float(totals.sum())), alpha)
    mean = betting_upper_limit(_GRID, totals, bet, alpha) + sampler.slack
    log_scale = sampler.log_moment + (1.0 - sampler.theta) * t
    log_mean = np.logaddexp(log_scale + math.log(_peak(sampler.theta) * mean), sampler.log_beyond)
    return float(np.logaddexp(t + log_kappa, log_mean)) + _LOG_ROUNDING


def _lower(
    sampler: TiltedSampler, log_kappa: float, ends: np.ndarray, totals: np.ndarray, tried: np.ndarray, alpha: float
) -> float:
    """κ′e^{t₂} + E_μ[(1 − e^{t₂−L}); E₁] at the κ′ nearest to κ with ν(E₁) ≤ κ′ ≤ ν(E₂) for sure: a quarter of α for
    either side, half for the mean. From κ′ > κ to κ by concavity, B_κ ≥ B_κ′·κ/κ′; from κ′ < κ because B rises."""
    t, outer_t = float(ends[0]), float(ends[1])
    (inner, outer), (inner_pilot, outer_pilot) = (
        (PairSums(*row[:_PAIR].tolist()), PairSums(*row[_PAIR:].tolist())) for row in (totals, tried)
    )
    inside = 1.0 - lower_limit(inner, inner_pilot, 0.25 * alpha, b=-1.0, constant=1.0) + sampler.slack
    outside = lower_limit(outer, outer_pilot, 0.25 * alpha, b=1.0) - sampler.slack
    if outside <= 0.0:
        return log_kappa
    log_scale = sampler.log_moment - sampler.theta * t
    log_inside = log_scale + math.log(inside)
    log_outside = sampler.log_moment - sampler.theta * outer_t + math.log(outside)
    if log_inside > log_outside:
        return log_kappa
    near = min(max(log_kappa, log_inside), log_outside)
    ratio = math.exp(outer_t - t)
    most = _peak(sampler.theta, ratio)
    mean = lower_limit(inner, inner_pilot, 0.5 * alpha, a=1.0, b=-ratio, most=most) - 2.0 * sampler.slack
    log_mean = log_scale + t + math.log(mean) if mean > 0.0 else -math.inf
    return float(np.logaddexp(near + outer_t, log_mean)) + min(0.0, log_kappa - near) - _LOG_ROUNDING
