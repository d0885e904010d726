"""Tests of pairs of ranks: their probability by other routes, how often they are wrong, ties, and what they gain."""

import math

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds, numerics
from leakcore.bounds.audited_epsilon.families import Hypothesis, RefutableClaim
from leakcore.bounds.audited_epsilon.ranks import _chosen, _Test, allowed

DELTA = 1e-5


def _proof(inside, outside, **how) -> bounds.EpsilonLowerBound:
    return bounds.epsilon_lower_bound_from_scores(inside, outside, adjacency="replace", **how)


@pytest.mark.parametrize("family", ["dp", "gdp"])
@pytest.mark.parametrize(
    ("rank", "above", "n", "m"), [(1, 9, 40, 60), (10, 30, 50, 50), (3, 80, 900, 300), (150, 170, 300, 300)]
)
def test_ranks_without_a_leak(family: str, rank: int, above: int, n: int, m: int) -> None:
    # At least so many likelier scores above the rank-th other one: as many among the first rank + above − 1 of all.
    exact = stats.hypergeom.sf(above - 1, n + m, n, rank + above - 1)
    value = _Test(rank, above, n, m, family, 0.0, 1).probability(0.0)  # type: ignore[arg-type]
    assert exact <= value <= 1.06 * exact


@pytest.mark.parametrize(("rank", "above", "mu"), [(5, 20, 1.0), (40, 60, 0.5), (2, 75, 3.0)])
def test_gaussian_pair(rank: int, above: int, mu: float) -> None:
    # 20,000 draws of N(μ, 1) against N(0, 1), 100 a side; p-value 1e-4, two-sided, for a value that is 6% too high.
    n, draws = 100, 20_000
    rng = np.random.default_rng(rank)
    threshold = np.sort(rng.normal(size=(draws, n)), axis=1)[:, -rank]
    happened = int(((rng.normal(mu, size=(draws, n)) > threshold[:, None]).sum(axis=1) >= above).sum())
    value = _Test(rank, above, n, n, "gdp", DELTA, 1).probability(mu)
    assert stats.binom.ppf(5e-5, draws, value / 1.06) <= happened <= stats.binom.ppf(1 - 5e-5, draws, value)


def test_perfect_scores_in_closed_form() -> None:
    # All n above all m under ε-privacy: at most (e^ε/(1 + e^ε))^(n + m), to the first order in e^-ε.
    n, m, epsilon = 400, 300, 5.0
    value = _Test(1, n, n, m, "dp", 0.0, 1).probability(epsilon)
    assert value == pytest.approx((1 + math.exp(-epsilon)) ** -(n + m), rel=0.05)
    assert value >= (1 + math.exp(-epsilon)) ** -(n + m)


@pytest.mark.parametrize("family", ["dp", "gdp"])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_curve_against_counts(family: str, k: int) -> None:
    claim = RefutableClaim.parse(0.95, DELTA, k, "replace", Hypothesis(family))  # type: ignore[arg-type]
    p = np.array([1e-6, 1e-3, 0.1, 0.4, 0.6, 0.99])
    for parameter in (0.0, 0.3, 1.5):
        most = allowed(p, parameter, claim.family, DELTA, k)
        for low, high in zip(p[most < 1 - 1e-9].tolist(), most[most < 1 - 1e-9].tolist(), strict=True):
            # Event or complement: one of the two is tight, none is violated.
            proved = claim.proved(high, low), claim.proved(1 - low, 1 - high)
            assert max(proved) == pytest.approx(parameter, abs=1e-6)


@pytest.mark.parametrize("family", ["dp", "gdp"])
def test_error_of_rank_events(family: str) -> None:
    for seed, (n, m) in enumerate([(1, 1), (3, 2), (7, 90), (400, 400), (5000, 700)]):
        likelier = np.random.default_rng(seed).permutation(np.arange(n + m) < n)
        total = 0.0
        for share, ranks in _chosen(likelier, family):  # type: ignore[arg-type]
            order = ~likelier[::-1] if ranks.lower else likelier
            before = order[: np.flatnonzero(~order)[ranks.rank - 1]]
            assert before.sum() >= ranks.above >= 1
            total += share
        assert total <= 1 + 1e-12


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("n", "m"), [(60, 200), (100, 100)])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_coverage_with_ties(n: int, m: int, epsilon: float) -> None:
    # All scores are 0 or 1, and ε-privacy is attained. 800 audits at 60%: wrong in at most 40%, p-value 1e-4 for each.
    right, audits = 1 / (1 + math.exp(-epsilon)), 800
    rng = np.random.default_rng(201)
    above = 0
    for seed in range(audits):
        inside, outside = (rng.random(n) < right).astype(float), (rng.random(m) >= right).astype(float)
        proof = _proof(inside, outside, confidence=0.6, threshold=bounds.SimultaneousThreshold(seed=seed))
        above += proof.value > epsilon
    assert above <= stats.binom.ppf(1 - 1e-4, audits, 0.4)
    assert above > 0.1 * audits  # a bound that never exceeded would prove less than it can


