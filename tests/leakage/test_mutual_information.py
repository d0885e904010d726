"""MINE: its bias on Gaussians, null, classes, many columns, bad input; limits cover, of few rows and many."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binomtest, norm

from leakcore import leakage
from leakcore.leakage import mine_limits
from leakcore.leakage.mutual_information import screen


def _pair(rho, d=1, n=1500, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, d))
    return a, rho * a + math.sqrt(1 - rho**2) * rng.normal(size=(n, d))


@pytest.mark.full
@pytest.mark.parametrize("rho", [0.0, pytest.param(0.5, marks=pytest.mark.slow), 0.9])
def test_bias_in_one_dimension(rho):
    truth = -0.5 * math.log(1 - rho**2)
    measured = leakage.mutual_information(*_pair(rho), permutations=1 if rho == 0.9 else 0)
    assert measured.value == pytest.approx(truth, abs=0.08)
    assert measured.interval[0] - 0.08 < truth < measured.interval[1] + 0.08
    if rho == 0.9:
        assert abs(measured.null_mean) < 0.05
        assert measured.above_null > 0.7
    else:
        assert math.isnan(measured.null_mean)


@pytest.mark.full
def test_five_dimensions():
    truth = -2.5 * math.log(1 - 0.8**2)
    measured = leakage.mutual_information(*_pair(0.8, d=5), permutations=0)
    assert 0.8 * truth < measured.value < 1.05 * truth
    assert measured.rows == 450


@pytest.mark.slow
def test_classes_and_many_columns():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 400)
    x = rng.normal(size=(400, 6, 10)) + 3.0 * y[:, None, None]
    measured = leakage.mutual_information(x, y, seed=3)
    assert 0.5 * math.log(2) < measured.value < 1.1 * math.log(2)
    assert measured.null_mean < 0.1
    again = leakage.mutual_information(x, y, seed=3)
    assert again.value == measured.value
    assert (
        leakage.mutual_information(
            np.zeros((60, 3)), y[:60], network=leakage.MineNetwork(steps=5), permutations=0
        ).value
        < 0.1
    )


def test_bad_input():
    with pytest.raises(
        ValueError, match=r"`first` and `second` must have equally many rows, at least 50, got 49 and 49"
    ):
        leakage.mutual_information(np.zeros((49, 2)), np.zeros((49, 2)))
    with pytest.raises(ValueError, match=r"first.*must be finite"):
        leakage.mutual_information(np.full((60, 2), np.nan), np.zeros((60, 2)))
    with pytest.raises(ValueError, match="`steps` must be at least 1, got 0"):
        leakage.mutual_information(np.zeros((60, 2)), np.zeros((60, 2)), network=leakage.MineNetwork(steps=0))


@pytest.mark.full
def test_many_classes() -> None:
    """Forty classes that 8 columns tell apart: not merged into `components` directions."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 40, 1500)
    u = rng.normal(size=(40, 8))[labels] + 0.1 * rng.normal(size=(1500, 8))
    assert leakage.mutual_information(u, labels, permutations=0).value > 2.6
    coin = rng.integers(0, 2, 200)
    noisy = coin[:, None] + 0.1 * rng.normal(size=(200, 1))
    assert (
        leakage.mutual_information(noisy, coin, permutations=0, network=leakage.MineNetwork(components=1)).value > 0.5
    )


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] > 0).long()
    half = leakage.mutual_information(x.bfloat16(), labels, permutations=0, network=leakage.MineNetwork(steps=20))
    assert (
        half.value
        == leakage.mutual_information(
            x.bfloat16().float(), labels, permutations=0, network=leakage.MineNetwork(steps=20)
        ).value
    )
    with pytest.raises(ValueError, match=r"`first` must not require grad: pass first.detach\(\)"):
        leakage.mutual_information(x.requires_grad_(), labels)


@pytest.mark.full
def test_screening() -> None:
    """A shift of four deviations in one of 500 columns is 0.633 nats; without the screen the answer was 0 [0, 0]."""
    y = np.arange(600) % 2
    x = np.random.default_rng(400).normal(size=(600, 500))
    x[:, 317] += 4 * (y - 0.5)
    measured = leakage.mutual_information(x, y, num_classes=2, permutations=1)
    low, high = measured.interval
    assert 0.3 < low < 0.633 < high == pytest.approx(math.log(2))
    assert measured.held_out_interval[0] < 0.633
    assert measured.null_mean < 0.05


@pytest.mark.parametrize("sign", [1, -1])
def test_screening_by_size(sign: int) -> None:
    """The screen looks at distances from the median, too: the column's mean is the same in both classes."""
    y = np.arange(300) % 2
    x = np.random.default_rng(3).normal(size=(300, 200))
    x[:, 7] *= np.where(y == (sign > 0), 6.0, 0.2)
    at = screen(x, np.eye(2)[y], np.arange(150), 3)
    assert 7 in at
    assert (np.diff(at) > 0).all()


