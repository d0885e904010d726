"""Every mechanism's guarantees, for random and extreme parameters: no number without its proof.

A member that is added to `leakcore.mechanisms` is added to `mechanism_members.py`, or the first test fails.
"""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from leakcore import accounting, bounds, mechanisms
from leakcore.numerics import AccuracyError
from tests.conformance import mechanism_members as members
from tests.conformance.mechanism_members import DELTAS, EPSILONS, MEMBERS, REFUSALS, StepPair, none, shifted

RELATIONS = ("add-remove", "zero-out", "replace")
LOOSE = 1.0 + 1e-6
"""What ε and δ may be rounded by: results promise 1e-6."""
TINY = 1e-15
"""δ below which an upper bound may stand for the number itself."""


def _examples(number):
    return settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],  # a smaller example is not worth minutes of numerics
    )


def _asked(call):
    """The result, or None where it is refused by name: the text names an argument or the mechanism."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return call()
    except REFUSALS as refused:
        assert "`" in str(refused) or "(" in str(refused), f"a refusal that names nothing: {refused}"
        return None


def _within(low, value, high):
    assert not math.isnan(low)
    assert not math.isnan(value)
    assert low <= value <= high


def test_every_public_mechanism_is_a_member():
    public = {name for name in mechanisms.__all__ if not name.startswith("_")}
    assert public == set(members.PUBLIC_NAMES) | members.NO_GUARANTEE
    assert set(members.PUBLIC_NAMES.values()) <= set(MEMBERS)
    kinds = {name for name in public if isinstance(getattr(mechanisms, name), type)}
    subclasses = {name for name in kinds if issubclass(getattr(mechanisms, name), mechanisms.Mechanism)}
    assert subclasses - members.NO_GUARANTEE <= set(MEMBERS) | {"CorrelatedNoise"}


def check_one(mechanism, relation, delta, epsilon):
    """ε and δ of one mechanism, each a bracket and the other one's inverse, neither trivial where it need not be."""
    spent = _asked(lambda: accounting.epsilon(mechanism, delta=delta, adjacency=relation))
    lost = _asked(lambda: accounting.delta(mechanism, epsilon=epsilon, adjacency=relation))
    if lost is not None:
        _within(lost.interval[0], lost.value, 1.0)
        assert lost.kind == "upper"
    if spent is None:
        return
    low, high = spent.interval
    assert spent.kind == "upper"
    assert high == spent.value
    _within(0.0, low, high)
    if spent.method == "exact" and high < math.inf:
        assert high - low <= 2e-6 * (1.0 + high)
    # Where the limits are far apart, limits of δ may be further from the truth than limits of ε.
    tight = high - low <= 1e-3 * (1.0 + high)
    if lost is not None:
        if epsilon >= high and delta > TINY:
            assert lost.value <= delta * LOOSE or not tight, "δ at a larger ε is more than a smaller one proves"
            assert lost.interval[0] <= delta * LOOSE
        if epsilon >= high and delta <= 1e-2:
            assert lost.log_value <= _nontrivial(delta), "a trivial δ"
        if epsilon < low * (1.0 - 1e-9) - 1e-12:
            assert lost.value >= delta / LOOSE, "δ at an ε that is disproved for this δ is said to be smaller"
    if 0.0 < high < math.inf:
        back = _asked(lambda: accounting.delta(mechanism, epsilon=high * (1.0 + 1e-9) + 1e-9, adjacency=relation))
        if back is not None and delta <= 1e-2:
            assert back.log_value <= _nontrivial(delta), "a trivial δ"
            if tight and delta >= TINY:
                assert back.value <= delta * (1.0 + 1e-4)
    least = proved(mechanism, relation, delta)
    assert high >= least, f"ε = {high:g} is said to be proved, {least:g} is needed"


def _nontrivial(delta):
    """log of what δ may come out as where it is `delta` at most; below 1e-18 an upper bound is promised, not δ."""
    return max(0.5 * math.log(delta), math.log(TINY))


def proved(mechanism, relation, delta):
    """An ε that is too small for this δ, by Cantelli's inequality or a closed form; −∞ where none is known."""
    pairs = step_pairs(mechanism, relation)
    if pairs is not None and pairs:
        return max(members.proved_epsilon(side, delta) for side in pairs)
    if isinstance(mechanism, mechanisms.Composition):
        return max(proved(part, relation, delta) for part in mechanism.parts)
    if isinstance(mechanism, mechanisms.CorrelatedNoise) and isinstance(
        mechanism.participation, mechanisms.MinSeparation
    ):
        how = mechanism.participation
        mu = members.true_sensitivity(mechanism.matrix, how.separation, how.participations) / mechanism.noise_multiplier
        return -math.inf if mu == 0.0 else float(accounting.epsilon(mechanisms.GDP(mu), delta=delta)) * (1.0 - 1e-9)
    return -math.inf


