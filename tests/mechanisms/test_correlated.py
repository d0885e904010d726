"""Correlated noise: sensitivities by exhaustion, special cases, and certified sampling of balls in bins."""

import itertools
import math

import numpy as np
import pytest

from leakcore import accounting, bounds, mechanisms
from leakcore.mechanisms.correlated import sensitivity

DELTA = 1e-5


def _by_exhaustion(matrix, separation, most):
    """max over π of the largest ‖Σ ±c_t‖: gradients may point either way."""
    steps = matrix.shape[1]
    best = 0.0
    for size in range(1, most + 1):
        for chosen in itertools.combinations(range(steps), size):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                for signs in itertools.product((1.0, -1.0), repeat=size - 1):
                    best = max(best, float(np.linalg.norm(matrix[:, chosen] @ np.array([1.0, *signs]))))
    return best


@pytest.mark.parametrize("separation", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(7),
        mechanisms.square_root(7),
        mechanisms.square_root(7, bands=2),
        mechanisms.blt([0.4, 0.2], [0.9, 0.5], 7),
        mechanisms.tree(7),
        np.tril(np.random.default_rng(3).standard_normal((7, 7))),
        np.tril(np.random.default_rng(4).random((7, 7))),
    ],
    ids=["identity", "square root", "banded", "blt", "tree", "random", "positive"],
)
def test_sensitivity_by_exhaustion(matrix, separation, most):
    low, high = sensitivity(matrix, mechanisms.MinSeparation(separation, most))
    wanted = _by_exhaustion(matrix, separation, most)
    assert low <= wanted * (1.0 + 1e-12)
    assert wanted <= high
    assert high <= math.sqrt(most) * wanted * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("matrix", "separation"),
    [
        (mechanisms.square_root(8), 2),
        (mechanisms.square_root(8, bands=3), 3),
        (mechanisms.blt([0.4], [0.8], 8), 3),
        (np.eye(8), 1),
    ],
)
def test_sensitivity_exact(matrix, separation):
    low, high = sensitivity(matrix, mechanisms.MinSeparation(separation, 3))
    assert high == pytest.approx(low, rel=1e-9) == pytest.approx(_by_exhaustion(matrix, separation, 3), rel=1e-9)


def test_one_participation():
    training = mechanisms.CorrelatedNoise(np.eye(50), 1.0, mechanisms.MinSeparation(50, 1))
    wanted = accounting.epsilon(mechanisms.FullBatch(1.0, 1), delta=DELTA).value
    assert accounting.epsilon(training, delta=DELTA).value == pytest.approx(wanted, rel=1e-9)


def test_cyclic_poisson_one_band():
    training = mechanisms.CorrelatedNoise(np.eye(100), 1.0, mechanisms.CyclicPoisson(0.01))
    wanted = accounting.epsilon(1.0, 0.01, 100, delta=DELTA).value
    assert accounting.epsilon(training, delta=DELTA).value == pytest.approx(wanted, rel=1e-9)


def test_cyclic_poisson_bands():
    matrix = mechanisms.square_root(100, bands=5)
    training = mechanisms.CorrelatedNoise(matrix, 3.0, mechanisms.CyclicPoisson(0.01))
    longest = np.linalg.norm(matrix, axis=0).max()
    wanted = accounting.epsilon(3.0 / longest, 0.05, 20, delta=DELTA).value
    assert accounting.epsilon(training, delta=DELTA).value == pytest.approx(wanted, rel=1e-9)


@pytest.mark.full
def test_balls_in_bins_identity():
    training = mechanisms.CorrelatedNoise(np.eye(40), 1.5, mechanisms.BallsInBins(10))
    allocation = mechanisms.RandomAllocation(1.5, 10, 4, fixed=True)
    assert accounting.epsilon(training, delta=DELTA).value == accounting.epsilon(allocation, delta=DELTA).value
    kappa = [0.01, 0.1, 0.5]
    exact = bounds.reconstruction(allocation, kappa=kappa)
    sampled = bounds.reconstruction_of(training, kappa=kappa, num_samples=200_000, seed=3)
    assert (exact.interval[0] <= sampled.interval[1]).all()
    assert (sampled.interval[0] <= exact.interval[1]).all()


@pytest.mark.full
def test_balls_in_bins_sampler():
    matrix = mechanisms.square_root(60, bands=4)
    training = mechanisms.CorrelatedNoise(matrix, 4.0, mechanisms.BallsInBins(20))
    known = bounds.reconstruction(training, kappa=0.1)
    sampled = bounds.reconstruction_of(training, kappa=0.1, num_samples=200_000, seed=3)
    assert sampled.value < known.value
    # The pair itself, drawn by NumPy: means m_j, one mixture.
    means = matrix.reshape(60, 3, 20).sum(axis=1)
    rng = np.random.default_rng(6)
    bins = rng.integers(20, size=100_000)
    x = means[:, bins].T + 4.0 * rng.standard_normal((100_000, 60))
    exponents = (x @ means - 0.5 * (means**2).sum(axis=0)) / 16.0
    ratio = np.logaddexp.reduce(exponents, axis=1) - math.log(20)
    ours = training.sample_log_ratio(100_000, "alternative", 1, 0)
    error = math.sqrt((ratio.var() + ours.var()) / 100_000)
    assert abs(ratio.mean() - ours.mean()) < 5.0 * error  # p below 1e-6
    assert ours.std() == pytest.approx(ratio.std(), rel=0.03)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mechanisms.CorrelatedNoise(np.eye(3)[0], 1.0, mechanisms.MinSeparation(1, 1)),
            "`matrix` must have two",
        ),
        (lambda: mechanisms.CorrelatedNoise(np.eye(4), 1.0, mechanisms.BallsInBins(3)), "batches that divide 4 steps"),
        (lambda: mechanisms.CorrelatedNoise(-np.eye(4), 1.0, mechanisms.BallsInBins(2)), "negative entries"),
        (
            lambda: mechanisms.CorrelatedNoise(mechanisms.square_root(8, bands=4), 1.0, mechanisms.CyclicPoisson(0.3)),
            "sample_rate at most 1/4",
        ),
        (lambda: mechanisms.toeplitz([0.0, 1.0], 3), "first entry is positive"),
        (lambda: mechanisms.blt([1.0], [1.0], 3), "decays"),
        (lambda: mechanisms.blt([1e308, 1e308], [0.5, 0.5], 3), "scales"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
