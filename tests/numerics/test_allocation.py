"""Random allocation: against convolutions, closed forms, quadrature, samples and the schemes that bracket it."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from leakcore import accounting
from leakcore.numerics import lattice_profile
from leakcore.numerics.allocation import AllocationPair, AllocationStep, traded
from leakcore.numerics.allocation_levels import LevelPlan, LogNormal, SumLevel
from leakcore.numerics.arithmetic import AccuracyError
from leakcore.numerics.lattice_profile import DominatingLaws, ProfileQuestion

DIRECTIONS = ("remove", "add")


def answers(law, direction, **question):
    return lattice_profile.limits(DominatingLaws((law,), (law,)), ProfileQuestion(**question), direction)


def one_epoch(pair, epsilon, direction, dominating):
    """δ(ε) from the atoms themselves."""
    remove = direction == "remove"
    atoms = pair.atoms(remove, dominating)
    nu, mu = atoms.masses
    lost = math.exp(atoms.log_mu_lost if remove else atoms.log_nu_lost)
    over = atoms.losses - epsilon if remove else -atoms.losses - epsilon
    part = (mu if remove else nu)[over > 0.0]
    return float(part @ -np.expm1(-over[over > 0.0])) + lost


def price(strike, sigma, direction):
    """E(X − c)₊ or E(c − X)₊ for X = exp((x − ½)/σ²), x ~ N(0, σ²), c > 0: Black and Scholes."""
    z = sigma * math.log(strike) + 0.5 / sigma
    if direction == "remove":
        return special.ndtr(1.0 / sigma - z) - strike * special.ndtr(-z)
    return strike * special.ndtr(z) - special.ndtr(z - 1.0 / sigma)


def two_batches(epsilon, sigma, direction):
    """δ(ε) of b = 2 by quadrature over the first coordinate: E_Q[(S/2 − e^ε)₊] or E_Q[(1 − e^ε S/2)₊]."""
    strike = 2.0 * math.exp(epsilon if direction == "remove" else -epsilon)

    def value(z):
        x = math.exp((z - 0.5 / sigma) / sigma)
        left = strike - x
        beyond = 1.0 - left if direction == "remove" else 0.0
        out = price(left, sigma, direction) if left > 0.0 else beyond
        return out * stats.norm.pdf(z)

    edge = sigma * math.log(strike) + 0.5 / sigma
    ends = (-12.0, edge, max(edge, 0.0) + 12.0 + 1.0 / sigma)
    total = sum(
        integrate.quad(value, low, high, epsabs=0.0, epsrel=1e-12, limit=400)[0]
        for low, high in itertools.pairwise(ends)
    )
    return total / 2.0 if direction == "remove" else total * math.exp(epsilon) / 2.0


@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0])
def test_cells(sigma):
    law, spacing, count = LogNormal(sigma, 12.0), 1e-3, 4000
    down, up = law.cells(spacing, count)
    points = spacing * np.arange(count)
    z = float(law.z(spacing * count))
    assert (down >= 0.0).all()
    assert (up >= 0.0).all()
    assert float((down + up).sum()) == pytest.approx(stats.norm.cdf(z), rel=1e-13)
    mean = float(down @ points + up @ (points + spacing))
    assert mean == pytest.approx(stats.norm.cdf(z - 1.0 / sigma), rel=1e-12)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.5), (1.5, 12.0)])
def test_level_convolution(low, high):
    sigma, batches = 1.0, 3
    level = SumLevel(LevelPlan(LogNormal(sigma, 12.0), batches, low, high, -60.0), 1 << 12)
    down, up = level.plan.law.cells(level.spacing, level.outer)

    def ends(first, last):
        split = np.zeros(level.outer + 1)
        split[first:last] += down[first:last]
        split[first + 1 : last + 1] += up[first:last]
        return split

    def whole_cells(first, last):
        return np.where(
            (np.arange(level.outer + 1) >= first) & (np.arange(level.outer + 1) < last), np.append(down + up, 0.0), 0.0
        )

    def rise(law):
        """w³ − a³ without cancellation, and w² and w² − a²."""
        inner, outer = law(0, level.inner), law(level.inner, level.outer)
        whole = inner + outer
        square = np.convolve(whole, whole)
        others = square + np.convolve(whole, inner) + np.convolve(inner, inner)
        return np.convolve(outer, others), square, np.convolve(outer, whole + inner)

    split = rise(ends)[0]
    cells, square, square_rise = rise(whole_cells)
    uppers = np.append(up, 0.0)
    is_outer = np.arange(level.outer + 1) >= level.inner
    extra = np.convolve(np.where(is_outer, uppers, 0.0), square) + np.convolve(
        np.where(is_outer, 0.0, uppers), square_rise
    )
    atoms = level.dominating()
    index = np.rint(atoms.ratio * batches / level.spacing).astype(int)
    masses = np.exp(atoms.log_nu)
    wanted = np.append(split, np.zeros(4))[np.minimum(index, len(split))]
    heavy = wanted > 1e-25
    assert heavy.sum() > 0.5 * len(masses)
    assert (masses >= wanted * (1.0 - 1e-9) - 1e-30).all()
    assert masses[heavy] == pytest.approx(wanted[heavy], rel=1e-6)
    below = level.dominated()
    for remove in (True, False):
        ratio = below.ratio if remove else below.most
        ratios = np.arange(len(cells)) * level.spacing / batches
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = ratios + level.spacing * extra / cells
        # Atoms in the order of the sums; the ratios rise by about h/b from one to the next.
        at = np.rint((ratio - 0.5 * level.spacing) * batches / level.spacing).astype(int)
        near = np.clip(at[:, None] + np.arange(-2, 3), 0, len(cells) - 1)
        place = near[np.arange(len(at)), np.argmin(np.abs(ratios[near] - ratio[:, None]), axis=1)]
        heavy = cells[place] > 1e-20
        assert heavy.sum() > 0.5 * len(at)
        assert (np.exp(below.log_nu[heavy]) <= cells[place][heavy] * (1.0 + 1e-9)).all()
        assert np.exp(below.log_nu[heavy]) == pytest.approx(cells[place][heavy], rel=1e-6)
        sign = 1.0 if remove else -1.0
        assert (sign * (ratio - ratios[place])[heavy] <= 1e-12).all()


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "epochs", "delta"), [(1.0, 1, 1e-6), (0.5, 3, 1e-9), (4.0, 20, 1e-4)])
def test_single_batch(sigma, epochs, delta, direction):
    wanted = accounting.epsilon(sigma, 1.0, epochs, delta=delta).value
    low, high = answers(AllocationStep(sigma, 1, epochs), direction, log_delta=math.log(delta))
    assert low <= wanted * (1.0 + 1e-11)
    assert wanted <= high * (1.0 + 1e-11)
    assert high - low < 1e-6 * high


@pytest.mark.full
def test_tiny_delta():
    wanted = accounting.epsilon(1.0, 1.0, 2, delta=1e-60).value
    low, high = answers(AllocationStep(1.0, 1, 2), "remove", log_delta=math.log(1e-60))
    assert low <= wanted <= high
    assert high - low < 1e-5 * high


def test_small_sums():
    low, high = answers(AllocationStep(2.0, 10, 3), "add", log_delta=math.log(1e-40))
    assert low <= high < low * (1.0 + 1e-6)


@pytest.mark.full
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "epsilons"), [(0.4, (2.0, 9.0, 14.0)), (1.0, (0.1, 1.5, 4.0)), (5.0, (0.01, 0.3))])
def test_two_batches_by_quadrature(sigma, epsilons, direction):
    pair = AllocationPair(sigma, 2)
    for epsilon in epsilons:
        wanted = two_batches(epsilon, sigma, direction)
        low, high = (one_epoch(pair, epsilon, direction, dominating) for dominating in (False, True))
        assert low <= wanted * (1.0 + 1e-9)
        assert wanted <= high * (1.0 + 1e-9)
        assert high - low < 3e-6 * high
    from_lattice = answers(AllocationStep(sigma, 2), direction, epsilon=epsilons[-1])
    assert from_lattice[0] <= math.log(wanted) + 1e-9
    assert math.log(wanted) <= from_lattice[1] + 1e-9


@pytest.mark.full
@pytest.mark.parametrize(("sigma", "batches", "epochs"), [(0.6, 20, 3), (1.5, 7, 40)])
def test_epochs_by_samples(sigma, batches, epochs):
    rng = np.random.default_rng(7)
    samples = 40_000
    losses = {}
    for direction in DIRECTIONS:
        total = np.zeros(samples)
        for _ in range(epochs):
            x = sigma * rng.standard_normal((samples, batches))
            if direction == "remove":
                x[np.arange(samples), rng.integers(batches, size=samples)] += 1.0
            total += special.logsumexp((x - 0.5) / sigma**2, axis=1) - math.log(batches)
        losses[direction] = total if direction == "remove" else -total
    for direction, loss in losses.items():
        for epsilon in np.quantile(loss, [0.5, 0.9]):
            excess = np.maximum(-np.expm1(epsilon - loss), 0.0)
            error = 4.0 * excess.std() / math.sqrt(samples)  # p below 1e-4
            low, high = (
                math.exp(end) for end in answers(AllocationStep(sigma, batches, epochs), direction, epsilon=epsilon)
            )
            assert low - error <= excess.mean() <= high + error
            assert high - low < 1e-5 * high


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("sigma", "batches", "epochs", "delta", "width"),
    [
        (1.0, 100, 1000, 1e-10, 1e-6),
        (0.7, 30, 1, 1e-8, 1e-6),
        (10.0, 100, 10, 1e-5, 1e-6),
        (2.0, 10_000, 30, 1e-6, 1e-4),
    ],
)
def test_limits_below_a_partition(sigma, batches, epochs, delta, width, direction):
    low, high = answers(AllocationStep(sigma, batches, epochs), direction, log_delta=math.log(delta))
    assert 0.0 < low <= high
    assert high - low < width * high
    # In a fixed partition the row is seen in each epoch, without amplification.
    assert high < 0.9 * accounting.epsilon(sigma, 1.0, epochs, delta=delta).value


def test_many_quiet_batches():
    low, high = answers(AllocationStep(2.0, 1000, 10), "remove", log_delta=math.log(1e-6))
    poisson = accounting.epsilon(2.0, 1e-3, 10_000, delta=1e-6).value
    assert 0.95 * poisson < low <= high < 1.02 * poisson


def test_traded_points():
    rng = np.random.default_rng(3)
    at = 0.01 * np.arange(-50, 51)
    nu = np.exp(-0.5 * (at / 0.2) ** 2)
    mu = nu * np.exp(at + 0.001 * rng.uniform(-1.0, 1.0, len(at)))
    before = np.abs(np.log(mu / nu) - at).max()
    new_nu, new_mu = nu, mu
    for _ in range(4):
        new_nu, new_mu = traded(new_nu, new_mu, at)
    assert new_nu.sum() == pytest.approx(nu.sum(), rel=1e-14)
    assert new_mu.sum() == pytest.approx(mu.sum(), rel=1e-14)
    assert (new_nu > 0.0).all()
    # The ends have a neighbour on one side only.
    assert np.abs(np.log(new_mu / new_nu) - at)[1:-1].max() < 0.05 * before
    # Who sees the point alone sees less: no profile has grown.
    for gamma in np.exp([-0.3, -0.05, 0.0, 0.1, 0.4]):
        after = np.maximum(new_mu - gamma * new_nu, 0.0).sum()
        assert after <= np.maximum(mu - gamma * nu, 0.0).sum() + 1e-15


def test_out_of_reach():
    with pytest.raises(AccuracyError, match=r"one epoch's loss is out of a float's reach at noise_multiplier=0\.01"):
        AllocationPair(0.01, 10)
    with pytest.raises(AccuracyError, match="more than 131072 batches are too many for a grid, got batches=1000000"):
        AllocationStep(1.0, 1_000_000).loss_range(8.0)
