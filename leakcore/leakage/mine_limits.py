"""Limits from a table of MINE's network over held-out rows: entry (i, j) is T of row i's u and row j's v.

For every function T that does not depend on these rows, I(U; V) ≥ E T(u, v) − log E e^{T(u, v′)}. `lower_limit` bounds
both terms for any number of rows, by betting. Where V consists of classes, I(U; V) ≥ H(V) − E[−log q(v|u)] for every q,
such as the one that T implies; a dozen rows say more of H(V) than of the second term above. `sampling_error` is an
estimate of how much the plug-in value of one T scatters.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from leakcore.numerics import betting_upper_limit, choose_bet, clopper_pearson

_SIZES = (2, 4, 6, 8, 12, 16, 32)
"""Rows of a block, to choose from."""
_DEPTHS = (0.7, 1.4, 2.1, 3.0, 4.5, 6.5)
"""How far below its largest value T is clipped, to choose from."""
_STARTS = 64
"""Blocks of the pilot at most, which may overlap."""
_BLENDS = (0.3, 0.1, 0.03, 0.01, 0.003)
"""The part of q that is uniform, to choose from: it limits what a class that q excludes costs."""


@dataclasses.dataclass(frozen=True)
class Likelihoods:
    """log q(v|u) of a side of classes: of each held-out row's own class, and of each row of the pilot. counts: rows of
    each class. total: how many classes there are, whether or not they occur; q is of shares of all."""

    own: np.ndarray
    pilot: np.ndarray
    counts: np.ndarray
    total: int


def log_share(scores: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """log of each row's part of e^score that its own class has; scores: (rows, classes)."""
    top = scores.max(axis=1, keepdims=True)
    return np.asarray(
        np.take_along_axis(scores - top, codes[:, None], 1)[:, 0] - np.log(np.exp(scores - top).sum(axis=1))
    )


def lower_limit(table: np.ndarray, pilot: np.ndarray, alpha: float, likelihoods: Likelihoods | None = None) -> float:
    """P(limit > I(U; V)) ≤ α for any number of rows that are independent of each other, of T and of the pilot.

    T is clipped to [a, b], which leaves it a function whose bound holds. E T is bounded from below by betting on the
    diagonal. E e^{T(u, v′)} is bounded from above by betting on blocks of k rows: the mean of e^T over the pairs of
    different rows of a block has this expectation, and blocks are independent. With `likelihoods`, E[−log q] is
    bounded from above by betting, and H(V) from below by exact limits of the classes' shares. Which way, a, b, k and
    the bets are chosen on the pilot, another table of the same T. Mutual information is at least 0, as is the limit.
    """
    ways: list[_Pairs | _Classes] = list(_pairs(pilot, len(table)))
    if likelihoods is not None:
        lowest = lowest_entropy(likelihoods.counts, alpha / 2, likelihoods.total)
        ways += [_Classes(likelihoods, blend, lowest) for blend in _BLENDS]
    way = max(ways, key=lambda one: one.expected(pilot, len(table), alpha), default=None)
    return 0.0 if way is None else max(0.0, way.limit(table, pilot, alpha))


def lowest_entropy(counts: np.ndarray, alpha: float, total: int) -> float:
    """P(limit > H) ≤ α of the entropy of at most `total` classes, from how often each occurred in independent draws.
    Each share lies between exact limits, those of all `total` classes together; −p log p is concave, so its least value
    is at one of them. Which classes there are must not have been chosen on these draws."""
    occurred = counts[counts > 0]
    if len(occurred) < 2:
        return 0.0
    known = occurred[:1] if total == 2 else occurred  # of two classes one share is enough
    limits = clopper_pearson(known, int(counts.sum()), confidence=1.0 - alpha / (1 if total == 2 else total))
    lows, highs = (np.atleast_1d(limit).tolist() for limit in limits)
    if total == 2:
        return min(_entropy(p) + _entropy(1.0 - p) for p in (lows[0], highs[0]))
    return sum(min(_entropy(low), _entropy(high)) for low, high in zip(lows, highs, strict=True))


def _entropy(share: float) -> float:
    return -share * math.log(share) if share > 0.0 else 0.0


def plug_in(table: np.ndarray) -> float:
    """mean T(u, v) − log mean e^{T(u, v′)}, the second over all pairs of different rows."""
    others = table[~np.eye(len(table), dtype=bool)]
    top = float(others.max())
    return float(np.diagonal(table).mean()) - top - math.log(float(np.exp(others - top).mean()))


def sampling_error(table: np.ndarray) -> float:
    """Standard error of the plug-in value, a U-statistic's, on the safe side.

    The first order is the influence of one row: its own pair, the pairs of its u, and the pairs of its v. On few rows
    its estimate is too large by twice the second order, that of pairs of rows; where it happens to vanish, as for two
    classes that are equally frequent among these rows, the second order is what is left.
    """
    n = len(table)
    off = ~np.eye(n, dtype=bool)
    grown = np.where(off, np.exp(table - table[off].max()), 0.0)
    grown /= grown.sum() / (n * (n - 1))
    pairs = (grown + grown.T) / 2
    of_row = pairs.sum(axis=1) / (n - 1)
    first = (np.diagonal(table) - 2 * of_row).var(ddof=1) / n
    rest = np.where(off, pairs - of_row[:, None] - of_row + 1.0, 0.0)
    return math.sqrt(max(first, 2 * float((rest**2).sum()) / (n * (n - 1)) ** 2))


