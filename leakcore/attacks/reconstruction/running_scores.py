"""The prior-aware attacks as running scores, one step at a time, for arrays in memory and for ensembles alike."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics import step_log_ratio


@dataclasses.dataclass(frozen=True)
class Sum:
    """Hayes et al. 2023, Algorithm 2: Σ_t s_{t,i} / C²."""

    max_grad_norm: float

    def start(self, shape: tuple[int, ...]) -> _RunningSum:
        return _RunningSum(shape, self.max_grad_norm)


@dataclasses.dataclass(frozen=True)
class Top:
    """Hayes et al. 2023, Algorithm 3: the `count` largest s_{t,i} of each candidate, summed, / C²."""

    max_grad_norm: float
    count: int

    def start(self, shape: tuple[int, ...]) -> _RunningTop:
        return _RunningTop(shape, self.max_grad_norm, self.count)


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """Hayes et al. 2023, Appendix G: Σ_t log(1 − q + q·exp((2 s_{t,i} − n²_{t,i})/(2σ²C²)))."""

    max_grad_norm: float
    noise_multiplier: float
    sample_rate: float

    def start(self, shape: tuple[int, ...]) -> _RunningLikelihood:
        return _RunningLikelihood(shape, self)


@dataclasses.dataclass(frozen=True)
class Allocated:
    """The likelihood where the target is in one of the `batches` of each epoch, all alike.

    Σ_epochs log (1/b) Σ_t exp((2 s_{t,i} − n²_{t,i})/(2σ²C²)).
    """

    max_grad_norm: float
    noise_multiplier: float
    batches: int

    def start(self, shape: tuple[int, ...]) -> _RunningAllocated:
        return _RunningAllocated(shape, self)


class _RunningSum:
    def __init__(self, shape: tuple[int, ...], max_grad_norm: float) -> None:
        self._total = np.zeros(shape)
        self._unit = max_grad_norm**2

    def add(self, dots: np.ndarray, clipped_norms: np.ndarray) -> None:
        self._total += dots

    def scores(self) -> np.ndarray:
        return self._total / self._unit


class _RunningTop:
    def __init__(self, shape: tuple[int, ...], max_grad_norm: float, count: int) -> None:
        self._best = np.full((count, *shape), -np.inf)
        self._unit = max_grad_norm**2

    def add(self, dots: np.ndarray, clipped_norms: np.ndarray) -> None:
        least = self._best.argmin(axis=0)[None]
        larger = np.maximum(np.take_along_axis(self._best, least, axis=0), dots[None])
        np.put_along_axis(self._best, least, larger, axis=0)

    def scores(self) -> np.ndarray:
        # Sorted, so that the order of summation, and with it the rounding, depends on the values alone.
        total = np.zeros(self._best.shape[1:])
        for values in np.sort(self._best, axis=0):
            total += values
        return total / self._unit


class _RunningLikelihood:
    def __init__(self, shape: tuple[int, ...], rule: Likelihood) -> None:
        self._total = np.zeros(shape)
        self._noise = rule.noise_multiplier * rule.max_grad_norm
        self._rate = rule.sample_rate

    def add(self, dots: np.ndarray, clipped_norms: np.ndarray) -> None:
        self._total += step_log_ratio(dots, clipped_norms, self._noise, self._rate)

    def scores(self) -> np.ndarray:
        return self._total


class _RunningAllocated:
    def __init__(self, shape: tuple[int, ...], rule: Allocated) -> None:
        self._total, self._epoch = np.zeros(shape), np.full(shape, -np.inf)
        self._steps, self._batches = 0, rule.batches
        self._variance = (rule.noise_multiplier * rule.max_grad_norm) ** 2

    def add(self, dots: np.ndarray, clipped_norms: np.ndarray) -> None:
        self._epoch = np.logaddexp(self._epoch, (dots - clipped_norms**2 / 2) / self._variance)
        self._steps += 1
        if self._steps == self._batches:
            self._total = self.scores()
            self._epoch[...], self._steps = -np.inf, 0

    def scores(self) -> np.ndarray:
        if self._steps == 0:
            return self._total
        left = self._batches - self._steps  # an epoch that is not over: the target may be in a batch to come
        epoch = self._epoch if left == 0 else np.logaddexp(self._epoch, math.log(left))
        return np.asarray(self._total + epoch - math.log(self._batches))


Rule = Sum | Top | Likelihood | Allocated
METHODS = ("sum", "top", "likelihood")


def rule(
    method: str,
    *,
    max_grad_norm: float,
    sample_rate: float,
    steps: int,
    noise_multiplier: float | None,
    batches: int | None = None,
) -> Rule:
    """The rule of that name; "top" sums max{1, ⌊qT + ½⌋} values, at most T. batches: of an epoch, where each row draws
    one of them."""
    if method == "sum":
        return Sum(max_grad_norm)
    if method == "top":
        return Top(max_grad_norm, min(steps, max(1, math.floor(sample_rate * steps + 0.5))))
    if noise_multiplier is None or noise_multiplier == 0:
        raise ValueError(
            f"`noise_multiplier` must be above 0 and finite for method='likelihood', got {noise_multiplier}"
        )
    if batches is not None:
        return Allocated(max_grad_norm, noise_multiplier, batches)
    return Likelihood(max_grad_norm, noise_multiplier, sample_rate)


def decide(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(index, undecided) of scores (..., candidates): the largest, −1 where two share it."""
    undecided = (scores == scores.max(axis=-1, keepdims=True)).sum(axis=-1) > 1
    return np.where(undecided, -1, scores.argmax(axis=-1)).astype(np.int64), np.asarray(undecided)