def step_pairs(mechanism, relation):
    """Each direction's steps with their counts; None where the mechanism is not one of steps."""
    if isinstance(mechanism, mechanisms.Composition):
        parts = [step_pairs(part, relation) for part in mechanism.parts]
        return (
            None
            if any(not part for part in parts)
            else [list(itertools.chain(*side)) for side in zip(*parts, strict=True)]
        )
    if isinstance(mechanism, mechanisms.FullBatch):
        mechanism = mechanisms.Poisson(mechanism.noise_multiplier, 1.0, mechanism.steps)
    if isinstance(mechanism, mechanisms.Poisson):
        sigma, rate = np.broadcast_arrays(mechanism.noise_multiplier, mechanism.sample_rate)
        apart, place = (1.0, none) if relation != "replace" else (1.0, None)
    elif isinstance(mechanism, mechanisms.FixedSize) and mechanism.batch_size < mechanism.dataset_size:
        sigma, rate = np.broadcast_arrays(mechanism.noise_multiplier, mechanism.batch_size / mechanism.dataset_size)
        apart, place = 2.0, none
    else:
        return None
    count = mechanism.steps if sigma.ndim == 0 else 1
    sides = [[], []]
    for s, q in zip(sigma.ravel().tolist(), rate.ravel().tolist(), strict=True):
        if count == 0 or q == 0.0:
            continue
        if q == 1.0 and s > 0.0:  # a Gaussian of any number of steps; the grid need not hold its loss
            mu2 = count * ((2.0 if place is None else 1.0) * apart / s) ** 2
            one = two = (_Gaussian(mu2), 1)
        else:
            p = shifted(s, q, apart)
            other = place or shifted(s, q, -1.0)
            one, two = (StepPair(s, p, other), count), (StepPair(s, other, p), count)
        sides[0].append(one)
        sides[1].append(two)
    return [side for side in sides if side]


class _Gaussian:
    """Two normal laws √mu2 apart."""

    def __init__(self, mu2):
        self.mu2 = mu2

    def moments(self):
        return 0.5 * self.mu2, self.mu2


def _check(mechanism, data):
    if mechanism is None:
        return
    for relation in mechanism.adjacencies:
        check_one(mechanism, relation, data.draw(st.sampled_from(DELTAS)), data.draw(st.sampled_from(EPSILONS)))


LATTICE = {
    "Composition",
    "CorrelatedNoise, BallsInBins",
    "CorrelatedNoise, CyclicPoisson",
    "FixedSize",
    "FixedSize, one step",
    "FixedSize, schedules",
    "Poisson, schedules",
    "RandomAllocation",
    "RandomAllocation, k",
    "Shuffled",
    "from_event",
}
"""Members whose numbers may take a second: fewer examples by default."""


def _slow_where(heavy, values):
    """The values, those that take seconds marked as slow."""
    return [pytest.param(value, marks=pytest.mark.slow) if heavy(value) else value for value in values]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("member", _slow_where(lambda member: member.startswith("RandomAllocation"), sorted(MEMBERS)))
def test_brackets(member):
    @_examples(2 if member in LATTICE else 5)
    @given(MEMBERS[member], st.data())
    def holds(mechanism, data):
        _check(mechanism, data)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("member", sorted(MEMBERS))
def test_many_brackets(member):
    @_examples(60 if member in LATTICE else 200)
    @given(MEMBERS[member], st.data())
    def holds(mechanism, data):
        _check(mechanism, data)

    holds()


