"""A claimed mechanism as family of scores: its curve, the law of the rank scores, coverage and power."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from leakcore import accounting, bounds, mechanisms
from leakcore.bounds.audited_epsilon.families import ScaledMechanism, largest_refuted
from leakcore.bounds.audited_epsilon.ranks import RankScores

DELTA = 1e-5
SUBSAMPLED = mechanisms.Poisson(0.7, 0.3, 2)
SIMULTANEOUS = bounds.SimultaneousThreshold()


def prove(inside: np.ndarray, outside: np.ndarray, family: mechanisms.Mechanism, confidence: float = 0.95):
    return bounds.epsilon_lower_bound_from_scores(
        inside,
        outside,
        adjacency="add-remove",
        threshold=SIMULTANEOUS,
        confidence=confidence,
        delta=DELTA,
        hypothesis=bounds.Hypothesis(family),
    )


def ordered(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    return np.argsort(-np.concatenate([inside, outside]), kind="stable") < len(inside)


def test_approximate_curve() -> None:
    p = np.concatenate([[0.0, 1.0], 10.0 ** -np.linspace(0.0, 9.0, 400), np.linspace(0.0, 1.0, 999)])
    for scale in (0.5, 1.0, 3.0):
        roc = ScaledMechanism(mechanisms.FullBatch(2.0, 4), "add-remove", DELTA).roc(scale)
        exact = special.ndtr(scale + special.ndtri(p))
        assert (roc(p) >= exact).all()
        assert (roc(p) - exact)[p > 1e-7].max() < 6e-3


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("mechanism", [SUBSAMPLED, mechanisms.FullBatch(2.0, 4), mechanisms.ApproximateDP(1.0, 0.01)])
def test_simulated_law_of_rank_scores(mechanism: mechanisms.Mechanism) -> None:
    # 2,000 audits with 60 and 90 scores: how often the sum reaches five levels, against the limit of the simulation.
    # Each count is binomial; p-value 1e-5 for each of 15 comparisons that the limit is too small.
    roc = ScaledMechanism(mechanism, "add-remove", DELTA).roc(1.0)
    inside = mechanism.sample_log_ratio(2000 * 60, "alternative", 5, 0).reshape(2000, 60)
    outside = mechanism.sample_log_ratio(2000 * 90, "null", 5, 0).reshape(2000, 90)
    rng = np.random.default_rng(6)
    broken = 1e-9 * rng.random((2000, 150))  # equal scores in random order
    tests = [
        RankScores(ordered(a + b[:60], c + b[60:]), roc, 0) for a, b, c in zip(inside, broken, outside, strict=True)
    ]
    sums = np.array([test._sum for test in tests])
    order = np.argsort(sums)
    for at in (200, 1000, 1500, 1900, 1980):
        test = tests[order[at]]
        chance, hits = test.chance(roc), int((sums >= test._sum).sum())
        assert stats.binom.sf(hits - 1, 2000, chance) > 1e-5
        assert chance < (hits + 6 * np.sqrt(hits)) / 2000 + 0.02


def test_less_leaky_mechanism() -> None:
    # 1,000 audits of noisier runs whose scores were cut to three values: they reach a level less often than the claim's
    # own scores may. The count is binomial; p-value 1e-5.
    noisier = mechanisms.Poisson(0.75, 0.3, 2)
    roc = ScaledMechanism(SUBSAMPLED, "add-remove", DELTA).roc(1.0)
    rng, tests = np.random.default_rng(7), []
    for seed in range(1000):
        scores = [noisier.sample_log_ratio(80, side, seed, 0) for side in ("alternative", "null")]
        cut = [np.digitize(side, [-0.5, 0.5]) + 1e-9 * rng.random(80) for side in scores]
        tests.append(RankScores(ordered(*cut), roc, 0))
    middle = sorted(tests, key=lambda test: test._sum)[900]
    hits = sum(test._sum >= middle._sum for test in tests)
    assert stats.binom.sf(hits - 1, 1000, middle.chance(roc)) > 1e-5


@pytest.mark.full
def test_proof_agrees_with_p_value() -> None:
    claim = mechanisms.FullBatch(1.0, 1)
    rng = np.random.default_rng(3)
    leaky = prove(rng.normal(1.6, size=300), rng.normal(size=300), claim)
    correct = prove(rng.normal(1.0, size=300), rng.normal(size=300), claim)
    spent = accounting.epsilon(claim, delta=DELTA).value
    assert leaky.p_value < 1e-3 < 0.05 < correct.p_value
    assert leaky.value > spent > correct.value > 0
    assert leaky.noise_multiplier < 1 < correct.noise_multiplier
    at = accounting.epsilon(mechanisms.FullBatch(correct.noise_multiplier, 1), delta=DELTA).value
    assert correct.value == pytest.approx(at, rel=1e-9)
    assert f"the mechanism is {claim!r} with some noise multiplier" in correct.assumptions.notes


@pytest.mark.full
@pytest.mark.parametrize(
    ("mechanism", "least"), [(mechanisms.Poisson(1.0, 0.01, 1000), 0.75), (mechanisms.Poisson(1.0, 0.02, 2000), 0.9)]
)
def test_five_thousand_coins(mechanism: mechanisms.Mechanism, least: float) -> None:
    # Means of two audits of 2,500 scores a side; 0.84 and 0.95 on average, deviations of a mean 0.06 and 0.02.
    spent, shares = accounting.epsilon(mechanism, delta=DELTA).value, []
    for seed in range(2):
        scores = [mechanism.sample_log_ratio(2500, side, seed, 0) for side in ("alternative", "null")]
        shares.append(prove(*scores, mechanism).value / spent)
    assert least < np.mean(shares) < 1.1


def test_bare_claims_and_counts() -> None:
    gaussian = bounds.Hypothesis(mechanisms.GDP(2.0))
    counted = bounds.epsilon_lower_bound(
        300, 100, 500, adjacency="replace", confidence=0.95, delta=DELTA, hypothesis=gaussian
    )
    by_mu = bounds.epsilon_lower_bound(
        300, 100, 500, adjacency="replace", confidence=0.95, delta=DELTA, hypothesis=bounds.Hypothesis("gdp")
    )
    assert 0.98 * by_mu.value < counted.value <= by_mu.value
    assert counted.noise_multiplier is None
    rng = np.random.default_rng(4)
    halves = bounds.epsilon_lower_bound_from_scores(
        rng.normal(2.0, size=200), rng.normal(size=200), adjacency="add-remove", delta=DELTA, hypothesis=gaussian
    )
    assert 0 < halves.value < accounting.epsilon(mechanisms.GDP(2.0), delta=DELTA).value
    assert halves.p_value is None


def test_the_largest_scale() -> None:
    assert largest_refuted(lambda scale: False) == 0
    assert largest_refuted(lambda scale: True) == 2.0**10
    assert largest_refuted(lambda scale: scale < 0.3) == pytest.approx(0.3, rel=6e-3)
    assert largest_refuted(lambda scale: scale < 7.7) == pytest.approx(7.7, rel=6e-3)


def test_refusals() -> None:
    for wrong, message in (
        ({"family": mechanisms.ZCDP(1.0)}, "`mechanism` must have a noise_multiplier that can be changed"),
        ({"family": 1}, "`family` must be"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            bounds.Hypothesis(**wrong)
    with pytest.raises(ValueError, match="`direction` must be 'in' where `family` is a mechanism, got 'both'"):
        bounds.Hypothesis(SUBSAMPLED, "both")
    claimed = {"hypothesis": bounds.Hypothesis(SUBSAMPLED), "adjacency": "add-remove"}
    with pytest.raises(ValueError, match=r"`delta` must be in \(0, 1\) with family="):
        bounds.epsilon_lower_bound(3, 1, 5, **claimed)
    with pytest.raises(ValueError, match="`k` must be 1 where `family` is a mechanism, got 2"):
        bounds.epsilon_lower_bound(3, 1, 5, k=2, delta=DELTA, **claimed)
    with pytest.raises(ValueError, match="`adjacency` must be 'add-remove' or 'replace' for GDP"):
        bounds.epsilon_lower_bound(
            3,
            1,
            5,
            adjacency="zero-out",
            delta=DELTA,
            hypothesis=bounds.Hypothesis(mechanisms.GDP(1.0, claimed_under="add-remove")),
        )
