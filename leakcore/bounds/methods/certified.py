"""Two-sided finite-sample certificates for B_κ of a pair (μ, ν) from samples of μ alone.

Upper: B_κ ≤ τκ + E_μ[(1 − τ/r)_+] for every τ ≥ 0, with equality at the best one (Neyman–Pearson in dual form);
τ is chosen on a pilot and the mean, of a variable in [0, 1], is limited by betting on the main sample. Lower:
for E = {log r ≥ t}, B_κ ≥ μ(E)·min(1, κ/ν(E)), since B is concave in κ; μ(E) from below by Clopper–Pearson,
ν(E) = e^{−t} E_μ[1_E e^{t−log r}] from above by betting.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Assumptions, Record, parse_adjacency
from leakcore._base.version import difference
from leakcore._base.workers import in_order
from leakcore.bounds.methods.method import POINTWISE, PROVENANCE, Kappa, ReconstructionBound, SampledLimits, assumptions
from leakcore.bounds.methods.pairs import (
    CHUNK,
    SHARD,
    Pair,
    StatedPair,
    computed_with,
    draw,
    fingerprint,
    mixture_pair,
    ranges,
)
from leakcore.mechanisms import Poisson
from leakcore.numerics import betting_upper_limit, choose_bet, clopper_pearson


@dataclasses.dataclass(frozen=True)
class Certified(SampledLimits):
    """Every mechanism: two limits that hold at `confidence` for a finite sample, in constant memory.

    Of no use for κ far below 1/num_samples, where `Importance` serves.

    Args:
        num_samples: number of draws in all; with `width` the most.
        confidence: level of the limits for each κ, in (0, 1 − 1e-12].
        seed: seed of the draws.
        device: where to draw: None, "cpu", "cuda" or "cuda:N" (in torch's or CuPy's memory).
        executor: maps shards of the draws; the answer has the same bits without it.
        width: stop as soon as every interval is at most this wide. The limits then hold for all sample sizes at once
            (Ville's inequality), a few per cent wider.
        resume: the `state` of an earlier result with the same mechanism, κ, seed and confidence; goes on up to
            num_samples in all. The answer is that of one run, to the bit (if the first had num_samples ≥ 200,000).

    Raises:
        ValueError: for a value that is not allowed, too few samples for the confidence, or a damaged state.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import bounds
        >>> method = bounds.methods.Certified(num_samples=20_000, confidence=0.99, seed=1)
        >>> bound = bounds.reconstruction(1.0, 0.5, 10, kappa=0.1, method=method)
        >>> low, high = bound.interval
        >>> low < bounds.reconstruction(1.0, 0.5, 10, kappa=0.1).value < high == bound.value
        True
    """

    name: ClassVar[str] = "certified"
    device: str | None = None
    executor: Executor | None = None
    width: float | None = None
    resume: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = samples_needed(self.confidence)
        if self.num_samples < needed:
            raise ValueError(
                f"`num_samples` must be at least {needed} for any limit at confidence={self.confidence:g}, got "
                f"{self.num_samples}"
            )
        if self.width is not None:
            object.__setattr__(self, "width", validate.positive(width=self.width))
        if self.resume is not None and not isinstance(self.resume, CertificateState):
            try:
                object.__setattr__(self, "resume", CertificateState.from_dict(self.resume))
            except ValueError as why:
                raise ValueError(
                    f"`resume` must be the `state` of an earlier result, but this one is damaged ({why})"
                ) from why

    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        limits = self._limits(mixture_pair(mechanism, self.device), prior)
        rest = limits.num_samples - limits.num_pilot
        notes = [f"chosen on a pilot of {limits.num_pilot} samples, certified on the other {rest}"]
        if limits.state is not None:
            notes.append("valid for all sample sizes at once: stopping and going on are allowed")
        if prior.shape:
            notes.append(POINTWISE)
        provenance = PROVENANCE + "; dual certificate by betting"
        return self._result(limits, prior, kind="upper", assumptions=assumptions(*notes), provenance=provenance)

    def bound_of(self, stated: StatedPair, prior: Kappa) -> ReconstructionBound:
        """B_κ of a pair from outside."""
        if self.device is not None:
            raise ValueError(
                f"`device` must be None, since a pair from outside draws its own samples, got {self.device!r}"
            )
        relation = None if stated.adjacency is None else parse_adjacency(stated.adjacency)
        limits = self._limits(stated.pair, prior)
        proof = (
            "bounds attacks on a mechanism only if the pair dominates it: the caller's theorem"
            if stated.dominates
            else "an estimate where attacks on a mechanism are concerned: that the pair dominates it is not claimed; "
            "the limits hold for the pair itself"
        )
        return self._result(
            limits,
            prior,
            kind="upper" if stated.dominates else "estimate",
            assumptions=Assumptions(adjacency=relation, attacker="as the pair says", notes=(proof, POINTWISE)),
            provenance="Hayes, Mahloujifar and Balle (2023), Theorem 2, equation (3); dual certificate by betting",
        )

    def _result(self, limits: Certificate, prior: Kappa, **statements: Any) -> ReconstructionBound:
        return ReconstructionBound(
            confidence=self.confidence,
            method=self.name,
            seed=self.seed,
            num_samples=limits.num_samples,
            state=None if limits.state is None else limits.state.to_dict(),
            **statements,
            **prior.fields(limits.log_high, limits.log_low, limits.log_high, proved=True),
        )

    def _limits(self, pair: Any, prior: Kappa) -> Certificate:
        if self.resume is not None:
            self._require_same(pair, prior, self.resume)
        return certify(
            pair,
            prior.log,
            num_samples=self.num_samples,
            confidence=self.confidence,
            seed=self.seed,
            executor=self.executor,
            width=self.width,
            resume=self.resume,
        )

    def _require_same(self, pair: Any, prior: Kappa, state: CertificateState) -> None:
        """ValueError unless the state is of this very question, and of samples with these bits."""
        if not callable(getattr(pair, "fingerprint", None)):
            raise ValueError(
                "`resume` must be None, since the pair has no fingerprint(), a text that only equal pairs have in "
                "common: another pair's state could be taken for its own"
            )
        same = state.log_kappa.shape == prior.log.shape and bool((state.log_kappa == prior.log).all())
        if not same or (state.seed, state.confidence, state.pair) != (self.seed, self.confidence, fingerprint(pair)):
            raise ValueError("`resume` must be of this mechanism, kappa, seed and confidence, but belongs to another")
        if changes := difference(dict(state.computed_with), computed_with(pair)):
            raise ValueError(f"`resume` was begun elsewhere ({changes}), where the last bits differ: begin again")


_MOST_SHARDS = 1 << 13
"""Most shards of one count: a cluster's scheduler takes milliseconds for each."""
_SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
"""Sample sizes for which an anytime-valid limit places its bets."""
_BINS = 1 << 14
"""Outcomes in [0, 1] are counted in cells and rounded against us: costs at most 2⁻¹⁴ of the event's probability."""


@dataclasses.dataclass(frozen=True, eq=False)
class CertificateState(Record):
    """What a run that may be continued has counted; its size does not depend on the number of samples.

    A run may go on only with the same pair (by its `fingerprint`), seed and `computed_with`: versions, device and
    `kernels.arithmetic`, which decide the last bits of a sample, and by them now and then its cell. `counts` holds one
    row of `_cells` for each κ; `next_sample` is the first sample that is not yet counted.
    """

    pair: str
    log_kappa: np.ndarray
    thresholds: np.ndarray
    pilot_counts: np.ndarray
    counts: np.ndarray
    num_pilot: int
    next_sample: int
    seed: int
    confidence: float
    computed_with: Mapping[str, Any]

    schema: ClassVar[str] = "leakcore.certificate-state/3"

    def __post_init__(self) -> None:
        """ValueError unless every sample that was drawn is counted once for each κ."""
        rows = (self.log_kappa.size, _BINS + 1)
        drawn = {"pilot_counts": self.num_pilot, "counts": self.next_sample - self.num_pilot}
        for name, wanted in drawn.items():
            counts = getattr(self, name)
            sound = wanted >= 0 and counts.shape == rows and counts.dtype == np.int64 and (counts >= 0).all()
            if not (sound and (counts.sum(axis=1) == wanted).all()):
                raise ValueError(f"{name} do not add up to {wanted} samples for each kappa")
        if self.thresholds.shape != (self.log_kappa.size,) or not np.isfinite(self.thresholds).all():
            raise ValueError("thresholds are not one finite number for each kappa")


@dataclasses.dataclass(frozen=True)
class Certificate:
    """log limits of B_κ, flat arrays: each misses with probability at most half of 1 − confidence. `num_samples` is the
    number of draws in all; `state` is None unless the run may be continued."""

    log_low: np.ndarray
    log_high: np.ndarray
    num_pilot: int
    num_samples: int
    state: CertificateState | None = None


def samples_needed(confidence: float) -> int:
    """The fewest samples with which a limit at this confidence can be better than none."""
    # All outcomes alike and the largest bet: (1 + .98)^n ≥ 4/(1 − confidence), n on nine tenths of the sample.
    return math.ceil(math.log(4.0 / (1.0 - confidence)) / math.log(1.98) / 0.9) + 1


def certify(
    pair: Pair,
    log_kappa: np.ndarray,
    *,
    num_samples: int,
    confidence: float,
    seed: int,
    executor: Executor | None = None,
    width: float | None = None,
    resume: CertificateState | None = None,
) -> Certificate:
    """Limits of B_κ for each κ of a 1-d array, each pair of limits at `confidence` (pointwise).

    The first tenth of the samples (at most 100,000; 20,000 with width) is the pilot; the rest is counted in shards, by
    `executor` if given. Counts are integers, so the answer does not depend on who counted what.

    width: stop as soon as all intervals of B are that narrow, `num_samples` at most; resume: go on from a state, up to
    `num_samples` in all. With either the limits hold for all sample sizes at once (each bet is spread over five sizes,
    which costs a few per cent of width), so looking and going on is allowed, and the answer carries a state.
    """
    anytime = width is not None or resume is not None
    if resume is None:
        # A pilot that does not depend on how far one means to go, so that going on equals having gone at once.
        num_pilot = min(max(num_samples // 10, 1), 20_000 if anytime else 100_000)
        pilot = np.concatenate([draw(pair, b - a, "alternative", seed, a) for a, b in ranges(0, num_pilot, CHUNK)])
        thresholds = dual_thresholds(pilot, log_kappa)
        empty = np.zeros((len(log_kappa), _BINS + 1), dtype=np.int64)
        resume = CertificateState(
            fingerprint(pair),
            log_kappa,
            thresholds,
            _cells(pilot, thresholds),
            empty,
            num_pilot,
            num_pilot,
            seed,
            confidence,
            computed_with(pair),
        )
    state = resume
    # With a width to watch, the sample doubles between looks.
    stops = [num_samples]
    while width is not None and stops[0] > max(4 * CHUNK, 2 * state.next_sample):
        stops.insert(0, stops[0] // 2)
    log_low, log_high = np.array(log_kappa), np.zeros_like(log_kappa)
    for stop in stops:
        state = _counted_up_to(pair, state, stop, executor)
        rows = zip(log_kappa, state.thresholds, state.counts, state.pilot_counts, strict=True)
        limits = [_limits(float(k), float(t), hits, tried, 1.0 - confidence, anytime) for k, t, hits, tried in rows]
        log_low, log_high = np.array(limits).reshape(-1, 2).T
        if width is not None and float(np.max(np.exp(log_high) - np.exp(log_low), initial=0.0)) <= width:
            break
    return Certificate(log_low, log_high, state.num_pilot, state.next_sample, state if anytime else None)


def _counted_up_to(pair: Pair, state: CertificateState, stop: int, executor: Executor | None) -> CertificateState:
    # Larger counts in larger shards: fewer for a scheduler to handle, still many for each worker.
    least = max(1, -(-(stop - state.next_sample) // SHARD))
    size = SHARD * -(-least // min(_MOST_SHARDS, 4 * math.isqrt(least)))
    shards = [(pair, state.thresholds, state.seed, a, b) for a, b in ranges(state.next_sample, stop, size)]
    counts = state.counts.copy()
    for part in in_order(_count, shards, executor):
        counts += part
    return dataclasses.replace(state, counts=counts, next_sample=max(stop, state.next_sample))


def dual_thresholds(log_ratio: np.ndarray, log_kappa: np.ndarray) -> np.ndarray:
    """For each κ the t with mean(e^{−L}; L ≥ t) closest to κ from above, over a sample of μ: the dual's minimiser.
    Where the sample's whole ν-mass is below κ the least L is taken. Always finite."""
    descending = np.sort(log_ratio[np.isfinite(log_ratio)])[::-1]
    if len(descending) == 0:
        return np.zeros_like(log_kappa)
    with np.errstate(over="ignore"):
        log_mass = np.logaddexp.accumulate(-descending) - math.log(len(log_ratio))
    return np.asarray(descending[np.minimum(np.searchsorted(log_mass, log_kappa), len(descending) - 1)])


def _count(shard: tuple[Pair, np.ndarray, int, int, int]) -> np.ndarray:
    pair, thresholds, seed, start, stop = shard
    counts = np.zeros((len(thresholds), _BINS + 1), dtype=np.int64)
    for a, b in ranges(start, stop, CHUNK):
        counts += _cells(draw(pair, b - a, "alternative", seed, a), thresholds)
    return counts


def _cells(log_ratio: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Per threshold: how many V = e^{t − L} fall in cell [j, j+1)/BINS, V = 1 in the last but one; the last counts L <
    t."""
    counts = np.empty((len(thresholds), _BINS + 1), dtype=np.int64)
    for row, t in enumerate(thresholds):
        inside = np.exp(t - log_ratio[log_ratio >= t])
        # The limits use a cell's ends with a margin of one cell on each side, so the last bit of exp does not matter.
        counts[row, :_BINS] = np.bincount(np.minimum((inside * _BINS).astype(np.int64), _BINS - 1), minlength=_BINS)
        counts[row, _BINS] = len(log_ratio) - len(inside)
    return counts


def _limits(
    log_kappa: float, t: float, counts: np.ndarray, pilot: np.ndarray, alpha: float, anytime: bool
) -> tuple[float, float]:
    """(log low, log high) of B_κ, each at level alpha/2, from the counts of `_cells`."""
    n = int(counts.sum())
    if n == 0:
        return log_kappa, 0.0
    cells = np.arange(_BINS)
    slack = np.append(1.0 - np.maximum(cells - 1, 0) / _BINS, 0.0)  # X = (1 − V)_+, rounded up; 0 outside the event
    inverse = np.append(np.minimum(cells + 2, _BINS) / _BINS, 0.0)  # V·1_E, rounded up
    mean_high = _mean_limit(slack, counts, pilot, alpha / 2.0, anytime)
    with np.errstate(divide="ignore"):
        log_high = min(0.0, float(np.logaddexp(t + log_kappa, np.log(mean_high))))
    nu_high = _mean_limit(inverse, counts, pilot, alpha / 4.0, anytime)
    misses = int(counts[_BINS])
    if anytime:
        missed, tried = (np.array([float(c[_BINS]), float(c[:_BINS].sum())]) for c in (counts, pilot))
        event_low = 1.0 - _mean_limit(np.array([1.0, 0.0]), missed, tried, alpha / 4.0, anytime)
    else:
        event_low = float(clopper_pearson(n - misses, n, confidence=1.0 - alpha / 4.0, side="lower")[0])
    log_low = log_kappa
    if event_low > 0.0:
        log_nu = math.log(nu_high) - t if nu_high > 0.0 else -math.inf
        log_low = max(log_kappa, math.log(event_low) + min(0.0, log_kappa - log_nu))
    return min(log_low, 0.0), max(log_high, log_kappa)


def _mean_limit(values: np.ndarray, counts: np.ndarray, pilot: np.ndarray, alpha: float, anytime: bool) -> float:
    if anytime:
        bet = np.array([choose_bet(values, pilot, size, alpha) for size in _SIZES])
        return betting_upper_limit(values, counts, bet, alpha, relative_width=1e-9)
    return betting_upper_limit(values, counts, choose_bet(values, pilot, int(counts.sum()), alpha), alpha)
