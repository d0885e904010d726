"""Random allocation: exact against certified sampling, special cases, neighbours, and what is refused."""

import math

import numpy as np
import pytest

from leakcore import accounting, bounds, mechanisms

DELTA = 1e-5


@pytest.mark.parametrize(
    ("training", "mu"),
    [
        (mechanisms.RandomAllocation(2.0, 1, 3), math.sqrt(3) / 2),
        (mechanisms.RandomAllocation(2.0, 5, 2, k=5), math.sqrt(10) / 2),
        (mechanisms.RandomAllocation(3.0, 4, 9, k=4, fixed=True), math.sqrt(36) / 3),
    ],
)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_all_batches(training, mu, adjacency):
    apart = 2.0 if adjacency == "replace" else 1.0
    wanted = accounting.epsilon(mechanisms.GDP(apart * mu), delta=DELTA).value
    assert accounting.epsilon(training, delta=DELTA, adjacency=adjacency).value == pytest.approx(wanted, rel=1e-9)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("sigma", "batches", "epochs"), [(1.0, 20, 1), (0.7, 10, 3), (2.0, 50, 4)])
def test_exact_against_certified(sigma, batches, epochs):
    training = mechanisms.RandomAllocation(sigma, batches, epochs)
    kappa = [0.01, 0.1, 0.5]
    exact = bounds.reconstruction(training, kappa=kappa)
    # Three κ at 99.9% each.
    sampled = bounds.reconstruction(training, kappa=kappa, method="certified", num_samples=200_000, seed=4)
    assert (exact.interval[0] <= sampled.interval[1]).all()
    assert (sampled.interval[0] <= exact.interval[1]).all()
    assert exact.interval[1] - exact.interval[0] == pytest.approx(0.0, abs=1e-5)


def test_several_batches():
    training = mechanisms.RandomAllocation(1.5, 12, 1, k=3)
    kappa = [0.01, 0.1, 0.5]
    upper = bounds.reconstruction(training, kappa=kappa)
    sampled = bounds.reconstruction_of(training, kappa=kappa, num_samples=200_000, seed=5)
    assert upper.method == "bracket"
    assert (sampled.interval[0] <= upper.value).all()
    # The bound on three allocations to four batches each is not far off.
    assert (upper.value <= 1.25 * sampled.value).all()


def subset_ratio(x, k):
    """e_k of the rows' numbers over how many subsets there are: dP/dQ of k of b batches."""
    sums = np.zeros((k + 1, *x.shape[:-1]))
    sums[0] = 1.0
    for batch in np.moveaxis(x, -1, 0):
        for size in range(k, 0, -1):
            sums[size] += batch * sums[size - 1]
    return sums[k] / math.comb(x.shape[-1], k)


def excess(ratio, epsilon, direction):
    """What Q's mean of is δ(ε)."""
    return np.maximum(ratio - math.exp(epsilon) if direction == "remove" else 1.0 - math.exp(epsilon) * ratio, 0.0)