def _reach(values: np.ndarray, count: int, room: float, alpha: float) -> float:
    """About how far above the mean of [0, 1] variables its upper limit lies, by Bernstein's inequality."""
    need = -math.log(alpha)
    return math.sqrt(2 * float(values.var()) * need / count) + room * need / (2 * count)


def _highest(values: np.ndarray, pilot: np.ndarray, alpha: float) -> float:
    """The upper limit of the mean of independent [0, 1] variables, with a bet chosen on others."""
    bet = choose_bet(pilot, np.ones(len(pilot)), len(values), alpha)
    return betting_upper_limit(values, np.ones(len(values)), bet, alpha)


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """The bound of Donsker and Varadhan with T clipped to [least, most], and k rows a block."""

    least: float
    most: float
    k: int

    def expected(self, pilot: np.ndarray, rows: int, alpha: float) -> float:
        """About the limit that as many rows like the pilot's would have."""
        missing, crossed = self._missing(pilot), self._overlapping(pilot)
        low, high = float(missing.mean()), float(crossed.mean())
        return self._bound(
            min(1.0, low + _reach(missing, rows, 1.0 - low, alpha / 2)),
            min(1.0, high + _reach(crossed, rows // self.k, 1.0 - high, alpha / 2)),
        )

    def limit(self, table: np.ndarray, pilot: np.ndarray, alpha: float) -> float:
        crossed = self._blocks(table, np.arange(0, len(table) - self.k + 1, self.k))
        return self._bound(
            _highest(self._missing(table), self._missing(pilot), alpha / 2),
            _highest(crossed, self._overlapping(pilot), alpha / 2),
        )

    @property
    def _floor(self) -> float:
        return math.exp(self.least - self.most)

    def _missing(self, table: np.ndarray) -> np.ndarray:
        """How far T of the true pairs is below `most`, its range mapped to [0, 1]."""
        return (self.most - np.diagonal(table).clip(self.least, self.most)) / (self.most - self.least)

    def _blocks(self, table: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Mean e^T of the pairs of different rows in blocks that begin at these rows, its range mapped to [0, 1]."""
        rows = (starts[:, None] + np.arange(self.k)) % len(table)
        inside = table[rows[:, :, None], rows[:, None, :]][:, ~np.eye(self.k, dtype=bool)].clip(self.least, self.most)
        return np.asarray(((np.exp(inside - self.most) - self._floor) / (1.0 - self._floor)).mean(axis=1))

    def _overlapping(self, pilot: np.ndarray) -> np.ndarray:
        """Blocks of the pilot, as many as tell their spread."""
        return self._blocks(pilot, np.unique(np.linspace(0, len(pilot) - 1, _STARTS).astype(int)))

    def _bound(self, missing: float, crossed: float) -> float:
        return -(self.most - self.least) * missing - math.log(self._floor + (1.0 - self._floor) * crossed)


def _pairs(pilot: np.ndarray, rows: int) -> Iterator[_Pairs]:
    highs = np.unique(np.append(np.quantile(np.diagonal(pilot), (0.5, 0.8, 1.0)), pilot.max()))
    sizes = [k for k in _SIZES if k == 2 or (k <= rows // 4 and k <= len(pilot) // 2)]
    for high in highs.tolist():
        yield from (_Pairs(high - depth, high, k) for depth in _DEPTHS for k in sizes)


@dataclasses.dataclass(frozen=True)
class _Classes:
    """The entropy of classes minus the loss of q, blended with equal shares."""

    likelihoods: Likelihoods
    blend: float
    lowest: float

    def expected(self, pilot: np.ndarray, rows: int, alpha: float) -> float:
        """About the limit that as many rows like the pilot's would have."""
        loss = self._loss(self.likelihoods.pilot)
        mean = float(loss.mean())
        return self.lowest - self._most * min(1.0, mean + _reach(loss, rows, 1.0 - mean, alpha / 2))

    def limit(self, table: np.ndarray, pilot: np.ndarray, alpha: float) -> float:
        return self.lowest - self._most * _highest(
            self._loss(self.likelihoods.own), self._loss(self.likelihoods.pilot), alpha / 2
        )

    @property
    def _most(self) -> float:
        return math.log(self.likelihoods.total / self.blend)

    def _loss(self, logs: np.ndarray) -> np.ndarray:
        """−log q of each row, its range mapped to [0, 1]."""
        blended = np.logaddexp(math.log1p(-self.blend) + logs, -self._most)
        return np.asarray((-blended / self._most).clip(0.0, 1.0))