HUGE = [10**9, 10**12, 10**15, 10**18, 2**63 - 1]
HUGE_MEMBERS = {
    "Poisson": lambda steps: mechanisms.Poisson(1.0, 1e-5, steps),
    "Poisson, much noise": lambda steps: mechanisms.Poisson(50.0, 1e-4, steps),
    "Poisson, more than half": lambda steps: mechanisms.Poisson(1e5, 0.7, steps),
    "FullBatch": lambda steps: mechanisms.FullBatch(1e8, steps),
    "FixedSize": lambda steps: mechanisms.FixedSize(50.0, 1, 10_000, steps),
    "Shuffled": lambda steps: mechanisms.Shuffled(1e5, 10, steps),
    "RandomAllocation": lambda steps: mechanisms.RandomAllocation(1e5, 10, steps),
    "composed": lambda steps: mechanisms.Poisson(50.0, 1e-4, steps) @ mechanisms.GDP(1.0),
    "composed, with itself": lambda steps: mechanisms.Poisson(9.0, 1e-6, steps) @ mechanisms.FullBatch(1e9, steps),
}


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("steps", _slow_where(lambda steps: steps in (10**12, 10**15), HUGE))
@pytest.mark.parametrize("name", _slow_where(lambda name: name == "RandomAllocation", sorted(HUGE_MEMBERS)))
def test_huge_counts(name, steps):
    mechanism = HUGE_MEMBERS[name](steps)
    for relation in mechanism.adjacencies:
        check_one(mechanism, relation, 1e-5, 1.0)
    # A weaker test of membership than the best one: does L exceed its mean less ten deviations?
    pairs = step_pairs(mechanism, mechanism.adjacency)
    if not pairs:
        return
    moments = [(pair.moments(), count) for pair, count in pairs[0]]
    mean, variance = (sum(one[i] * count for one, count in moments) for i in (0, 1))
    threshold = mean - 10.0 * math.sqrt(variance)
    if threshold > 5.0:  # ν(L > t) ≤ e^{−t}
        reached = _asked(lambda: bounds.membership(mechanism, fpr=max(math.exp(-threshold), 1e-300)))
        assert reached is None or reached.value >= 0.98
        guessed = _asked(lambda: bounds.discrete_prior(mechanism, prior=[0.5, 0.5]))
        assert guessed is None or guessed.value >= 0.98
        rebuilt = _asked(lambda: bounds.reconstruction(mechanism, kappa=0.1))
        assert rebuilt is None or rebuilt.value >= 0.98


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(
    ("rate", "steps"), [(0.1, 10**9), (1e-5, 10**18), (1e-3, 10**12), (0.7, 10**15), (1e-4, 2**62)]
)
def test_noise_for_huge_counts(rate, steps):
    noise = accounting.noise_multiplier(rate, steps, epsilon=1.0, delta=1e-5)
    at = accounting.epsilon(noise.value, rate, steps, delta=1e-5)
    assert at.value <= 1.0 + 1e-9
    # So many steps are a Gaussian pair of separation q·sqrt(T(e^{1/σ²} − 1)), to a few parts in √T.
    wanted = rate * math.sqrt(steps) * accounting.noise_multiplier(1.0, 1, epsilon=1.0, delta=1e-5).value
    assert noise.value == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    "member",
    _slow_where(
        lambda member: member not in ("Poisson", "FullBatch"),
        ["Poisson", "FullBatch", "FixedSize", "Shuffled", "RandomAllocation"],
    ),
)
def test_noise_is_least(member):
    members = {
        "Poisson": mechanisms.Poisson(1.0, 0.03, 500),
        "FullBatch": mechanisms.FullBatch(1.0, 40),
        "FixedSize": mechanisms.FixedSize(1.0, 20, 1000, 60),
        "Shuffled": mechanisms.Shuffled(1.0, 20, 5),
        "RandomAllocation": mechanisms.RandomAllocation(1.0, 20, 5),
    }[member]
    for epsilon, delta in ((0.7, 1e-6), (6.0, 1e-3)):
        noise = accounting.noise_multiplier(members, epsilon=epsilon, delta=delta)
        assert accounting.epsilon(members.with_noise(noise.value), delta=delta).value <= epsilon * LOOSE
        assert accounting.epsilon(members.with_noise(0.99 * noise.value), delta=delta).value > epsilon


LADDERS = {
    "more noise, Poisson": [mechanisms.Poisson(s, 0.01, 1000) for s in (0.05, 1.0, 50.0)],
    "fewer steps, Poisson": [mechanisms.Poisson(1.0, 0.001, t) for t in (10**18, 10**12, 10**6, 1000, 1, 0)],
    "a smaller rate, Poisson": [mechanisms.Poisson(1.0, q, 1000) for q in (1.0, 0.1, 1e-6, 0.0)],
    "more noise, FixedSize": [mechanisms.FixedSize(s, 10, 1000, 50) for s in (0.3, 1.0, 5.0)],
    "fewer steps, FixedSize": [mechanisms.FixedSize(3.0, 10, 1000, t) for t in (10**15, 10**6, 50, 1)],
    "smaller batches, FixedSize": [mechanisms.FixedSize(1.0, b, 1000, 20) for b in (1000, 500, 10, 1)],
    "fewer epochs, Shuffled": [mechanisms.Shuffled(2.0, 10, e) for e in (10**12, 100, 5, 1)],
    "more noise, Shuffled": [mechanisms.Shuffled(s, 10, 2) for s in (0.5, 1.0, 5.0)],
    "fewer epochs, RandomAllocation": [mechanisms.RandomAllocation(3.0, 10, e) for e in (50, 5, 1)],
    "more batches, RandomAllocation": [mechanisms.RandomAllocation(1.0, b, 1) for b in (1, 2, 10, 100)],
    "fewer batches of an epoch": [mechanisms.RandomAllocation(2.0, 6, 1, k=k) for k in (6, 3, 1)],
    "GDP": [mechanisms.GDP(mu) for mu in (100.0, 1.0, 1e-3, 0.0)],
    "ZCDP": [mechanisms.ZCDP(rho) for rho in (1e3, 1.0, 1e-3, 0.0)],
    "a smaller claim": [mechanisms.ApproximateDP(e, d) for e, d in ((9.0, 1e-3), (1.0, 1e-3), (1.0, 0.0), (0.0, 0.0))],
    "fewer participations": [
        mechanisms.CorrelatedNoise(mechanisms.square_root(12), 1.0, mechanisms.MinSeparation(2, k)) for k in (6, 3, 1)
    ],
    "further apart": [
        mechanisms.CorrelatedNoise(mechanisms.tree(12), 1.0, mechanisms.MinSeparation(b, 3)) for b in (1, 3, 9)
    ],
    "fewer parts": [
        mechanisms.GDP(1.0) @ mechanisms.Poisson(1.0, 0.1, 9) @ mechanisms.ZCDP(0.1),
        mechanisms.GDP(1.0) @ mechanisms.Poisson(1.0, 0.1, 9),
        mechanisms.GDP(1.0),
    ],
}


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    "ladder",
    _slow_where(
        lambda name: "Allocation" in name or "Size" in name or "Shuffled" in name or "epoch" in name or "parts" in name,
        sorted(LADDERS),
    ),
)
def test_ladders(ladder):
    """Down a ladder of mechanisms no low end rises above the high end of one that leaks more."""
    for relation in LADDERS[ladder][0].adjacencies:
        values = []
        for mechanism in LADDERS[ladder]:
            if relation in mechanism.adjacencies:
                spent = _asked(lambda: accounting.epsilon(mechanism, delta=1e-5, adjacency=relation))
                lost = _asked(lambda: accounting.delta(mechanism, epsilon=1.0, adjacency=relation))
                values.append((spent, lost))
        for louder, quieter in itertools.pairwise(values):
            for one, two in zip(louder, quieter, strict=True):
                if one is not None and two is not None:
                    assert two.interval[0] <= one.value * LOOSE + 1e-12
                    assert two.value <= one.value * (1.0 + 1e-3) + 1e-9


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("member", _slow_where(lambda member: member in LATTICE, sorted(MEMBERS)))
def test_delta_monotone(member):
    """Nor is it the trivial 1 in one direction where a smaller ε has less."""

    @_examples(3)
    @given(MEMBERS[member])
    def holds(mechanism):
        if mechanism is None:
            return
        for relation in mechanism.adjacencies:
            least = 0.0
            for epsilon in (0.0, 0.3, 2.0, 8.0, 40.0, 700.0, 1e4):
                lost = _asked(lambda: accounting.delta(mechanism, epsilon=epsilon, adjacency=relation))
                if lost is None:
                    continue
                if epsilon:
                    assert lost.log_value <= least + 1e-4, f"at {epsilon}"
                least = min(least, lost.log_value) if epsilon else lost.log_value

    holds()


