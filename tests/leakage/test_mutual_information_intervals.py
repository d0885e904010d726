"""Limits of mutual information cover it: of the best T and of trained networks, from dozens of rows to thousands."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binomtest, norm

from leakcore import leakage
from leakcore.leakage import mine_limits

Rows = tuple[np.ndarray, np.ndarray]


class Equal:
    """A class likelihoods twice; T is the logarithm of the density ratio, and low where that is −∞."""

    def __init__(self, *shares: float) -> None:
        self.shares, self.classes = np.array(shares), len(shares)
        self.truth = float(-(self.shares * np.log(self.shares)).sum())

    def rows(self, rng: np.random.Generator, n: int) -> Rows:
        classes = rng.choice(len(self.shares), n, p=self.shares)
        return classes, classes

    def table(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.where(u[:, None] == v, -np.log(self.shares[v]), -8.0)

    def log_share(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.zeros(len(v))


class Shifted:
    """A fair coin v, and a normal u that it shifts: by 0 nothing is likelihoods."""

    classes = 2

    def __init__(self, shift: float) -> None:
        self.half = shift / 2
        self.truth = quad(lambda t: norm.pdf(t, self.half) * self._ratio(t, 1), -12, 12)[0]

    def _ratio(self, u: float | np.ndarray, v: int | np.ndarray) -> float | np.ndarray:
        return math.log(2) - np.logaddexp(0.0, -2 * self.half * u * (2 * v - 1))

    def rows(self, rng: np.random.Generator, n: int) -> Rows:
        v = rng.integers(0, 2, n)
        return rng.normal(size=n) + self.half * (2 * v - 1), v

    def table(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.asarray(self._ratio(u[:, None], v))

    def log_share(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.diagonal(self.table(u, v)) - math.log(2)


class Pair:
    """Two normals of correlation ρ, whose T has no lower end."""

    classes = 0

    def __init__(self, rho: float) -> None:
        self.rho = rho
        self.truth = -0.5 * math.log(1 - rho**2)

    def rows(self, rng: np.random.Generator, n: int) -> Rows:
        u = rng.normal(size=n)
        return u, self.rho * u + math.sqrt(1 - self.rho**2) * rng.normal(size=n)

    def table(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        r, x = self.rho, u[:, None]
        return self.truth - (r**2 * (x**2 + v**2) - 2 * r * x * v) / (2 * (1 - r**2))

    def log_share(self, u: np.ndarray, v: np.ndarray) -> None:
        """Neither side consists of classes."""


class Noise(Shifted):
    """T of a network that learned what is not there."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def table(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.asarray(0.3 * np.sin(9 * u[:, None]) * (2 * v - 1))


CASES: dict[str, Callable[[], Equal | Shifted | Pair]] = {
    "two equal classes": lambda: Equal(0.5, 0.5),
    "a rare class": lambda: Equal(0.05, 0.95),
    "ten equal classes": lambda: Equal(*[0.1] * 10),
    "a shift of 1": lambda: Shifted(1.0),
    "a shift of 4": lambda: Shifted(4.0),
    "correlation 0.9": lambda: Pair(0.9),
    "nothing": Noise,
}


