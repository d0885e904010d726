"""What the order of scores proves: tests of pairs of ranks, and of all ranks against one trade-off curve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from leakcore import kernels
from leakcore.bounds.audited_epsilon.families import Family, RefutableClaim, Roc
from leakcore.numerics import clopper_pearson, dot

_CELLS = 600
"""Parts of an order statistic's distribution. Each takes its worst end: 600 cost a thousandth of the parameter."""
_ROUNDING = 1e-9, 1e-14
"""Relative error of a probability, and for each trial: far above what the incomplete beta function and a last bit of
its argument make."""
_TOLERANCE = 1e-4
"""Error of a parameter, from below."""
_TAIL = 10
"""Rank among the less likely side at which the tail's chain begins: some ten scores settle a small probability."""

_SHARES: dict[Family, tuple[float, float, float, float, float]] = {
    "dp": (0.45, 0.25, 0.15, 0.10, 0.05),
    "gdp": (0.10, 0.70, 0.10, 0.05, 0.05),
}
"""Shares of the error: the upper tail, equal rates, the lower tail, ranks between in the upper and the lower half."""


class Ranks(NamedTuple):
    """The event that at least `above` scores of the likelier side are above the `rank`-th of the other side. In the
    lower tail sides and order are swapped: at least `above` of the other side are below the `rank`-th lowest of the
    likelier side."""

    rank: int
    above: int
    lower: bool


class Refuted(NamedTuple):
    """The largest parameter that was refuted, by which event."""

    parameter: float
    ranks: Ranks | None


def refuted(likelier: np.ndarray, claim: RefutableClaim, error: float) -> Refuted:
    """The largest parameter that the order of the scores refutes at an error over all ranks together.

    likelier: (n + m,) True for scores of the likelier side, from the highest score to the lowest. The claim's
    confidence and direction are not used.
    """
    n, m = int(likelier.sum()), int((~likelier).sum())
    family: Family = "gdp" if claim.family == "gdp" else "dp"
    best = Refuted(0.0, None)
    for share, ranks in _chosen(likelier, family):
        sizes = (n, m) if not ranks.lower else (m, n)
        test = _Test(ranks.rank, ranks.above, *sizes, family, claim.delta, claim.k)
        proved = test.parameter(share * error, best.parameter)
        if proved > best.parameter:
            best = Refuted(proved, ranks)
    return best


def _chosen(likelier: np.ndarray, family: Family) -> Iterator[tuple[float, Ranks]]:
    """In each chain of nested events the smallest that happened, with the chain's share of the error."""
    upper, equal, lower, between, beneath = _SHARES[family]
    for reverse, tail, middle in ((False, upper, between), (True, lower, beneath)):
        order = ~likelier[::-1] if reverse else likelier
        n, others = int(order.sum()), np.flatnonzero(~order)
        m = len(others)
        above = others - np.arange(m)  # likelier scores above each of the others
        chains = [(tail, *_tail_chain(n, m))]
        if not reverse:
            # As many of the other side above, in share, as there are likelier scores below.
            every = np.arange(1, m + 1)
            chains.append((equal, every, np.maximum(1, np.ceil(n * (1 - (every - 0.5) / m))).astype(np.int64)))
        single = _between(m)
        chains += [
            (middle * 2.0**-i / (2 - 2.0 ** (1 - len(single))), np.array([rank]), np.ones(1, dtype=np.int64))
            for i, rank in enumerate(single)
        ]
        for share, ranks, least in chains:
            reached = np.flatnonzero(above[ranks - 1] >= least)
            if len(reached):
                at = int(reached[0])
                most = int(least[at - 1]) if at else n
                yield share, Ranks(int(ranks[at]), min(int(above[ranks[at] - 1]), most), reverse)


