"""Step laws on the lattice: against closed forms, dp-accounting and exact sums."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from leakcore import accounting, bounds, mechanisms
from leakcore.numerics import PrivacyLoss, lattice_profile
from leakcore.numerics.lattice_profile import DominatingLaws, ProfileQuestion, log_blow_up
from leakcore.numerics.step_laws import AtomLaw, FixedBatchStep, ReplacementStep, ShuffledLowerStep, dominating_laws

DIRECTIONS = ("remove", "add")


def both(law):
    return DominatingLaws((law,), (law,))


def epsilon(law, delta, direction):
    return lattice_profile.limits(both(law), ProfileQuestion(log_delta=math.log(delta)), direction)


def delta(law, epsilon, direction):
    low, high = lattice_profile.limits(both(law), ProfileQuestion(epsilon=epsilon), direction)
    return math.exp(low), math.exp(high)


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "expected"),
    [(1.0, 0.01, 1000, 2.843), (1.0, 0.1, 100, 10.516), (0.6, 0.01, 100, 3.982), (1.0, 0.1, 1, 1.789155)],
)
def test_replacement_reference_values(sigma, rate, steps, expected, direction):
    low, high = epsilon(ReplacementStep(sigma, rate, count=steps), 1e-5, direction)
    assert low <= high <= low * (1.0 + 2e-5)
    assert abs(high - expected) < (1e-3 if steps > 1 else 1e-6)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.4, 0.02), (3.0, 0.7), (1.5, 1.0)])
def test_one_replacement_step(sigma, rate, direction):
    def log_density(x, mean):
        return np.logaddexp(
            math.log(max(1.0 - rate, 1e-300)) + stats.norm.logpdf(x, 0.0, sigma),
            math.log(rate) + stats.norm.logpdf(x, mean, sigma),
        )

    def above(x, mean):
        return (1.0 - rate) * stats.norm.sf(x, 0.0, sigma) + rate * stats.norm.sf(x, mean, sigma)

    for at in (0.05, 0.5, 1.5):
        t = optimize.brentq(lambda x, at=at: log_density(x, 1.0) - log_density(x, -1.0) - at, 0.0, 60.0, xtol=1e-14)
        wanted = above(t, 1.0) - math.exp(at) * above(t, -1.0)
        low, high = delta(ReplacementStep(sigma, rate), at, direction)
        assert low * (1.0 - 1e-9) - 1e-15 <= wanted <= high * (1.0 + 1e-9) + 1e-15
        assert high - low < 1e-6 * (1e-3 + high)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.05, 50), (0.7, 0.2, 10), (2.0, 0.5, 30)])
def test_replacement_against_dp_accounting(sigma, rate, steps):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    dp_accounting = pytest.importorskip("dp_accounting")
    theirs = pld.from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        value_discretization_interval=1e-4,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    ).self_compose(steps)
    low, high = epsilon(ReplacementStep(sigma, rate, count=steps), 1e-6, "remove")
    theirs = theirs.get_epsilon_for_delta(1e-6)
    # Theirs is pessimistic, by a few times the square of its interval in each step.
    assert low - 1e-6 <= theirs <= high + 1e-3 * (1.0 + high)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fixed_batch_of_all_rows(direction):
    wanted = accounting.epsilon(1.0, 1.0, 10, delta=1e-5, adjacency="replace").value
    low, high = epsilon(FixedBatchStep(1.0, 1.0, count=10), 1e-5, direction)
    assert low <= wanted * (1.0 + 1e-9)
    assert wanted <= high * (1.0 + 1e-9)
    assert high - low < 1e-5 * high


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("sigma", "rate", "at"), [(1.0, 0.1, 0.3), (0.5, 0.01, 1.0), (2.0, 0.6, 0.1)])
def test_one_fixed_batch(sigma, rate, at):
    # H_α((1−γ)Q + γP ‖ Q) = γ·H_{1 + (α − 1)/γ}(P ‖ Q): amplification by subsampling, for α ≥ 1.
    inner = 1.0 + math.expm1(at) / rate
    s = 2.0 / sigma
    wanted = rate * (
        stats.norm.cdf(s / 2.0 - math.log(inner) / s) - inner * stats.norm.cdf(-s / 2.0 - math.log(inner) / s)
    )
    for direction in DIRECTIONS:
        low, high = delta(FixedBatchStep(sigma, rate), at, direction)
        assert low * (1.0 - 1e-9) <= wanted <= high * (1.0 + 1e-9)
        assert high - low < 1e-5 * high


@pytest.mark.full
def test_fixed_batches_by_sampling():
    law = FixedBatchStep(1.0, 0.2, count=5)
    kappa = np.array([0.01, 0.1, 0.5])
    low, high = log_blow_up(both(law), np.log(kappa))
    sampled = bounds.reconstruction_of(
        mechanisms.FixedSize(1.0, 2, 10, 5), kappa=kappa, num_samples=200_000, confidence=0.999, seed=3
    )
    assert (np.exp(low) <= sampled.interval[1]).all()
    assert (np.exp(high) >= sampled.interval[0]).all()
    assert (high - low < 1e-5).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_single_shuffled_batch(direction):
    wanted = accounting.epsilon(0.8, 1.0, 3, delta=1e-6).value
    low, high = epsilon(ShuffledLowerStep(0.8, 1, count=3), 1e-6, direction)
    assert low <= wanted * (1.0 + 1e-9)
    assert high - low < 1e-5 * high
    assert abs(low - wanted) < 1e-5 * wanted


def test_shuffled_maximum():
    sigma, batches = 0.7, 6
    law = ShuffledLowerStep(sigma, batches)
    for masses in law.log_masses(np.concatenate(([-np.inf], np.linspace(-3.0, 8.0, 5000), [np.inf]))):
        assert abs(np.exp(masses).sum() - 1.0) < 1e-12
    rng = np.random.default_rng(5)
    wanted = np.zeros((2, 100_000))
    for row, mean in enumerate((1.0, 2.0)):
        noise = sigma * rng.standard_normal((100_000, batches))
        noise[:, 0] += mean
        wanted[row] = noise.max(axis=1)
    threshold = 1.9
    # The power of M > c at its level: a point of the pair's trade-off, to five standard errors (p below 1e-6).
    level, power = (wanted > threshold).mean(axis=1)
    low, high = (np.exp(end[0]) for end in log_blow_up(both(law), np.log(np.array([level]))))
    assert low > power - 5.0 * math.sqrt(power / 1e5) - 5.0 * math.sqrt(level / 1e5) * (power / level)
    assert high >= low


def test_randomised_response():
    once, lost, count = 0.4, 1e-4, 12
    finite = math.log1p(-lost)
    masses = np.array([finite - math.log1p(math.exp(once)), finite + once - math.log1p(math.exp(once))])
    law = AtomLaw.of(masses[::-1], masses, (math.log(lost), math.log(lost)), count=count, anchor=once)
    k = np.arange(count + 1)
    weights = stats.binom.pmf(k, count, 1.0 / (1.0 + math.exp(-once))) * (1.0 - lost) ** count
    for at in (0.3, 1.0, 2.5):
        excess = np.maximum(-np.expm1(at - once * (2 * k - count)), 0.0)
        wanted = 1.0 - (1.0 - lost) ** count + weights @ excess
        for direction in DIRECTIONS:
            low, high = delta(law, at, direction)
            assert low * (1.0 - 1e-9) <= wanted <= high * (1.0 + 1e-9)
            # Two atoms seldom both lie on the lattice, so that the lower limit errs by a few spacings.
            assert high - low < 2e-4 * high


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.01, 1000), (2.0, 0.1, 100), (0.5, 0.1, 10)])
def test_blow_up(sigma, rate, steps):
    kappa = np.array([1e-6, 0.01, 0.1, 0.5, 0.9, 1.0])
    sides = dominating_laws(PrivacyLoss.of_steps(np.array(sigma), np.array(rate), steps))
    low, high = (np.exp(end) for end in log_blow_up(sides, np.log(kappa)))
    exact = bounds.reconstruction(sigma, rate, steps, kappa=kappa).value
    assert (low <= exact * (1.0 + 1e-9)).all()
    assert (exact <= high * (1.0 + 1e-9)).all()
    assert (high - low < 1e-4 * high).all()


@pytest.mark.full
def test_many_different_steps():
    sigma = np.linspace(1.0, 2.0, 60)
    loss = PrivacyLoss.of_steps(sigma, np.full(60, 0.1), 60)
    sides = dominating_laws(loss)
    assert len(sides.upper) < 60
    assert sides.upper != sides.lower
    low, high = lattice_profile.limits(sides, ProfileQuestion(log_delta=math.log(1e-5)), "remove")
    exact = accounting.epsilon(sigma, 0.1, 60, delta=1e-5).value
    assert low < exact < high < 1.1 * low
