"""Limits from lattices: none is trivial where another direction, a smaller ε or a Gaussian pair knows better.

Every step law and every mechanism that is accounted for by a lattice is a member. The grids of ε and δ go far beyond
what a float can hold of one step's probabilities.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import leakcore.mechanisms as mechanisms_room
from leakcore import accounting, bounds, mechanisms
from leakcore.numerics import (
    AllocationStep,
    AtomLaw,
    FixedBatchStep,
    ReplacementStep,
    SampledStep,
    ShuffledLowerStep,
    StepGroup,
    gaussian_pair,
    moments,
)
from leakcore.numerics.lattice import StepLaw

DIRECTIONS = ("remove", "add")
EPSILONS = (-30.0, -1.0, 0.0, 2.0, 4.0, 20.0, 60.0, 1e3, 1e4)
UNDERFLOW = -720.0
"""log δ below which no digits are promised, and no order of them: a float holds no such δ."""
ATOMS = np.log(np.array([0.5, 0.3, 0.2])), np.log(np.array([0.2, 0.3, 0.5]))
FAST = {
    "one of ten": (mechanisms.RandomAllocation(1.0, 10, 1), "add-remove"),
    "k with a remainder": (mechanisms.RandomAllocation(2.0, 10, 1, k=6), "add-remove"),
    "little noise": (mechanisms.RandomAllocation(0.06, 30, 1), "zero-out"),
    "balls in bins, correlated": (
        mechanisms.CorrelatedNoise(mechanisms.square_root(6), 3.0, mechanisms.BallsInBins(3)),
        "add-remove",
    ),
    "fixed size": (mechanisms.FixedSize(1.0, 10, 1000, 100), "replace"),
    "fixed size, rare": (mechanisms.FixedSize(50.0, 1, 1_000_000, 10_000), "replace"),
    "Poisson, replaced": (mechanisms.Poisson(1.0, 0.01, 100), "replace"),
    "with a claim": (mechanisms.FixedSize(1.0, 10, 1000, 10) @ mechanisms.ApproximateDP(1.0, 1e-9), "replace"),
    "with a Gaussian": (mechanisms.FixedSize(1.0, 10, 1000, 10) @ mechanisms.GDP(0.5), "replace"),
}
SLOW = {
    "balls in bins": (mechanisms.CorrelatedNoise(np.eye(6), 3.0, mechanisms.BallsInBins(3)), "add-remove"),
    "loud noise": (mechanisms.RandomAllocation(5.0, 100, 1), "add-remove"),
    "shuffled": (mechanisms.Shuffled(1.0, 10, 2), "zero-out"),
    "many batches": (mechanisms.RandomAllocation(1.0, 1000, 10), "add-remove"),
    "low noise": (mechanisms.RandomAllocation(0.3, 10, 1), "add-remove"),
    "many epochs": (mechanisms.RandomAllocation(100.0, 10_000, 1000), "add-remove"),
    "several of many": (mechanisms.RandomAllocation(1.0, 100, 3, k=30), "add-remove"),
    "allocation with Poisson": (
        mechanisms.RandomAllocation(1.0, 10, 1) @ mechanisms.Poisson(1.0, 0.01, 100),
        "add-remove",
    ),
    "allocation with a claim": (
        mechanisms.RandomAllocation(1.0, 10, 1) @ mechanisms.ApproximateDP(1.0, 1e-6),
        "add-remove",
    ),
    "schedule, replaced": (mechanisms.Poisson(np.linspace(0.6, 3.0, 40), 0.01, 40), "replace"),
    "more batches than a grid has": (mechanisms.RandomAllocation(1.0, 1_000_000, 1), "add-remove"),
}
DEFAULT = ("balls in bins, correlated",)
"""What the default tier asks; the others take seconds each."""
ALL = [
    pytest.param(*pair, id=name, marks=() if name in DEFAULT else pytest.mark.slow)
    for name, pair in (FAST | SLOW).items()
]
BY_FORMULA = {"ApproximateDP", "Composition", "FullBatch", "GDP", "Mechanism", "ZCDP"}
"""Mechanisms without a lattice of their own: claims, Gaussians, and what is made from others."""


def step_laws():
    """One of each step law, with moments that are proved; of the lower limit alone none are."""
    return {
        AllocationStep: [AllocationStep(1.0, 10), AllocationStep(0.4, 3), AllocationStep(6.0, 50)],
        AtomLaw: [AtomLaw.of(*ATOMS)],
        FixedBatchStep: [FixedBatchStep(1.0, 0.01), FixedBatchStep(0.3, 0.4), FixedBatchStep(2.0, 1.0)],
        ReplacementStep: [ReplacementStep(1.0, 0.01), ReplacementStep(0.3, 0.4), ReplacementStep(2.0, 1.0)],
        SampledStep: [
            SampledStep(StepGroup(1.0, 0.01, 1)),
            SampledStep(StepGroup(0.3, 0.4, 1)),
            SampledStep(StepGroup(2.0, 1.0, 1)),
        ],
        ShuffledLowerStep: [ShuffledLowerStep(1.0, 10)],
    }


def test_step_laws_listed():
    from leakcore import numerics

    public = [getattr(numerics, name) for name in numerics._names - set(numerics.__all__)]
    laws = {one for one in public if isinstance(one, type) and hasattr(one, "loss_range") and one is not StepLaw}
    assert laws == set(step_laws())


def test_lattice_mechanisms_listed():
    public = {
        name
        for name in mechanisms_room.__all__
        if isinstance(one := getattr(mechanisms_room, name), type) and issubclass(one, mechanisms.Mechanism)
    }
    listed = {type(one).__name__ for one, _ in (FAST | SLOW).values()}
    assert public == listed | BY_FORMULA


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("law", [law for laws in step_laws().values() for law in laws], ids=str)
def test_moments_above_cells(law, remove):
    # Who sees the cell of the loss alone has smaller moments of every order, and with fine cells nearly the same ones.
    if isinstance(law, AllocationStep):
        atoms = law._pair(12.0).atoms(remove, False)
        log_nu, losses = atoms.log_nu, atoms.losses
    elif isinstance(law, SampledStep):
        edges = np.concatenate(([-np.inf], np.linspace(-12.0, 12.0 + 1.0 / law.group.sigma, 40_001), [np.inf]))
        from leakcore.numerics.arithmetic import log_normal_masses

        log_nu, hit = log_normal_masses(edges), log_normal_masses(edges - 1.0 / law.group.sigma)
        with np.errstate(divide="ignore"):
            losses = np.logaddexp(np.log1p(-law.group.rate), math.log(law.group.rate) + hit - log_nu)
    else:
        low, high = law.loss_range(12.0)
        edges = np.concatenate(([-np.inf], np.linspace(low, high, 40_001), [np.inf]))
        log_nu, log_mu = law.log_masses(edges)
        used = (log_nu > -np.inf) & (log_mu > -np.inf)
        log_nu, losses = log_nu[used], log_mu[used] - log_nu[used]
    powers = np.array([1e-3, 0.1, 0.7, 1.0, 1.7, 3.0, 8.0, 20.0])
    proved = law.log_moments(powers, remove)
    for power, most in zip(powers, proved, strict=True):
        least = float(np.logaddexp.reduce(log_nu + (power + 1.0 if remove else -power) * losses))
        assert least <= most + 1e-9
        if isinstance(law, AtomLaw):
            assert most <= least + 1e-12
    assert np.isinf(proved).all() == isinstance(law, ShuffledLowerStep)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("mechanism", "relation"), ALL)
def test_delta_monotone_not_trivial(mechanism, relation, direction):
    curve, separation = mechanism.curve(relation), mechanism.separation(relation)
    before = 0.0
    for epsilon in EPSILONS:
        low, high = curve.log_delta(epsilon, direction)
        assert low <= high
        assert high <= max(before + 1e-5 * (1.0 + abs(before)), UNDERFLOW)
        gaussian = gaussian_pair.log_profile_limits(epsilon, separation)[1]
        assert high <= gaussian + 1e-9 * (1.0 + abs(gaussian))
        if epsilon < 0.0:
            assert low >= math.log(-math.expm1(epsilon)) - 1e-12
        before = min(before, high)
    if math.isfinite(separation):
        assert before < -700.0
    else:  # infinite losses have 1e-9 or 1e-6 of the mass
        assert before == pytest.approx(math.log(mechanism.parts[1].delta), abs=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(("mechanism", "relation"), ALL)
def test_far_out(mechanism, relation):
    values = [accounting.delta(mechanism, epsilon=e, adjacency=relation).log_value for e in (3.0, 4.0, 500.0)]
    assert all(later <= max(earlier + 1e-5, UNDERFLOW) for earlier, later in itertools.pairwise(values))
    needed = []
    for delta in (1e-5, 1e-300):
        spent = accounting.epsilon(mechanism, delta=delta, adjacency=relation)
        needed.append(spent.value)
        assert spent.interval[0] <= spent.value
        if math.isfinite(mechanism.separation(relation)):
            assert spent.value <= accounting.epsilon(mechanisms.GDP(mechanism.separation(relation)), delta=delta).value
    assert needed == sorted(needed)


@pytest.mark.full
@pytest.mark.parametrize(("mechanism", "relation"), [one for one in ALL if one.values[0].adjacency == one.values[1]])
def test_blow_up_not_trivial(mechanism, relation):
    kappa = np.array([1e-250, 1e-5, 0.3])
    bound = bounds.membership(mechanism, fpr=kappa)
    log_rate, separation = np.log(bound.value), mechanism.separation(relation)
    assert (np.diff(log_rate) >= -1e-9).all()
    assert (log_rate >= np.log(kappa) - 1e-9).all()
    if math.isfinite(separation):
        assert (log_rate <= gaussian_pair.log_blow_up(np.log(kappa), separation) + 1e-9).all()
    assert bound.max_advantage < 1.0 or separation > 8.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one of ten", "k with a remainder", "fixed size", "Poisson, replaced"])
def test_tight_limits(name):
    mechanism, relation = FAST[name]
    for direction in DIRECTIONS:
        for epsilon in (0.5, 4.0):
            low, high = mechanism.curve(relation).log_delta(epsilon, direction)
            if name != "k with a remainder":  # of it nothing is known from below
                assert high - low < 1e-3
            assert moments.log_delta_above(mechanism.dominating_laws(relation).upper, epsilon, direction) >= high - 1e-9


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sigma=st.floats(math.log(0.05), math.log(100.0)),
    rate=st.floats(math.log(1e-7), 0.0),
    steps=st.integers(1, 1_000_000),
    places=st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 2.0)),
    log_delta=st.floats(-690.0, -1.0),
    fixed=st.booleans(),
)
def test_replaced_steps(sigma, rate, steps, places, log_delta, fixed):
    if fixed:
        size = max(int(1e7 * math.exp(rate)), 1)
        mechanism = mechanisms.FixedSize(math.exp(sigma), size, 10_000_000, steps)
    else:
        mechanism = mechanisms.Poisson(math.exp(sigma), math.exp(rate), steps)
    curve, separation = mechanism.curve("replace"), mechanism.separation("replace")
    near = gaussian_pair.epsilon_limits(log_delta, separation)[1]
    before = 0.0
    for epsilon in sorted(place * near for place in places):
        high = max(curve.log_delta(epsilon, direction)[1] for direction in DIRECTIONS)
        assert high <= gaussian_pair.log_profile_limits(epsilon, separation)[1] + 1e-9 * (1.0 + abs(high))
        assert high <= max(before + 1e-4, UNDERFLOW)
        before = min(before, high)
    for direction in DIRECTIONS:
        low, high = curve.epsilon(log_delta, direction)
        assert low <= high <= near + 1e-9 * (1.0 + abs(near))