def _tail_chain(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks 1, 2, …, and how many likelier scores each needs above it: fewer for a later rank, so events are nested."""
    last = max(1, min(_TAIL, m // 4))
    ranks = np.arange(1, last + 1)
    least = np.ceil(0.85 * n / np.sqrt(ranks)).astype(np.int64)
    least[-1] = 1
    return ranks, least


def _between(m: int) -> list[int]:
    """Ranks from the tail to the middle, each four times the one before."""
    return [_TAIL * 4**i for i in range(1, 40) if _TAIL * 4**i <= m // 2]


class _Test(NamedTuple):
    """A test of one pair of ranks against every mechanism of a parameter."""

    rank: int
    above: int
    n: int
    m: int
    family: Family
    delta: float
    k: int

    def parameter(self, error: float, least: float) -> float:
        """The largest parameter that is refuted, or `least` if that is not."""
        return _parameter(self, error) if self.probability(least) <= error else least

    def probability(self, parameter: float) -> float:
        """Of the event, at most, for a mechanism that the parameter allows. The share of the other side above its
        `rank`-th score has a distribution Beta(rank, m − rank + 1), and the curve says how many likelier scores may be
        above a share."""
        shares, masses = _order_statistic(self.rank, self.m)
        most = allowed(shares, parameter, self.family, self.delta, self.k)
        mean = dot(masses, special.betainc(self.above, self.n - self.above + 1.0, most))
        return mean * (1 + _ROUNDING[0] + _ROUNDING[1] * (self.n + self.m))


def allowed(p: np.ndarray, parameter: float, family: Family, delta: float, k: int) -> np.ndarray:
    """The most that an event of probability p on one side may have on the other, k rows away."""
    if family == "gdp":
        return np.asarray(special.ndtr(k * parameter + special.ndtri(p)))
    ratio = math.exp(min(700.0, k * parameter))
    slack = delta * (math.expm1(min(700.0, k * parameter)) / math.expm1(parameter) if parameter > 0 else k)
    return np.clip(np.minimum(ratio * p + slack, 1 - (1 - p - slack) / ratio), 0.0, 1.0)


@lru_cache(maxsize=1 << 16)
def _parameter(test: _Test, error: float) -> float:
    def beyond(parameter: float) -> float:
        return float(special.ndtri(max(1e-300, min(1 - 1e-16, test.probability(parameter)))) - special.ndtri(error))

    if beyond(0.0) > 0:
        return 0.0
    low, high = 0.0, 1.0
    while beyond(high) <= 0:
        low, high = high, 2 * high
        if high > 1e3:  # pragma: no cover
            return low
    root = float(optimize.brentq(beyond, low, high, xtol=_TOLERANCE, rtol=1e-6))
    while root > low and beyond(root) > 0:
        root -= _TOLERANCE
    return max(root, low)


@lru_cache(maxsize=1 << 10)
def _order_statistic(rank: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Upper ends of cells of [0, 1], and their masses under Beta(rank, m − rank + 1)."""
    ends = special.betaincinv(rank, m - rank + 1.0, special.ndtr(np.linspace(-3.0, 7.0, _CELLS)))
    ends = np.append(ends, 1.0)
    below = special.betainc(rank, m - rank + 1.0, ends)
    # Masses from above: the differences of a distribution function that is close to 1 would cancel.
    beyond = special.betaincc(rank, m - rank + 1.0, ends)
    masses = np.where(below < 0.5, np.diff(below, prepend=0.0), -np.diff(beyond, prepend=1.0))
    return ends, np.maximum(masses, 0.0)


_RATES = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Shares of the other side above the ranks that divide all scores into cells."""
_SIMULATIONS = 50_000
_PART = 5_000
_DOUBT = 1e-7
"""How often the limit of a simulated probability may be too small."""
_MOST_TESTS = 40
SIMULATION_ERROR = _DOUBT * _MOST_TESTS
"""Error of all limits of one audit together; it counts as a part of the audit's error."""


class RankScores:
    """The event that the scores of the likelier side have at least this sum of rank scores.

    m scores of the other side divide all scores into cells, by ranks that depend on m alone. A cell's rank score is the
    logarithm of how much likelier the claimed curve (any is valid) makes it for the likelier side: a number fixed
    before the trials. The ranks cut the other side's distribution at shares T of a Dirichlet law. Given them, scores
    under any mechanism with at most this curve R are above the k-th cut with probability at most R(T_k), so their sum
    is stochastically at most that of independent ones that attain R(T_k): its law is simulated by `seed`, with
    Clopper–Pearson limits. `likelier` is as in `refuted`.
    """

    def __init__(self, likelier: np.ndarray, claimed: Roc, seed: int) -> None:
        others = np.flatnonzero(~likelier)
        self._n, self._m, self._seed = len(likelier) - len(others), len(others), seed
        ranks = _ranks(self._m)
        above = others[ranks - 1] - (ranks - 1)  # likelier scores above each rank
        counts = np.diff(above, prepend=0, append=self._n)
        rates = np.append(ranks / (self._m + 1.0), 1.0)
        shares = np.diff(claimed(rates), prepend=0.0)
        # One score more on each side, so that no cell weighs infinitely.
        weights = np.log((self._n * shares + 1) / (self._m * np.diff(rates, prepend=0.0) + 1) * self._m / self._n)
        weights = np.minimum.accumulate(weights)  # a higher score never counts less
        self._weights = tuple(weights.tolist())
        self._sum = float(counts @ weights)

    def chance(self, curve: Roc) -> float:
        """No mechanism with at most this curve makes the event likelier; too small a limit once in ten million."""
        sums = _sums(self._n, self._m, self._weights, curve, self._seed)
        hits = len(sums) - int(np.searchsorted(sums, self._sum - 1e-9 * self._n, side="left"))
        return float(clopper_pearson(hits, len(sums), confidence=1 - _DOUBT, side="upper")[1])


@lru_cache(maxsize=256)
def _sums(n: int, m: int, weights: tuple[float, ...], curve: Roc, seed: int) -> np.ndarray:
    """Sorted sums of the rank scores of n scores that attain the curve."""
    rng = kernels.generator(seed, kernels.Stream.RANK_SCORES)
    out = []
    for shares in _cuts(m, seed):
        cells = np.diff(np.maximum.accumulate(curve(shares), axis=1), axis=1, prepend=0.0, append=1.0)
        out.append(rng.multinomial(n, cells / cells.sum(axis=1, keepdims=True)) @ np.array(weights))
    return np.sort(np.concatenate(out))


@lru_cache(maxsize=4)
def _cuts(m: int, seed: int) -> tuple[np.ndarray, ...]:
    """Where the ranks cut the distribution of m scores, (simulations, ranks), in parts."""
    rng = kernels.generator(seed, kernels.Stream.RANK_CUTS)
    steps = np.diff(_ranks(m), prepend=0, append=m + 1).astype(np.float64)
    out = []
    for _ in range(_SIMULATIONS // _PART):
        parts = rng.standard_gamma(steps, size=(_PART, len(steps))).cumsum(axis=1)
        out.append(parts[:, :-1] / parts[:, -1:])
    return tuple(out)


def _ranks(m: int) -> np.ndarray:
    """The ranks among m scores that divide all scores into cells."""
    return np.unique(np.ceil(np.array(_RATES) * m).astype(np.int64))