def _limit(case: str, seed: list[int], rows: int, alpha: float) -> tuple[float, float, float]:
    """(lower limit by pairs, by pairs or classes, truth) of so many held-out rows and a pilot of half as many."""
    source, rng = CASES[case](), np.random.default_rng(seed)
    held_out, pilot = source.rows(rng, rows), source.rows(rng, max(10, rows // 2))
    own, known = source.log_share(*held_out), source.log_share(*pilot)
    likelihoods = None
    if own is not None and known is not None:
        likelihoods = mine_limits.Likelihoods(
            own, known, np.unique(np.concatenate([held_out[1], pilot[1]]), return_counts=True)[1], source.classes
        )
    tables = source.table(*held_out), source.table(*pilot)
    return mine_limits.lower_limit(*tables, alpha), mine_limits.lower_limit(*tables, alpha, likelihoods), source.truth


def _too_often(misses: int, draws: int, allowed: float) -> bool:
    """More misses than `allowed` explains, at p = 0.0001 a test."""
    return bool(binomtest(misses, draws, allowed, alternative="greater").pvalue < 1e-4)


@pytest.mark.parametrize(
    ("rows", "draws"),
    [(15, 100), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((15, 400), (60, 200), (600, 60)))],
)
@pytest.mark.parametrize("case", CASES)
def test_the_lower_limit_of_the_best_function_covers(case: str, rows: int, draws: int) -> None:
    """At α = 0.3, which few rows reach as well; the plug-in value is above the truth in about half of the draws."""
    misses = np.zeros(2, int)
    for draw in range(draws):
        by_pairs, by_classes, truth = _limit(case, [draw, rows], rows, 0.3)
        misses += by_pairs > truth, by_classes > truth
    assert not any(_too_often(int(m), draws, 0.3) for m in misses)


def test_the_lower_limit_is_worth_having() -> None:
    """Of 300 held-out rows' more than half of the truth where a side consists of classes, else a third."""
    for case, by_pairs, by_classes in (
        ("two equal classes", 0.3, 0.8), ("a shift of 4", 0.3, 0.6), ("ten equal classes", 0.3, 0.6),
        ("correlation 0.9", 0.3, 0.3),
    ):  # fmt: skip
        first, second, truth = _limit(case, [1], 300, 0.05)
        assert first > by_pairs * truth, case
        assert second > by_classes * truth, case


def test_the_lowest_entropy_is_below_the_entropy() -> None:
    """Of 400 draws of 30 rows at α = 0.2, at most as often above it as that allows."""
    for shares in ((0.5, 0.5), (0.1, 0.9), (0.2, 0.3, 0.5)):
        rng, truth = np.random.default_rng(5), -sum(p * math.log(p) for p in shares)
        limits = np.array(
            [mine_limits.lowest_entropy(rng.multinomial(30, shares), 0.2, len(shares)) for _ in range(400)]
        )
        assert not _too_often(int((limits > truth).sum()), 400, 0.2)
        assert limits.mean() > 0.4 * truth
    assert mine_limits.lowest_entropy(np.array([30]), 0.2, 1) == 0.0


def test_the_sampling_error_is_the_standard_deviation_or_a_little_more() -> None:
    """Of 1,000 plug-in values, where the first order vanishes (two equal classes) as elsewhere."""
    for case in ("two equal classes", "a shift of 1"):
        source, values, squares = CASES[case](), [], []
        for draw in range(1000):
            table = source.table(*source.rows(np.random.default_rng([draw, 7]), 40))
            values.append(mine_limits.plug_in(table))
            squares.append(mine_limits.sampling_error(table) ** 2)
        assert 0.9 < math.sqrt(np.mean(squares)) / np.std(values) < 1.7, case


def _coin_told_twice(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    coin = rng.integers(0, 2, n)
    return coin, coin.copy(), math.log(2)


def _balanced_classes(_: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    return np.arange(n) % 2, np.arange(n) % 2, math.log(2)


def _one_column_of_many(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    source = Shifted(4.0)
    informative, y = source.rows(rng, n)
    x = rng.normal(size=(n, 60))
    x[:, 11] = informative
    return x, y, source.truth


def _nothing(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    return rng.normal(size=(n, 3)), rng.integers(0, 2, n), 0.0


@pytest.mark.parametrize(
    ("rows", "draws"),
    [(200, 5), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((50, 60), (200, 40), (2000, 15)))],
)
@pytest.mark.parametrize("data", [_coin_told_twice, _balanced_classes, _one_column_of_many, _nothing])
def test_the_intervals_of_trained_networks_cover(
    data: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray, float]], rows: int, draws: int
) -> None:
    """95% intervals, and what a class can tell at most."""
    misses, network = 0, leakage.MineNetwork(hidden=16, steps=100)
    for draw in range(draws):
        u, v, truth = data(np.random.default_rng([draw, rows]), rows)
        measured = leakage.mutual_information(u, v, num_classes=2, permutations=0, network=network, seed=draw)
        low, high = measured.interval
        misses += not low <= truth <= high
        assert low >= 0.0
        assert high == pytest.approx(math.log(2))
        assert measured.held_out_interval[0] <= measured.value <= measured.held_out_interval[1] <= high
    assert not _too_often(misses, draws, 0.05)