def test_power_with_ties() -> None:
    rng = np.random.default_rng(202)
    exact, rounded = [], []
    for seed in range(30):
        inside, outside = rng.normal(2.0, size=500), rng.normal(size=500)
        for out, digits in ((exact, 9), (rounded, 1)):
            proof = _proof(
                inside.round(digits),
                outside.round(digits),
                delta=DELTA,
                hypothesis=Hypothesis("gdp"),
                threshold=bounds.SimultaneousThreshold(seed=seed),
            )
            out.append(float(proof.value))
    assert np.mean(rounded) == pytest.approx(np.mean(exact), rel=0.03)


def test_seed_of_ties() -> None:
    rng = np.random.default_rng(203)
    inside, outside = rng.normal(1.0, size=200), rng.normal(size=150)

    def prove(a: np.ndarray, b: np.ndarray, seed: int, direction: str = "in") -> float:
        threshold, tested = bounds.SimultaneousThreshold(seed=seed), Hypothesis(direction=direction)  # type: ignore[arg-type]
        proof = _proof(a, b, threshold=threshold, hypothesis=tested)
        return float(proof.value)

    assert prove(inside, outside, 0) == prove(inside, outside, 1) == prove(outside, inside, 2, "out") > 0
    coarse = {prove(inside.round(), outside.round(), seed) for seed in range(5)}
    assert len(coarse) > 1
    with pytest.raises(ValueError, match=r"`seed` must be in \[0, 18446744073709551615\], got -1"):
        bounds.SimultaneousThreshold(seed=-1)


@pytest.mark.parametrize(
    ("family", "mu", "wanted"), [("dp", 1.0, 1.6), ("dp", 3.0, 4.3), ("gdp", 1.0, 3.8), ("gdp", 3.0, 15.4)]
)
def test_a_thousand_scores_a_side(family: str, mu: float, wanted: float) -> None:
    # Means of 20 audits; the deviation of a mean is at most 0.04 of ε for "dp" and 0.12 for "gdp".
    rng = np.random.default_rng(204)
    values, splits = [], []
    for seed in range(20):
        scores = rng.normal(mu, size=1000), rng.normal(size=1000)
        for out, threshold in ((values, bounds.SimultaneousThreshold()), (splits, bounds.SplitThreshold(seed=seed))):
            proof = bounds.epsilon_lower_bound_from_scores(
                *scores,
                adjacency="add-remove",
                threshold=threshold,
                confidence=0.95,
                delta=DELTA,
                hypothesis=Hypothesis(family),  # type: ignore[arg-type]
            )
            out.append(float(proof.value))
    truth = float(numerics.gaussian_pair_epsilon(mu, delta=DELTA))
    assert wanted < np.mean(values) < truth
    assert np.mean(splits) < np.mean(values)


def test_leak_in_one_tail() -> None:
    # A twentieth of the scores give their side away, the others say nothing.
    rng = np.random.default_rng(205)
    inside, outside = rng.normal(size=1000), rng.normal(size=1000)
    inside[:50] = 9.0
    upper = _proof(inside, outside, threshold=bounds.SimultaneousThreshold())
    lower = _proof(-outside, -inside, threshold=bounds.SimultaneousThreshold())
    assert upper.proved_by == "event, likelier in"
    assert lower.proved_by == "complement of the event, which is likelier in"
    assert upper.value > lower.value > 0.7
    assert upper.hits[0] >= 5 * upper.hits[1]
    assert lower.threshold is not None
    assert lower.hits == ((-outside >= lower.threshold).sum(), (-inside >= lower.threshold).sum())