@pytest.mark.full
@pytest.mark.parametrize(
    "mechanism",
    _slow_where(
        lambda mechanism: not isinstance(mechanism, mechanisms.Poisson),
        [
            mechanisms.RandomAllocation(1.0, 10, 1),
            mechanisms.RandomAllocation(1.0, 10, 2),
            mechanisms.RandomAllocation(1.0, 10, 1, k=4),
            mechanisms.Shuffled(1.0, 10, 2),
            mechanisms.FixedSize(1.0, 10, 1000, 10),
            mechanisms.Poisson(1.0, 0.1, 3),
            mechanisms.Poisson(1.08971, 1e-9, 1),
            mechanisms.CorrelatedNoise(np.eye(10), 1.0, mechanisms.BallsInBins(5)),
            mechanisms.ApproximateDP(1.0, 1e-9) @ mechanisms.GDP(1.0),
            mechanisms.ZCDP(0.5) @ mechanisms.GDP(1.0),
        ],
    ),
    ids=repr,
)
def test_delta_not_trivial(mechanism):
    """The direction that has less to say must not answer (0, 1) where full batches, or a smaller ε, prove more."""
    for relation in mechanism.adjacencies:
        separation = mechanism.separation(relation)
        least = 0.0
        for epsilon in (0.5, 3.5, 4.0, 9.0, 30.0):
            lost = _asked(lambda: accounting.delta(mechanism, epsilon=epsilon, adjacency=relation))
            if lost is None:
                continue
            assert lost.log_value <= least + 1e-4
            least = lost.log_value
            if separation < math.inf:
                most = accounting.delta(mechanisms.GDP(separation), epsilon=epsilon).log_value
                assert lost.log_value <= most + 1e-6 * (1.0 + abs(most))
            for direction in ("remove", "add"):
                try:
                    high = mechanism.loss(direction, adjacency=relation).delta(epsilon)[1]
                except REFUSALS:
                    continue
                assert high <= 1.0
                if lost.log_value < -1e-3:
                    assert high < 1.0, f"{direction} at {epsilon}"


@pytest.mark.parametrize("member", _slow_where(lambda member: member in LATTICE, sorted(MEMBERS)))
def test_relations(member):
    """Zeroing out a row is a replacement; a replacement is a removal and an addition."""

    @_examples(4)
    @given(MEMBERS[member], st.sampled_from([1e-2, 1e-6]))
    def holds(mechanism, delta):
        if mechanism is None or "replace" not in mechanism.adjacencies:
            return
        spent = {
            relation: _asked(lambda: accounting.epsilon(mechanism, delta=delta, adjacency=relation))
            for relation in mechanism.adjacencies
        }
        replaced = spent["replace"]
        for relation in ("add-remove", "zero-out"):
            one = spent.get(relation)
            if one is None or replaced is None:
                continue
            assert replaced.value >= one.interval[0] * (1.0 - 1e-9) - 1e-9
        removed = spent.get("add-remove")
        if removed is not None and replaced is not None and not isinstance(mechanism, mechanisms.Composition):
            twice = accounting.to_replacement(removed)
            if twice.delta < 1.0 and twice.value < math.inf:
                least = _asked(lambda: accounting.epsilon(mechanism, delta=twice.delta, adjacency="replace"))
                assert least is None or least.interval[0] <= twice.value * LOOSE + 1e-9

    holds()