@pytest.mark.full
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_two_of_three_batches(sigma, direction):
    # The sum over a fine grid in space is the integral to 1e-4: the kink has an error of the spacing's square.
    training = mechanisms.RandomAllocation(sigma, 3, 1, k=2)
    z = np.linspace(-7.0, 7.0 + 2.0 / sigma, 151)
    weights = np.exp(-0.5 * z * z) * (z[1] - z[0]) / math.sqrt(2.0 * math.pi)
    x = np.exp((z - 0.5 / sigma) / sigma)
    ratio = subset_ratio(np.stack(np.meshgrid(x, x, x, indexing="ij"), axis=-1), 2)
    mass = weights[:, None, None] * weights[:, None] * weights
    assert float((mass * ratio).sum()) == pytest.approx(1.0, abs=1e-6)
    for epsilon in (-0.5, 0.0, 0.7, 2.0):
        exact = float((mass * excess(ratio, epsilon, direction)).sum())
        high = training.loss(direction).delta(epsilon)[1]
        assert exact * (1.0 - 1e-3) <= high
        if epsilon == 0.0:  # the cut costs little
            assert high <= 1.3 * exact


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "batches", "k"), [(1.0, 5, 3), (0.8, 7, 2), (2.0, 6, 4)])
def test_k_of_b_batches(sigma, batches, k, direction):
    training = mechanisms.RandomAllocation(sigma, batches, 1, k=k)
    z = np.random.default_rng(11).standard_normal((400_000, batches))
    ratio = subset_ratio(np.exp((z - 0.5 / sigma) / sigma), k)
    for epsilon in (0.0, 1.0):
        sample = excess(ratio, epsilon, direction)
        least = sample.mean() - 5.0 * sample.std() / math.sqrt(len(sample))  # p below 1e-6
        assert least <= training.loss(direction).delta(epsilon)[1]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("sigma", "batches", "k", "epsilon"), [(1.0, 100, 51, 39.41), (2.0, 100, 60, 18.23), (1.0, 10, 6, 10.87)]
)
def test_groups_of_two_sizes(sigma, batches, k, epsilon):
    spent = accounting.epsilon(mechanisms.RandomAllocation(sigma, batches, 1, k=k), delta=DELTA)
    assert spent.value == pytest.approx(epsilon, abs=0.01)
    short, more = divmod(batches, k)
    smaller = mechanisms.RandomAllocation(sigma, short, k - more)
    by_hand = smaller @ mechanisms.RandomAllocation(sigma, short + 1, more)
    assert spent.value == pytest.approx(accounting.epsilon(by_hand, delta=DELTA).value, rel=1e-4)


def test_more_batches_than_a_grid_holds():
    many = mechanisms.RandomAllocation(1.0, 1_000_000, 1)
    assert not many.is_exact("add-remove")
    assert (
        many.dominating_laws("add-remove").upper
        == mechanisms.RandomAllocation(1.0, 131_072, 1).dominating_laws("add-remove").upper
    )
    assert many.dominating_laws("add-remove").lower == ()


@pytest.mark.full
def test_between_poisson_and_shuffling():
    allocated = accounting.epsilon(mechanisms.RandomAllocation(1.0, 100, 1), delta=DELTA)
    poisson = accounting.epsilon(mechanisms.Poisson(1.0, 0.01, 100), delta=DELTA)
    shuffled = accounting.epsilon(mechanisms.Shuffled(1.0, 100, 1), delta=DELTA)
    assert 0.5 * poisson.value < allocated.value < 2.0 * poisson.value
    assert allocated.value < shuffled.interval[0]


@pytest.mark.full
def test_fixed_choice():
    fresh = accounting.epsilon(mechanisms.RandomAllocation(2.0, 20, 4), delta=DELTA).value
    fixed = accounting.epsilon(mechanisms.RandomAllocation(2.0, 20, 4, fixed=True), delta=DELTA).value
    assert fresh < fixed
    once = accounting.epsilon(mechanisms.RandomAllocation(1.0, 20, 1), delta=DELTA).value
    assert fixed == pytest.approx(once, rel=1e-5)


@pytest.mark.slow
def test_replacement():
    training = mechanisms.RandomAllocation(1.0, 20, 1)
    removed = accounting.epsilon(training, delta=DELTA).value
    replaced = accounting.epsilon(training, delta=DELTA, adjacency="replace")
    assert removed <= replaced.value < 3.0 * removed
    assert replaced.method == "bracket"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1.0, 0, 1), "batches"), ((1.0, 4, 0), "epochs"), ((0.0, 4, 1), "noise_multiplier"), ((1.0, 4, 1, 5), "k")],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        mechanisms.RandomAllocation(*arguments)


def test_sample_mean():
    training = mechanisms.RandomAllocation(1.0, 10, 2, k=2)
    # E_ν e^L = 1: at five standard errors p is below 1e-6.
    ratio = np.exp(training.sample_log_ratio(200_000, "null", 1, 0))
    assert abs(ratio.mean() - 1.0) < 5.0 * ratio.std() / math.sqrt(len(ratio))
