"""One run, many canaries: the published p-value, validity on a mechanism that meets it, and limits."""

import math

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds
from leakcore.bounds.audited_epsilon.one_run import _chance


def _published(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Steinke, Nasr and Jagielski (2023), Appendix D, as printed."""
    q = 1 / (1 + math.exp(-epsilon))
    beta = stats.binom.sf(v - 1, r, q)
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, q)
        if total > i * alpha:
            alpha = total / i
    return float(beta + alpha * delta * 2 * m)


@pytest.mark.parametrize(("m", "r", "v"), [(1, 1, 1), (100, 100, 70), (1000, 200, 200), (1000, 500, 0), (50, 0, 0)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 9.0])
def test_the_tail_is_the_published_one(m: int, r: int, v: int, delta: float, epsilon: float) -> None:
    assert _chance(v, r, m, epsilon, delta) == pytest.approx(_published(m, r, v, epsilon, delta), rel=1e-9)


def test_the_bound_is_where_the_tail_meets_the_confidence() -> None:
    result = bounds.epsilon_lower_bound_one_run(180, 200, 1000, confidence=0.95, delta=1e-6)
    assert (result.kind, result.confidence, result.adjacency) == ("lower", 0.95, "add-remove")
    assert _published(1000, 200, 180, float(result.value), 1e-6) == pytest.approx(0.05, rel=1e-6)
    exact = stats.binomtest(180, 200).proportion_ci(0.9).low  # one-sided at 95%
    pure = bounds.epsilon_lower_bound_one_run(180, 200, 1000, confidence=0.95)
    assert pure.value == pytest.approx(math.log(exact / (1 - exact)), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
def test_coverage_on_randomised_response_of_every_canary(epsilon: float) -> None:
    # Every coin is released truthfully with probability e^ε/(1 + e^ε): the theorem holds with equality. At most 5% of
    # 4,000 audits may exceed ε; p-value 1e-4 for each case.
    rng = np.random.default_rng(31)
    m, audits = 300, 4000
    counts = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), audits)
    bound = {int(c): bounds.epsilon_lower_bound_one_run(int(c), m, m, confidence=0.95).value for c in set(counts)}
    misses = sum(bound[int(c)] > epsilon for c in counts)
    assert misses <= stats.binom.ppf(1 - 1e-4, audits, 0.05)
    assert misses >= stats.binom.ppf(1e-4, audits, 0.02)  # and the test can fail


def test_nothing_is_proved_by_chance_guesses_or_none() -> None:
    assert bounds.epsilon_lower_bound_one_run(50, 100, 100).value == 0
    assert bounds.epsilon_lower_bound_one_run(0, 0, 100).value == 0
    assert bounds.epsilon_lower_bound_one_run(100, 100, 100, delta=0.9).value == 0


def test_more_correct_guesses_prove_more() -> None:
    values = [bounds.epsilon_lower_bound_one_run(v, 100, 200, delta=1e-5).value for v in (60, 70, 80, 90, 100)]
    assert values == sorted(values)
    assert values[-1] > values[0]


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"`correct` must be in \[0, 10\], got 11"):
        bounds.epsilon_lower_bound_one_run(11, 10, 20)
    with pytest.raises(ValueError, match=r"`guesses` must be in \[0, 20\], got 21"):
        bounds.epsilon_lower_bound_one_run(1, 21, 20)
    with pytest.raises(ValueError, match=r"`delta` must be in \[0, 1\), got 1"):
        bounds.epsilon_lower_bound_one_run(1, 2, 20, delta=1)
