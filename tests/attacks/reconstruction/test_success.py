from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from leakcore import attacks


def test_nearest_prior() -> None:
    """Against the paper's procedure, priors drawn one at a time; p = 0.001 per target, Bonferroni; fixed seed."""
    rng = np.random.default_rng(0)
    pool, n, draws = rng.random((40, 3)), 5, 4000
    index = np.array([3, 11, 25, 30])
    guess = pool[index] + rng.normal(scale=[[0.05], [0.15], [0.3], [0.6]], size=(4, 3))
    rate = attacks.nearest_prior(guess, index, pool, num_candidates=n)
    for i, target in enumerate(index):
        others = np.delete(np.arange(40), target)
        hits = 0
        for _ in range(draws):
            prior = np.append(target, rng.choice(others, n - 1, replace=False))
            hits += np.square(pool[prior] - guess[i]).sum(axis=1).argmin() == 0
        assert stats.binomtest(hits, draws, min(1.0, rate.each[i])).pvalue > 0.001 / 4
    assert rate.value == pytest.approx(rate.each.mean())
    assert rate.kind == "estimate"
    assert rate.to_dict()["schema"] == "leakcore.success_rate/1"


def test_nearest_prior_limits() -> None:
    pool = np.arange(10.0)[:, None]
    assert attacks.nearest_prior(pool, np.arange(10), pool, num_candidates=10).value == 1
    assert attacks.nearest_prior([[9.0]], [0], pool, num_candidates=2).value == 0
    # Four of nine others are at least as near as the target.
    assert attacks.nearest_prior([[0.0]], [4], pool, num_candidates=2).value == pytest.approx(5 / 9)
    # Equally far counts against the attack.
    assert attacks.nearest_prior([[0.5]], [0], pool, num_candidates=10).value == 0


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e9])
def test_nearest_prior_rounding(offset: float) -> None:
    """Against distances taken one by one: a far origin, points closer to each other than its rounding, duplicates."""
    rng = np.random.default_rng(2)
    pool = np.concatenate([rng.random((30, 5)), rng.random((10, 5)) * 1e-5, np.zeros((5, 5))]) + offset
    pool = np.concatenate([pool, pool[::7]])
    index = rng.integers(len(pool), size=60)
    guess = pool[index] + rng.normal(scale=1e-3, size=(60, 5)) * rng.integers(2, size=(60, 1))
    nearer = []
    for point, target in zip(guess, index, strict=True):
        distances = np.square(pool - point).sum(axis=1)
        nearer.append((distances <= distances[target]).sum() - 1)
    rest = len(pool) - 1
    expected = [(rest - k) / rest for k in nearer]
    assert attacks.nearest_prior(guess, index, pool, num_candidates=2).each == pytest.approx(expected)


def test_pixels() -> None:
    true, guess = np.zeros((3, 4)), np.array([[0, 0, 0, 0], [0.1, 0.1, 0.2, 0], [1, 1, 1, 0.0]])
    assert attacks.pixels_within(guess, true).tolist() == [1, 0.75, 0.25]
    assert attacks.pixel_success(guess, true, fraction=0.75).each.tolist() == [1, 1, 0]
    assert attacks.pixel_success(guess, true, fraction=1).value == pytest.approx(1 / 3)
    assert attacks.pixels_within([[0.25]], [[0.0]], tolerance=0.25).tolist() == [0], "strictly less"


def test_errors_and_baselines() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random((500, 30)), rng.random((500, 30))
    error = attacks.mean_squared_error(a, b)
    np.testing.assert_allclose(error, ((a - b) ** 2).mean(axis=1), rtol=1e-14)
    assert abs(error.mean() - attacks.UNIFORM_MSE) < 5 * error.std() / 500**0.5
    plain = [min(((a[i] - a[j]) ** 2).mean() for j in range(60) if j != i) for i in range(60)]
    np.testing.assert_allclose(attacks.nearest_neighbour_mse(a[:60]), plain, rtol=1e-12)
    assert attacks.nearest_neighbour_mse(np.ones((2, 3))).tolist() == [0, 0]


def test_interval() -> None:
    """Empirical Bernstein at 90%: misses at most as often as its level in 400 repetitions, p = 0.001; fixed seed."""
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(400):
        values = (rng.random(200) < 0.1).astype(float)
        low, high = attacks.pixel_success(values[:, None], np.ones((200, 1)), fraction=1, confidence=0.9).interval
        missed += not low <= 0.1 <= high
    assert missed <= stats.binom.isf(0.001, 400, 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: attacks.nearest_prior([[1.0]], [0], [[1.0]], num_candidates=2),
            r"`num_candidates` must be at most the 1 rows of pool, got 2",
        ),
        (
            lambda: attacks.nearest_prior([[1.0]], [2], [[1.0], [2]], num_candidates=2),
            r"`target_index` must lie in \[0, 1\], got values in \[2, 2\]",
        ),
        (lambda: attacks.nearest_prior([[1.0]], [0.5], [[1.0], [2]], num_candidates=2), "target_index"),
        (
            lambda: attacks.nearest_prior([[1.0, 2]], [0], [[1.0], [2]], num_candidates=2),
            r"`pool` must have the 2 columns of reconstructions, got shape \(2, 1\)",
        ),
        (
            lambda: attacks.pixels_within([[1.0]], [[1.0, 2]]),
            r"`originals` must have the shape of `reconstructions`, \(1, 1\), got \(1, 2\)",
        ),
        (lambda: attacks.pixels_within([[1.0]], [[1.0]], tolerance=0), "`tolerance` must be above 0, got 0"),
        (lambda: attacks.pixel_success([[1.0]], [[1.0]], fraction=2), r"`fraction` must be in \[0, 1\], got 2"),
        (lambda: attacks.nearest_neighbour_mse([[1.0]]), "at least two rows"),
        (lambda: attacks.mean_squared_error([[np.nan]], [[1.0]]), r"`reconstructions\[0, 0\]` must be finite, got nan"),
    ],
)
def test_bad_input(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