@pytest.mark.full
@_examples(60)
@given(members.matrices(), st.integers(1, 5), st.integers(1, 4))
@example(np.array([[1.0, 5.0], [0.5, 1.0]]), 1, 1)
@example(np.array([[1.0, 0.5, 9.0], [0.5, 1.0, 9.0]]), 2, 2)
def test_sensitivity_any_matrix(matrix, separation, participations):
    how = mechanisms.MinSeparation(separation, participations)
    scale = float(np.abs(matrix).max()) or 1.0
    mechanism = mechanisms.CorrelatedNoise(matrix, scale, how)
    truth = members.true_sensitivity(matrix, separation, participations)
    for relation in mechanism.adjacencies:
        assert mechanism.separation(relation) * scale >= truth * (1.0 - 1e-15)
        spent = accounting.epsilon(mechanism, delta=1e-5, adjacency=relation)
        if truth == 0.0:
            assert spent.value == 0.0
            continue
        wanted = accounting.epsilon(mechanisms.GDP(truth / scale), delta=1e-5).value
        assert spent.value >= wanted * (1.0 - 1e-9)
        if (matrix >= 0.0).all():  # there the patterns' norms are the truth
            assert spent.interval[0] <= wanted * (1.0 + 1e-9)
            if spent.method == "exact":
                assert spent.value == pytest.approx(wanted, rel=1e-6, abs=1e-9)
                assert mechanism.is_exact(relation)


@pytest.mark.full
@_examples(6)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**32), st.floats(0.3, 5.0), st.floats(0.01, 1.0))
def test_cyclic_poisson_groups(steps, bands, seed, noise, share):
    """A row of group g takes part in steps g, g + β, …, whose columns share no row: Poisson steps of its own noise."""
    rng = np.random.default_rng(seed)
    bands = min(bands, steps)
    matrix = np.tril(rng.standard_normal((steps, steps)) * rng.choice([0.1, 1.0, 5.0], steps))
    matrix[np.subtract.outer(np.arange(steps), np.arange(steps)) >= bands] = 0.0
    mechanism = mechanisms.CorrelatedNoise(matrix, noise, mechanisms.CyclicPoisson(share / bands))
    spent = accounting.epsilon(mechanism, delta=1e-4)
    width = mechanism.bands
    reached = []
    for group in range(width):
        norms = np.linalg.norm(matrix[:, group::width], axis=0)
        sigma = noise / norms
        alone = accounting.epsilon(sigma, np.full(len(sigma), share * width / bands), len(sigma), delta=1e-4)
        assert spent.value >= alone.interval[0] * (1.0 - 1e-6)
        reached.append(alone.value)
    assert spent.interval[0] <= max(reached) * LOOSE + 1e-9, "the low end is above every row's own mechanism"
    if spent.method == "exact":
        assert spent.value <= max(reached) * LOOSE + 1e-6


BRUTE = [
    (
        "Poisson, one step",
        mechanisms.Poisson(0.7, 0.2, 1),
        "add-remove",
        StepPair(0.7, shifted(0.7, 0.2, 1.0), none),
        1,
    ),
    ("Poisson, a few", mechanisms.Poisson(1.0, 0.1, 6), "add-remove", StepPair(1.0, shifted(1.0, 0.1, 1.0), none), 6),
    ("Poisson, adding", mechanisms.Poisson(1.0, 0.6, 6), "zero-out", StepPair(1.0, none, shifted(1.0, 0.6, 1.0)), 6),
    (
        "Poisson, replaced",
        mechanisms.Poisson(1.0, 0.1, 4),
        "replace",
        StepPair(1.0, shifted(1.0, 0.1, 1.0), shifted(1.0, 0.1, -1.0)),
        4,
    ),
    ("fixed size", mechanisms.FixedSize(1.0, 100, 1000, 1), "replace", StepPair(1.0, shifted(1.0, 0.1, 2.0), none), 1),
    ("full batches", mechanisms.FullBatch(2.0, 5), "add-remove", StepPair(2.0, shifted(2.0, 1.0, 1.0), none), 5),
    ("one batch", mechanisms.Shuffled(2.0, 1, 4), "zero-out", StepPair(2.0, shifted(2.0, 1.0, 1.0), none), 4),
    (
        "one allocation",
        mechanisms.RandomAllocation(2.0, 1, 4),
        "zero-out",
        StepPair(2.0, shifted(2.0, 1.0, 1.0), none),
        4,
    ),
]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("mechanism", "relation", "pair", "steps"), [row[1:] for row in BRUTE], ids=[r[0] for r in BRUTE]
)
def test_exact_against_brute_force(mechanism, relation, pair, steps):
    assert mechanism.is_exact(relation)
    for epsilon in (0.0, 0.4, 1.5):
        lost = accounting.delta(mechanism, epsilon=epsilon, adjacency=relation)
        most = members.composed_delta(pair, steps, epsilon, 2e-4, up=True)
        least = members.composed_delta(pair, steps, epsilon, 2e-4, up=False)
        assert lost.value >= least * (1.0 - 1e-9) - 1e-12
        if relation == "replace" or pair.q is none:  # the direction that decides
            assert lost.interval[0] <= most * (1.0 + 1e-6) + 1e-12
            assert lost.value <= most * (1.0 + 1e-6) + 1e-12


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.1, 3), (1.0, 0.01, 12), (0.6, 0.3, 2)])
@pytest.mark.parametrize("delta", [1e-5, 1e-2, 0.1])
def test_low_end_against_adaptive_adversary(sigma, rate, steps, delta):
    """FixedSize: before each step the adversary places the other rows' gradients between the two neighbours."""
    mechanism = mechanisms.FixedSize(sigma, int(1000 * rate), 1000, steps)
    spent = accounting.epsilon(mechanism, delta=delta)
    reached = _best_adversary(sigma, rate, steps, delta)
    assert spent.value >= reached - 0.02
    assert spent.interval[0] <= reached + 0.02
    assert not mechanism.is_exact("replace")
    assert spent.method != "exact"
    both = mechanisms.FixedSize(sigma, int(1000 * rate), 1000, 1) @ mechanisms.GDP(0.5)
    assert not both.is_exact("replace")