def test_screening_on_training_rows() -> None:
    rng = np.random.default_rng(4)
    x, target = rng.normal(size=(200, 40)), rng.normal(size=(200, 1))
    x[100:, 5] = target[100:, 0]
    assert 5 not in screen(x, target, np.arange(100), 2)
    assert 5 in screen(x, target, np.arange(100, 200), 2)
    constant = screen(np.ones((50, 4)), np.ones((50, 1)), np.arange(50), 2)
    assert constant.tolist() == [0, 1]


def test_no_upper_limit_of_numbers() -> None:
    u, v = _pair(0.0, n=100)
    measured = leakage.mutual_information(u, v, permutations=0, network=leakage.MineNetwork(steps=20))
    assert measured.interval[0] <= 0 < measured.interval[1] == math.inf
    assert measured.to_dict()["interval"][1] == "inf"
    same = leakage.mutual_information(
        np.zeros((60, 3)), np.arange(60) % 3, num_classes=3, network=leakage.MineNetwork(steps=5), permutations=0
    )
    assert same.interval == (same.interval[0], pytest.approx(math.log(3)))


def test_number_of_classes() -> None:
    few = leakage.MineNetwork(hidden=4, steps=5)
    y = np.arange(60) % 3
    assert leakage.mutual_information(y, y, network=few, permutations=0).interval[1] == math.inf
    for stated, high in ((5, 5), ((None, 4), 4), ((3, 7), 3)):
        measured = leakage.mutual_information(y, y, num_classes=stated, network=few, permutations=0)
        assert measured.interval[1] == pytest.approx(math.log(high))
        assert measured.value <= measured.interval[1]
        assert any("stated" in note for note in measured.assumptions.notes)
    assert leakage.mutual_information(y > 1, y, network=few, permutations=0).interval[1] == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="`num_classes` must be at least the 3 classes of `second`, got 2"):
        leakage.mutual_information(np.zeros((60, 2)), y, num_classes=2, network=few)
    with pytest.raises(ValueError, match="`num_classes` is allowed only where a side consists of classes"):
        leakage.mutual_information(np.zeros((60, 2)), np.zeros((60, 2)), num_classes=2, network=few)
    with pytest.raises(ValueError, match="`num_classes` must be one number or a pair"):
        leakage.mutual_information(y, y, num_classes=(1, 2, 3), network=few)


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


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("rows", "draws"),
    [(15, 100), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((15, 400), (60, 200), (600, 60)))],
)
@pytest.mark.parametrize("case", CASES)
def test_coverage_of_the_lower_limit(case: str, rows: int, draws: int) -> None:
    """At α = 0.3, which few rows reach as well; the plug-in value is above the truth in about half of the draws."""
    misses = np.zeros(2, int)
    for draw in range(draws):
        by_pairs, by_classes, truth = _limit(case, [draw, rows], rows, 0.3)
        misses += by_pairs > truth, by_classes > truth
    assert not any(_too_often(int(m), draws, 0.3) for m in misses)


def test_tightness_of_the_lower_limit() -> None:
    """Of 300 held-out rows' more than half of the truth where a side consists of classes, else a third."""
    for case, by_pairs, by_classes in (
        ("two equal classes", 0.3, 0.8), ("a shift of 4", 0.3, 0.6), ("ten equal classes", 0.3, 0.6),
        ("correlation 0.9", 0.3, 0.3),
    ):  # fmt: skip
        first, second, truth = _limit(case, [1], 300, 0.05)
        assert first > by_pairs * truth, case
        assert second > by_classes * truth, case


def test_lowest_entropy() -> None:
    """Of 400 draws of 30 rows at α = 0.2, at most as often above it as that allows."""
    for shares in ((0.5, 0.5), (0.1, 0.9), (0.2, 0.3, 0.5)):
        rng, truth = np.random.default_rng(5), -sum(p * math.log(p) for p in shares)
        limits = np.array(
            [mine_limits.lowest_entropy(rng.multinomial(30, shares), 0.2, len(shares)) for _ in range(400)]
        )
        assert not _too_often(int((limits > truth).sum()), 400, 0.2)
        assert limits.mean() > 0.4 * truth
    assert mine_limits.lowest_entropy(np.array([30]), 0.2, 1) == 0.0


def test_sampling_error() -> None:
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


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("rows", "draws"),
    [(200, 5), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((50, 60), (200, 40), (2000, 15)))],
)
@pytest.mark.parametrize("data", [_coin_told_twice, _balanced_classes, _one_column_of_many, _nothing])
def test_coverage_of_trained_networks(
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
