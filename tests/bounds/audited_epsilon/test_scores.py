"""Scores: the threshold, and the best of several audits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds, kernels, numerics

WAYS = ("split", "simultaneous")


def _threshold(select: str, seed: int = 0) -> bounds.Threshold:
    return bounds.SplitThreshold(seed=seed) if select == "split" else bounds.SimultaneousThreshold()


def _proof(inside, outside, **how) -> bounds.EpsilonLowerBound:
    return bounds.epsilon_lower_bound_from_scores(inside, outside, adjacency="replace", **how)


def _null(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=n), rng.normal(size=n)


@pytest.mark.full
@pytest.mark.parametrize("direction", ["in", "both"])
@pytest.mark.parametrize("select", WAYS)
def test_null_audits(select: str, direction: str) -> None:
    # 2,000 audits at 95% of a mechanism that leaks nothing: at most 5% positive, p-value 1e-4 for each case.
    rng = np.random.default_rng(101)
    audits = 2000
    positive, tested = 0, bounds.Hypothesis(direction=direction)
    for i in range(audits):
        inside, outside = _null(40, rng)
        bound = _proof(inside, outside, threshold=_threshold(select, i), hypothesis=tested, confidence=0.95)
        positive += bound.value > 0
    assert positive <= stats.binom.ppf(1 - 1e-4, audits, 0.05)


@pytest.mark.full
def test_negative_control_chosen_threshold() -> None:
    # At 50% confidence, where two limits that overlap hide less: the valid ways keep to half of the audits.
    rng = np.random.default_rng(102)
    audits, level, thresholds = 300, 0.5, np.linspace(-2, 2, 21)
    greedy = honest = 0
    for _ in range(audits):
        inside, outside = _null(60, rng)
        counts = [((inside >= t).sum(), (outside >= t).sum()) for t in thresholds]
        greedy += any(
            bounds.epsilon_lower_bound(int(a), int(b), 60, confidence=level, hypothesis=side, adjacency="replace").value
            > 0
            for a, b in counts
            for side in (bounds.Hypothesis(direction="in"), bounds.Hypothesis(direction="out"))
        )
        bound = _proof(
            inside,
            outside,
            threshold=bounds.SimultaneousThreshold(),
            hypothesis=bounds.Hypothesis(direction="both"),
            confidence=level,
        )
        honest += bound.value > 0
    limit = stats.binom.ppf(1 - 1e-4, audits, 1 - level)
    assert honest <= limit < greedy


@pytest.mark.full
@pytest.mark.parametrize("select", WAYS)
@pytest.mark.parametrize("family", ["dp", "gdp"])
def test_coverage_on_the_gaussian_mechanism(select: str, family: str) -> None:
    # N(μ, 1) against N(0, 1) at μ = 1 and δ = 0.01: ε is exact, and for "gdp" the bound is tight at every threshold.
    mu, delta, audits = 1.0, 0.01, 1000
    truth = float(numerics.gaussian_pair_epsilon(mu, delta=delta))
    rng = np.random.default_rng(103)
    values = []
    for i in range(audits):
        bound = _proof(
            rng.normal(mu, size=100),
            rng.normal(size=100),
            threshold=_threshold(select, i),
            hypothesis=bounds.Hypothesis(family),
            delta=delta,
            confidence=0.9,
        )
        values.append(float(bound.value))
    assert sum(v > truth for v in values) <= stats.binom.ppf(1 - 1e-4, audits, 0.1)
    assert np.median(values) > (0.15 if family == "gdp" else 0.02) * truth


def test_perfect_scores() -> None:
    inside, outside = np.ones(500), np.zeros(500)
    split = _proof(inside, outside)
    every = _proof(inside, outside, threshold=bounds.SimultaneousThreshold())
    assert split.value == pytest.approx(bounds.epsilon_opt(250, confidence=0.99).value)
    # No event's two limits prove more than the middle one; a joint test of both sides does: log(2·500/log(1/error)),
    # at the share 0.45 of the error that the upper tail has.
    assert split.value < bounds.epsilon_opt(500, confidence=0.99).value < every.value
    assert every.value == pytest.approx(math.log(1000 / -math.log(0.45 * 0.01)), abs=0.02)
    assert (split.threshold, every.threshold) == (0.5, 1.0)
    assert (split.hits, split.trials) == ((250, 0), (250, 250))
    assert (every.hits, every.trials) == ((500, 0), (500, 500))


@pytest.mark.parametrize("select", WAYS)
def test_directions(select: str) -> None:
    rng = np.random.default_rng(104)
    low, high = rng.normal(size=300), rng.normal(4.0, size=300)

    def prove(a: np.ndarray, b: np.ndarray, direction: str) -> float:
        tested = bounds.Hypothesis(direction=direction)
        bound = _proof(a, b, threshold=_threshold(select), hypothesis=tested)
        return float(bound.value)

    assert prove(high, low, "in") > 2
    assert prove(low, high, "out") > 2
    assert prove(low, high, "in") == 0
    assert 2 < prove(low, high, "both") <= prove(low, high, "out")


@pytest.mark.parametrize("select", WAYS)
def test_ties_and_unequal_trials(select: str) -> None:
    inside, outside = np.repeat([0.0, 1.0], [10, 90]), np.repeat([0.0, 1.0], [190, 10])
    bound = _proof(inside, outside, threshold=_threshold(select), confidence=0.9)
    assert 0 < bound.value < math.log(0.95 / 0.05)
    assert bound.threshold in (0.0, 0.5, 1.0)
    same = _proof(np.zeros(50), np.zeros(70), threshold=_threshold(select))
    assert same.value == 0


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"`scores_in\[1\]` must be a number, got nan"):
        _proof([0.0, math.nan], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"`scores_out` must hold one score per trial, .*got shape \(1, 2\)"):
        _proof([0.0, 1.0], [[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"`scores_in` must hold more trials, got 1: share=0\.5"):
        _proof([0.0], [0.0, 1.0])
    with pytest.raises(TypeError, match="`threshold` must be of type Threshold, got str"):
        _proof([0.0], [1.0], threshold="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`share` must be in \(0, 1\), got 1.0"):
        bounds.SplitThreshold(share=1.0)
    with pytest.raises(ValueError, match=r"`seed` must be in \[0, 18446744073709551615\], got -1"):
        bounds.SplitThreshold(seed=-1)
    with pytest.raises(ValueError, match=r"`delta` must be in \(0, 1\) with family='gdp'"):
        _proof([0.0], [1.0], hypothesis=bounds.Hypothesis("gdp"))


@pytest.mark.parametrize("digits", [None, 2, 0])
@pytest.mark.parametrize(("inside", "outside"), [(1, 1), (1, 0), (3, 5), (300, 200)])
def test_order_of_equal_scores(digits, inside, outside) -> None:
    rng = np.random.default_rng(2)
    one, two = rng.normal(0.3, size=inside), rng.normal(size=outside)
    if digits is not None:
        one, two = np.round(one, digits), np.round(two, digits)
    one[0] = -np.inf
    threshold = bounds.SimultaneousThreshold(seed=4)
    scores, members = threshold._ordered(one, two)
    both = np.concatenate([one, two])
    order = kernels.generator(4, kernels.Stream.SCORE_TIES).permutation(len(both))
    order = order[np.argsort(-both[order], kind="stable")]
    np.testing.assert_array_equal(scores, both[order])
    np.testing.assert_array_equal(members, order < inside)


BEST_WAYS = ("split", "correction")
PERFECT = {f"k={k}": (np.ones(1000), np.zeros(1000), k) for k in (1, 2, 4, 8)}


def test_cost_of_picking() -> None:
    split = bounds.epsilon_lower_bound_best(PERFECT, adjacency="replace")
    assert split.value == pytest.approx(bounds.epsilon_opt(500, confidence=0.99).value)
    assert round(float(split.value), 4) == 4.5419
    corrected = bounds.epsilon_lower_bound_best(PERFECT, threshold=bounds.SimultaneousThreshold(), adjacency="replace")
    assert round(float(corrected.value), 2) == 5.68
    assert split.chosen == corrected.chosen == "k=1"
    assert split.considered == tuple(PERFECT)
    assert (split.k, split.confidence, corrected.confidence) == (1, 0.99, 0.99)
    # With the threshold fixed: 4.54 becomes 4.31.
    assert round(float(bounds.epsilon_opt(500, confidence=1 - 0.01 / 4).value), 2) == 4.31


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("select", BEST_WAYS)
@pytest.mark.parametrize("family", ["dp", "gdp"])
def test_null_audits_of_several_scores(select: str, family: str) -> None:
    """500 audits at 95%, each the best of four; p-value 1e-4 for each case."""
    rng = np.random.default_rng(8)
    positive = 0
    for i in range(500):
        four = {f"k={k}": (rng.normal(size=40), rng.normal(size=40), k) for k in (1, 2, 4, 8)}
        bound = bounds.epsilon_lower_bound_best(
            four,
            threshold=_threshold(select, i),
            hypothesis=bounds.Hypothesis(family),
            confidence=0.95,
            delta=1e-5 if family == "gdp" else 0.0,
            adjacency="replace",
        )
        positive += bound.value > 0
    assert positive <= stats.binom.ppf(1 - 1e-4, 500, 0.05)


def test_best_of_two() -> None:
    rng = np.random.default_rng(9)
    both = {
        "weak": (rng.normal(0.1, size=400), rng.normal(size=400), 1),
        "strong": (rng.normal(3, size=400), rng.normal(size=400), 1),
    }
    for select in BEST_WAYS:
        bound = bounds.epsilon_lower_bound_best(
            both, threshold=_threshold(select), hypothesis=bounds.Hypothesis("gdp"), delta=1e-5, adjacency="replace"
        )
        assert bound.chosen == "strong"
        assert bound.mu is not None
        assert 1.5 < bound.mu < 3


def test_shared_split_of_trials() -> None:
    """Trials that choose among audits are not counted in any of them: equal audits promise and prove the same."""
    rng = np.random.default_rng(10)
    scores = rng.normal(2, size=100), rng.normal(size=100)
    alone = _proof(*scores, threshold=bounds.SplitThreshold(seed=3))
    many = bounds.epsilon_lower_bound_best(
        {str(i): (*scores, 1) for i in range(20)}, threshold=bounds.SplitThreshold(seed=3), adjacency="replace"
    )
    assert many.chosen == "0"
    assert (many.value, many.threshold) == (alone.value, alone.threshold)


def test_split_of_trials_with_shared_randomness() -> None:
    """Pairs whose two scores differ by half a pair's noise: what is counted is still 60 trials that did not choose."""
    rng = np.random.default_rng(11)
    positive, tested = 0, bounds.Hypothesis(direction="both")
    for i in range(500):
        shared = rng.normal(size=120)
        inside, outside = shared + rng.normal(size=(2, 120)) / 2
        bound = _proof(inside, outside, threshold=bounds.SplitThreshold(seed=i), hypothesis=tested, confidence=0.95)
        positive += bound.value > 0
    assert positive <= stats.binom.ppf(1 - 1e-4, 500, 0.05)


def test_bad_audits() -> None:
    with pytest.raises(ValueError, match="`audits` must be a mapping"):
        bounds.epsilon_lower_bound_best({}, adjacency="replace")
    with pytest.raises(ValueError, match=r"audits\['a'\] scores_in"):
        bounds.epsilon_lower_bound_best({"a": (np.ones((2, 2)), np.ones(4), 1)}, adjacency="replace")
    with pytest.raises(ValueError, match="`k` must be at least 1, got 0"):
        bounds.epsilon_lower_bound_best({"a": (np.ones(4), np.ones(4), 0)}, adjacency="replace")
    with pytest.raises(TypeError, match="`threshold` must be of type Threshold, got str"):
        bounds.epsilon_lower_bound_best(PERFECT, threshold="all", adjacency="replace")  # type: ignore[arg-type]