def _best_adversary(sigma, rate, steps, delta, spacing=4e-3):
    """ε by dynamic programming over the loss so far; rounding is split between neighbouring points."""
    epsilons = np.arange(-15.0, 45.0, spacing)
    x = np.linspace(-11.0 * sigma, 11.0 * sigma + 2.0, 30_001)
    kernels = []
    for place in (0.0, 0.5, 1.0, 1.5, 2.0):
        one, two = (
            (
                (1.0 - rate) * np.exp(-((x - place) ** 2) / (2 * sigma**2))
                + rate * np.exp(-((x - end) ** 2) / (2 * sigma**2))
            )
            * (x[1] - x[0])
            / (sigma * math.sqrt(2.0 * math.pi))
            for end in (2.0, 0.0)
        )
        used = (one > 1e-300) & (two > 1e-300)
        loss = np.log(one[used] / two[used]) / spacing
        low = np.floor(loss).astype(int)
        kernel = np.bincount(low - low.min(), weights=one[used] * (1.0 - (loss - low)), minlength=np.ptp(low) + 2)
        kernel += np.bincount(low - low.min() + 1, weights=one[used] * (loss - low), minlength=np.ptp(low) + 2)
        kernels.append((int(low.min()), kernel))
    value = np.maximum(-np.expm1(np.minimum(epsilons, 0.0)), 0.0)
    for _ in range(steps):
        options = []
        for first, kernel in kernels:
            left = max(0, first + len(kernel))
            before = -np.expm1(epsilons[0] - spacing * np.arange(left, 0, -1))
            padded = np.concatenate([before, value, np.zeros(max(0, -first))])
            options.append(members.signal.fftconvolve(padded, kernel)[left - first :][: len(value)])
        value = np.clip(np.max(options, axis=0), 0.0, 1.0)
    return max(float(epsilons[np.argmax(value <= delta)]), 0.0)


SAMPLERS = {
    "Poisson": (mechanisms.Poisson(0.8, 0.2, 30), "add-remove"),
    "Poisson, schedule": (mechanisms.Poisson([0.6, 1.0, 3.0], [0.9, 0.3, 0.1], 3), "add-remove"),
    "FixedSize": (mechanisms.FixedSize(1.0, 200, 1000, 10), "replace"),
    "Shuffled": (mechanisms.Shuffled(0.7, 5, 2), "zero-out"),
    "RandomAllocation": (mechanisms.RandomAllocation(0.7, 5, 3), "add-remove"),
    "RandomAllocation, fixed": (mechanisms.RandomAllocation(1.0, 5, 3, fixed=True), "add-remove"),
    "RandomAllocation, k": (mechanisms.RandomAllocation(0.8, 6, 1, k=4), "add-remove"),
    "BallsInBins": (
        mechanisms.CorrelatedNoise(mechanisms.square_root(12), 1.0, mechanisms.BallsInBins(4)),
        "add-remove",
    ),
    "CyclicPoisson": (
        mechanisms.CorrelatedNoise(mechanisms.square_root(12, bands=3), 1.0, mechanisms.CyclicPoisson(0.1)),
        "add-remove",
    ),
}


