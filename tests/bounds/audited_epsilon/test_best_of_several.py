"""The best of several audits: valid although picked."""

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds

WAYS = ("split", "correction")
PERFECT = {f"k={k}": (np.ones(1000), np.zeros(1000), k) for k in (1, 2, 4, 8)}


def _threshold(select: str, seed: int = 0) -> bounds.Threshold:
    return bounds.SplitThreshold(seed=seed) if select == "split" else bounds.SimultaneousThreshold()


def test_what_picking_costs() -> None:
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


@pytest.mark.parametrize("select", WAYS)
@pytest.mark.parametrize("family", ["dp", "gdp"])
def test_null_audits_are_rarely_positive(select: str, family: str) -> None:
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


def test_the_better_of_two_is_found() -> None:
    rng = np.random.default_rng(9)
    both = {
        "weak": (rng.normal(0.1, size=400), rng.normal(size=400), 1),
        "strong": (rng.normal(3, size=400), rng.normal(size=400), 1),
    }
    for select in WAYS:
        bound = bounds.epsilon_lower_bound_best(
            both, threshold=_threshold(select), hypothesis=bounds.Hypothesis("gdp"), delta=1e-5, adjacency="replace"
        )
        assert bound.chosen == "strong"
        assert bound.mu is not None
        assert 1.5 < bound.mu < 3


def test_audits_that_share_trials_are_split_alike() -> None:
    """Trials that choose among audits are not counted in any of them: equal audits promise and prove the same."""
    rng = np.random.default_rng(10)
    scores = rng.normal(2, size=100), rng.normal(size=100)
    alone = bounds.epsilon_lower_bound_from_scores(
        *scores, threshold=bounds.SplitThreshold(seed=3), adjacency="replace"
    )
    many = bounds.epsilon_lower_bound_best(
        {str(i): (*scores, 1) for i in range(20)}, threshold=bounds.SplitThreshold(seed=3), adjacency="replace"
    )
    assert many.chosen == "0"
    assert (many.value, many.threshold) == (alone.value, alone.threshold)


def test_trials_of_one_number_may_share_their_randomness() -> None:
    """Pairs whose two scores differ by half a pair's noise: what is counted is still 60 trials that did not choose."""
    rng = np.random.default_rng(11)
    positive, tested = 0, bounds.Hypothesis(direction="both")
    for i in range(500):
        shared = rng.normal(size=120)
        inside, outside = shared + rng.normal(size=(2, 120)) / 2
        bound = bounds.epsilon_lower_bound_from_scores(
            inside,
            outside,
            threshold=bounds.SplitThreshold(seed=i),
            hypothesis=tested,
            confidence=0.95,
            adjacency="replace",
        )
        positive += bound.value > 0
    assert positive <= stats.binom.ppf(1 - 1e-4, 500, 0.05)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="`audits` must be a mapping"):
        bounds.epsilon_lower_bound_best({}, adjacency="replace")
    with pytest.raises(ValueError, match=r"audits\['a'\] scores_in"):
        bounds.epsilon_lower_bound_best({"a": (np.ones((2, 2)), np.ones(4), 1)}, adjacency="replace")
    with pytest.raises(ValueError, match="`k` must be at least 1, got 0"):
        bounds.epsilon_lower_bound_best({"a": (np.ones(4), np.ones(4), 0)}, adjacency="replace")
    with pytest.raises(TypeError, match="`threshold` must be of type Threshold, got str"):
        bounds.epsilon_lower_bound_best(PERFECT, threshold="all", adjacency="replace")  # type: ignore[arg-type]
