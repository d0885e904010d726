"""Two-sided finite-sample certificates for B_κ of a pair (μ, ν) from samples of μ alone.

Upper: B_κ ≤ τκ + E_μ[(1 − τ/r)_+] for every τ ≥ 0, with equality at the best one (Neyman–Pearson in dual form);
τ is chosen on a pilot and the mean, of a variable in [0, 1], is limited by betting on the main sample. Lower:
for E = {log r ≥ t}, B_κ ≥ μ(E)·min(1, κ/ν(E)), since B is concave in κ; μ(E) from below by Clopper–Pearson,
ν(E) = e^{−t} E_μ[1_E e^{t−log r}] from above by betting.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Protocol

import numpy as np

from leakcore.numerics._betting import betting_upper_limit, choose_bet
from leakcore.numerics._binomial import clopper_pearson

_CHUNK = 1 << 16
"""Samples per draw. Fixed, so that no result depends on who draws what."""
_SHARD = 16 * _CHUNK
_BINS = 1 << 14
"""Outcomes in [0, 1] are counted in cells and rounded against us: costs at most 2⁻¹⁴ of the event's probability."""


class Pair(Protocol):
    """A pair of laws (μ, ν) that can be sampled. Picklable where an executor with processes is used."""

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """log μ(x)/ν(x), shape (num_samples,), for samples first_sample, first_sample + 1, … of `under`: x ~ ν for
        "null", x ~ μ for "alternative". Sample i must depend on (seed, under, i) only, and samples be independent."""
        ...


@dataclasses.dataclass(frozen=True)
class MixturePair:
    """The dominating pair of Poisson-sampled DP-SGD, drawn by the native kernel."""

    noise_multiplier: np.ndarray | float
    sample_rate: np.ndarray | float
    steps: int

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """See `Pair`."""
        from leakcore import kernels

        return np.asarray(
            kernels.mixture_log_ratio(
                num_samples,
                noise_multiplier=self.noise_multiplier,
                sample_rate=self.sample_rate,
                steps=self.steps,
                under=under,
                seed=seed,
                first_sample=first_sample,
            )
        )


@dataclasses.dataclass(frozen=True)
class Certificate:
    """log limits of B_κ, flat arrays: each misses with probability at most half of 1 − confidence."""

    log_low: np.ndarray
    log_high: np.ndarray
    num_pilot: int


def draw(pair: Pair, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
    """`pair.sample_log_ratio`, checked: ValueError for a wrong shape or for NaN."""
    out = np.asarray(pair.sample_log_ratio(num_samples, under, seed, first_sample), dtype=np.float64)
    if out.shape != (num_samples,):
        raise ValueError(f"pair.sample_log_ratio returned shape {out.shape}: must be ({num_samples},)")
    if np.isnan(out).any():
        raise ValueError("pair.sample_log_ratio returned NaN: must be log mu/nu, which may be infinite but not NaN")
    return out


def certify(
    pair: Pair, log_kappa: np.ndarray, *, num_samples: int, confidence: float, seed: int, executor: Executor | None
) -> Certificate:
    """Limits of B_κ for each κ of a 1-d array, each pair of limits at `confidence` (pointwise).

    The first tenth of the samples (at most 100,000) is the pilot; the rest is counted in shards, by `executor`
    if given. Counts are integers, so the answer does not depend on who counted what.
    """
    num_pilot = min(max(num_samples // 10, 1), 100_000)
    pilot = np.concatenate([draw(pair, b - a, "alternative", seed, a) for a, b in _ranges(0, num_pilot, _CHUNK)])
    thresholds = dual_thresholds(pilot, log_kappa)
    shards = [(pair, thresholds, seed, a, b) for a, b in _ranges(num_pilot, num_samples, _SHARD)]
    counts = np.zeros((len(log_kappa), _BINS + 1), dtype=np.int64)
    for part in map(_count, shards) if executor is None else executor.map(_count, shards):
        counts += part
    pilot_counts = _cells(pilot, thresholds)
    limits = [
        _limits(float(k), float(t), seen, tried, 1.0 - confidence)
        for k, t, seen, tried in zip(log_kappa, thresholds, counts, pilot_counts, strict=True)
    ]
    low, high = np.array(limits).T
    return Certificate(low, high, num_pilot)


def dual_thresholds(log_ratio: np.ndarray, log_kappa: np.ndarray) -> np.ndarray:
    """For each κ the t with mean(e^{−L}; L ≥ t) closest to κ from above, over a sample of μ: the dual's minimiser.

    Where the sample's whole ν-mass is below κ the least L is taken. Always finite.
    """
    descending = np.sort(log_ratio[np.isfinite(log_ratio)])[::-1]
    if len(descending) == 0:
        return np.zeros_like(log_kappa)
    with np.errstate(over="ignore"):
        log_mass = np.logaddexp.accumulate(-descending) - math.log(len(log_ratio))
    return np.asarray(descending[np.minimum(np.searchsorted(log_mass, log_kappa), len(descending) - 1)])


def _ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    for a in range(start, stop, size):
        yield a, min(a + size, stop)


def _count(shard: tuple[Pair, np.ndarray, int, int, int]) -> np.ndarray:
    pair, thresholds, seed, start, stop = shard
    counts = np.zeros((len(thresholds), _BINS + 1), dtype=np.int64)
    for a, b in _ranges(start, stop, _CHUNK):
        counts += _cells(draw(pair, b - a, "alternative", seed, a), thresholds)
    return counts


def _cells(log_ratio: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Per threshold: how many V = e^{t − L} fall in cell [j, j+1)/BINS, V = 1 in the last but one; the last
    counts L < t.
    """
    counts = np.empty((len(thresholds), _BINS + 1), dtype=np.int64)
    for row, t in enumerate(thresholds):
        inside = np.exp(t - log_ratio[log_ratio >= t])
        # The limits use a cell's ends with a margin of one cell on each side, so the last bit of exp does not matter.
        counts[row, :_BINS] = np.bincount(np.minimum((inside * _BINS).astype(np.int64), _BINS - 1), minlength=_BINS)
        counts[row, _BINS] = len(log_ratio) - len(inside)
    return counts


def _limits(log_kappa: float, t: float, counts: np.ndarray, pilot: np.ndarray, alpha: float) -> tuple[float, float]:
    """(log low, log high) of B_κ, each at level alpha/2, from the counts of `_cells`."""
    n = int(counts.sum())
    cells = np.arange(_BINS)
    slack = np.append(1.0 - np.maximum(cells - 1, 0) / _BINS, 0.0)  # X = (1 − V)_+, rounded up; 0 outside the event
    inverse = np.append(np.minimum(cells + 2, _BINS) / _BINS, 0.0)  # V·1_E, rounded up
    bet = choose_bet(slack, pilot, n, alpha / 2.0)
    mean_high = betting_upper_limit(slack, counts, bet, alpha / 2.0)
    with np.errstate(divide="ignore"):
        log_high = min(0.0, float(np.logaddexp(t + log_kappa, np.log(mean_high))))
    bet = choose_bet(inverse, pilot, n, alpha / 4.0)
    nu_high = betting_upper_limit(inverse, counts, bet, alpha / 4.0)
    event_low = float(clopper_pearson(n - int(counts[_BINS]), n, confidence=1.0 - alpha / 4.0, side="lower")[0])
    log_low = log_kappa
    if event_low > 0.0:
        log_nu = math.log(nu_high) - t if nu_high > 0.0 else -math.inf
        log_low = max(log_kappa, math.log(event_low) + min(0.0, log_kappa - log_nu))
    return min(log_low, 0.0), max(log_high, log_kappa)