def _losses(mechanism, number, rng):
    """log μ/ν of outputs with the row, from a simulation of the training itself."""
    if isinstance(mechanism, mechanisms.Poisson):
        sigma, rate = np.broadcast_to(mechanism.noise_multiplier, (1, mechanism.steps)), mechanism.sample_rate
        joined = rng.random((number, mechanism.steps)) < rate
        x = joined + sigma * rng.standard_normal((number, mechanism.steps))
        return np.log1p(rate * np.expm1((2.0 * x - 1.0) / (2.0 * sigma**2))).sum(axis=1)
    if isinstance(mechanism, mechanisms.FixedSize):
        rate = mechanism.batch_size / mechanism.dataset_size
        sigma = mechanism.noise_multiplier
        x = 2.0 * (rng.random((number, mechanism.steps)) < rate) + sigma * rng.standard_normal(
            (number, mechanism.steps)
        )
        return np.log1p(rate * np.expm1((4.0 * x - 4.0) / (2.0 * sigma**2))).sum(axis=1)
    if isinstance(mechanism, mechanisms.Shuffled):  # all other rows' gradients are 0
        sigma, b = mechanism.noise_multiplier, mechanism.batches
        total = np.zeros(number)
        for _ in range(mechanism.epochs):
            x = sigma * rng.standard_normal((number, b))
            x[np.arange(number), rng.integers(b, size=number)] += 1.0
            total += np.logaddexp.reduce((x - 0.5) / sigma**2, axis=1) - math.log(b)
        return total
    if isinstance(mechanism, mechanisms.RandomAllocation):
        sigma, b, k = mechanism.noise_multiplier, mechanism.batches, mechanism.k
        total, chosen = np.zeros(number), None
        patterns = np.array([p for p in np.ndindex(*(2,) * b) if sum(p) == k], dtype=float)
        exponents = 0.0
        for _ in range(mechanism.epochs):
            if chosen is None or not mechanism.fixed:
                chosen = rng.integers(len(patterns), size=number)
            x = patterns[chosen] + sigma * rng.standard_normal((number, b))
            here = (x @ patterns.T - 0.5 * k) / sigma**2
            if mechanism.fixed:
                exponents = exponents + here
            else:
                total += np.logaddexp.reduce(here, axis=1) - math.log(len(patterns))
        if mechanism.fixed:
            total = np.logaddexp.reduce(exponents, axis=1) - math.log(len(patterns))
        return total
    matrix, sigma, how = mechanism.matrix, mechanism.noise_multiplier, mechanism.participation
    steps = matrix.shape[1]
    if isinstance(how, mechanisms.BallsInBins):
        means = matrix.reshape(len(matrix), -1, how.batches).sum(axis=1).T
        x = means[rng.integers(how.batches, size=number)] + sigma * rng.standard_normal((number, len(matrix)))
        return np.logaddexp.reduce((x @ means.T - 0.5 * (means**2).sum(axis=1)) / sigma**2, axis=1) - math.log(
            len(means)
        )
    columns = matrix[:, :: mechanism.bands]  # the first group of rows; the columns share no row
    rate = mechanism.bands * how.sample_rate
    joined = rng.random((number, columns.shape[1])) < rate
    x = joined @ columns.T + sigma * rng.standard_normal((number, len(matrix)))
    squares = (columns**2).sum(axis=0)
    assert steps >= columns.shape[1]
    return np.log1p(rate * np.expm1((x @ columns - 0.5 * squares) / sigma**2)).sum(axis=1)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", _slow_where(lambda name: name.startswith(("Random", "Balls", "Shuffled")), sorted(SAMPLERS))
)
def test_simulation(name):
    """δ and ε against a lower limit at 1 − 1e-9 from outputs of the training itself (Hoeffding)."""
    mechanism, relation = SAMPLERS[name]
    number = 60_000
    losses = _losses(mechanism, number, np.random.default_rng(5))
    width = math.sqrt(math.log(1e9) / (2.0 * number))
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        least = float(np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0).mean()) - width
        lost = accounting.delta(mechanism, epsilon=epsilon, adjacency=relation)
        assert lost.value >= least
        if least > 0.0:
            assert accounting.epsilon(mechanism, delta=least, adjacency=relation).value >= epsilon * (1.0 - 1e-9)


@pytest.mark.slow
def test_composition_order():
    parts = [
        mechanisms.Poisson(1.0, 0.1, 5),
        mechanisms.GDP(0.7),
        mechanisms.ApproximateDP(0.5, 1e-7),
        mechanisms.ZCDP(0.05),
        mechanisms.FixedSize(2.0, 10, 100, 3),
    ]
    for one in parts:
        for two in parts:
            both, other = one @ two, two @ one
            for relation in both.adjacencies:
                spent = accounting.epsilon(both, delta=1e-5, adjacency=relation)
                again = accounting.epsilon(other, delta=1e-5, adjacency=relation)
                assert spent.value == pytest.approx(again.value, rel=1e-6)
                for part in (one, two):
                    assert spent.value >= accounting.epsilon(part, delta=1e-5, adjacency=relation).interval[0] * (
                        1 - 1e-9
                    )


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("relation", RELATIONS)
@_examples(40)
@given(members.SIMPLE_EVENTS)
def test_events_under_replacement(relation, event):
    """What an event says under add-remove holds for one row; a replacement moves what it computes twice as far."""
    mechanism = mechanisms.from_event(event)
    spent = _asked(lambda: accounting.epsilon(mechanism, delta=1e-5, adjacency=relation))
    if spent is None:
        return
    kind = type(event).__name__
    apart = 2.0 if relation == "replace" else 1.0
    least = 0.0
    if kind == "GaussianDpEvent":
        least = accounting.epsilon(mechanisms.GDP(apart / event.noise_multiplier), delta=1e-5).interval[0]
    elif kind == "LaplaceDpEvent":  # δ = 1 − e^{(ε − ε₀)/2}, by the law's own integral
        least = apart / event.noise_multiplier + 2.0 * math.log1p(-1e-5)
    elif kind == "DiscreteLaplaceDpEvent":
        tail = 1.0 / (1.0 + math.exp(-event.noise_parameter))  # of the mass on one side of 0, 0 among it
        least = apart * event.noise_parameter * event.sensitivity + math.log1p(-1e-5 / tail)
    elif kind == "ZCDpEvent":  # a Gaussian of this rho has it
        least = accounting.epsilon(mechanisms.GDP(apart * math.sqrt(2.0 * event.rho)), delta=1e-5).interval[0]
    assert spent.value >= least * (1.0 - 1e-9) - 1e-12, kind
    if kind in ("LaplaceDpEvent", "ZCDpEvent"):  # what is known of them is less than all
        assert spent.interval[0] <= max(least, 0.0) * LOOSE + 1e-12
        assert spent.method != "exact"


@pytest.mark.parametrize("thing", ["DP-SGD", object(), len, members.GaussianDpEvent(1.0), mechanisms.GDP, {"sigma": 1}])
@pytest.mark.parametrize(
    "call",
    [
        lambda thing: accounting.epsilon(thing, delta=1e-5),
        lambda thing: accounting.delta(thing, epsilon=1.0),
        lambda thing: accounting.noise_multiplier(thing, epsilon=1.0, delta=1e-5),
        lambda thing: bounds.membership(thing, fpr=0.1),
        lambda thing: bounds.reconstruction(thing, kappa=0.1),
        lambda thing: bounds.discrete_prior(thing, prior=[0.5, 0.5]),
        lambda thing: bounds.calibrate_noise(0.5, kappa=0.1, sample_rate=thing),
    ],
    ids=["epsilon", "delta", "noise_multiplier", "membership", "reconstruction", "discrete_prior", "calibrate_noise"],
)
def test_other_objects(call, thing):
    with pytest.raises(TypeError, match="echanism") as refused:
        call(thing)
    assert type(thing).__name__ in str(refused.value)
    assert "must be passed" not in str(refused.value)


def test_event_hint():
    with pytest.raises(TypeError, match="from_event"):
        accounting.epsilon(members.GaussianDpEvent(1.0), delta=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_thousands_of_nats(noise):
    """A composition leaks at least what its full batches leak alone, also where the tilt of its profile is lost."""
    alone = mechanisms.FullBatch(noise, math.ceil(2500 * noise**2))
    both = mechanisms.Poisson(1.0, 0.01, 100) @ alone
    for epsilon in (0.0, 1e-12, 500.0, 1000.0, 1250.0, 1400.0):
        least, lost = (accounting.delta(x, epsilon=epsilon, adjacency="zero-out") for x in (alone, both))
        assert lost.log_value >= least.log_value - 1e-9 * (1.0 + abs(least.log_value)), epsilon


@pytest.mark.full
def test_certain_losses():
    """ApproximateDP reveals everything with probability δ, however large ε is (69469bf7: 5e-324 for 1e-9)."""
    both = mechanisms.ApproximateDP(1.9, 1e-9) @ mechanisms.ZCDP(0.02)
    for epsilon in (5.0, 60.0):
        for relation in both.adjacencies:
            assert accounting.delta(both, epsilon=epsilon, adjacency=relation).value >= 1e-9
    assert accounting.epsilon(both, delta=1e-10).value == math.inf


def test_accuracy_error_text():
    """What cannot be told is said by name, never as a number."""
    for mechanism in (mechanisms.Poisson(1e-200, 0.5, 3), mechanisms.Poisson(1.0, 0.5, 2**63 - 1)):
        try:
            spent = accounting.epsilon(mechanism, delta=1e-5)
        except AccuracyError as refused:
            assert "Poisson" in str(refused)
        else:
            assert spent.value >= proved(mechanism, "add-remove", 1e-5)


def test_repeated_composition():
    parts = members.GaussianDpEvent(2e3), members.PoissonSampledDpEvent(1e-3, members.GaussianDpEvent(1.0))
    repeated = mechanisms.from_event(members.SelfComposedDpEvent(members.ComposedDpEvent(parts), 100_000))
    one_by_one = mechanisms.FullBatch(2e3, 100_000) @ mechanisms.Poisson(1.0, 1e-3, 100_000)
    for relation in one_by_one.adjacencies:
        spent = accounting.epsilon(repeated, delta=1e-5, adjacency=relation)
        assert spent.value == accounting.epsilon(one_by_one, delta=1e-5, adjacency=relation).value
