"""The ε that an audit by counting proves: worked examples, brute force, validity on null data, coverage."""

from __future__ import annotations

import inspect
import json
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from leakcore import bounds, numerics
from leakcore.bounds.audited_epsilon.families import RefutableClaim, _group_epsilon


def _bound(*counts: Any, family: str = "dp", direction: str = "in", **more: Any) -> bounds.EpsilonLowerBound:
    hypothesis = bounds.Hypothesis(family=family, direction=direction)  # type: ignore[arg-type]
    return bounds.epsilon_lower_bound(*counts, hypothesis=hypothesis, adjacency="replace", **more)


def _allowed(epsilon: float, p_lo: float, delta: float, k: int) -> float:
    """Right side of group privacy, as the definition says it: k applications of (ε, δ)-privacy, one row at a time."""
    p = p_lo
    for _ in range(k):
        p = math.exp(epsilon) * p + delta
    return p


def test_worked_examples() -> None:
    assert _group_epsilon(0.8, 0.4, 0.0, 1) == pytest.approx(math.log(2), rel=1e-15)
    assert _group_epsilon(1 - 0.4, 1 - 0.8, 0.0, 1) == pytest.approx(math.log(3), rel=1e-14)


def test_worked_example_from_counts() -> None:
    # .8 against .4: the complement's log 3 beats the event's log 2. Ten million trials leave about 1e-3 of it.
    result = _bound(8_000_000, 4_000_000, 10_000_000)
    assert math.log(3) - 3e-3 < result.value < math.log(3)
    assert result.proved_by is not None
    assert result.proved_by.startswith("complement")


def test_ceiling_of_the_paper() -> None:
    result = bounds.epsilon_opt(500, confidence=0.99)
    assert result.value == pytest.approx(4.5419, abs=5e-5)
    assert result.kind == "upper"
    assert result.confidence is None
    assert bounds.epsilon_opt(500, confidence=0.99, k=2).value == pytest.approx(result.value / 2, rel=1e-14)
    low = 0.005 ** (1 / 500)
    assert result.value == pytest.approx(math.log(low / (1 - low)), rel=1e-12)
    # The best of four k's on the counting trials needs a correction: α/4 for each.
    assert bounds.epsilon_opt(500, confidence=1 - 0.01 / 4).value == pytest.approx(4.31, abs=5e-3)


@pytest.mark.parametrize("direction", ["in", "out", "both"])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_counts_below_the_ceiling(direction: str, delta: float) -> None:
    ceiling = bounds.epsilon_opt(12, confidence=0.9, delta=delta).value
    best = max(
        _bound(a, b, 12, confidence=0.9, delta=delta, direction=direction).value for a in range(13) for b in range(13)
    )
    if direction == "both":
        assert best < ceiling
    else:
        assert best == pytest.approx(ceiling, rel=1e-12)


def test_limits_match_binomtest() -> None:
    for a, b, n in [(40, 3, 50), (500, 0, 500), (30, 29, 60), (77, 12, 100)]:
        result = _bound(a, b, n, confidence=0.95)
        i = stats.binomtest(a, n).proportion_ci(0.95)
        o = stats.binomtest(b, n).proportion_ci(0.95)
        expected = max(0.0, math.log(i.low / o.high), math.log((1 - o.high) / (1 - i.low)))
        assert result.value == pytest.approx(expected, rel=1e-10)
        np.testing.assert_allclose(result.limits, [(i.low, i.high), (o.low, o.high)], atol=1e-12)
        both = _bound(a, b, n, confidence=0.9, direction="both")
        np.testing.assert_allclose(both.limits, result.limits, atol=1e-12)


@given(
    p_hi=st.floats(1e-6, 1 - 1e-9),
    p_lo=st.floats(1e-9, 1 - 1e-6),
    delta=st.one_of(st.just(0.0), st.floats(1e-12, 0.3)),
    k=st.integers(1, 12),
)
@settings(derandomize=True, deadline=None, max_examples=400)
def test_group_epsilon_row_by_row(p_hi: float, p_lo: float, delta: float, k: int) -> None:
    got = _group_epsilon(p_hi, p_lo, delta, k)
    if p_hi <= p_lo + k * delta:
        assert got == 0.0
        return
    oracle = optimize.brentq(lambda e: _allowed(e, p_lo, delta, k) - p_hi, 0.0, 30.0, xtol=1e-15, rtol=1e-14)
    assert got == pytest.approx(oracle, rel=1e-9, abs=1e-12)


def test_group_epsilon_polynomial() -> None:
    for p_hi, p_lo, delta, k in [(0.9, 0.1, 0.01, 1), (0.9, 0.1, 0.01, 2), (0.97, 0.002, 1e-5, 4), (0.6, 0.2, 0.1, 3)]:
        polynomial = np.zeros(k + 2)
        polynomial[0] += p_lo
        polynomial[1] -= p_lo - delta
        polynomial[k] -= p_hi
        polynomial[k + 1] += p_hi - delta
        roots = np.roots(polynomial)
        largest = roots[np.abs(roots.imag) < 1e-7].real.max()
        assert _group_epsilon(p_hi, p_lo, delta, k) == pytest.approx(math.log(largest), rel=1e-6)


def test_group_epsilon_at_the_ends() -> None:
    # e^(kε) is about 1e300 here; the δ term is negligible.
    assert _group_epsilon(0.5, 5e-301, 1e-305, 2) == pytest.approx(300 * math.log(10) / 2, rel=1e-9)
    assert _group_epsilon(0.5 + 1e-12, 0.5, 1e-300, 3) == pytest.approx(2e-12 / 3, rel=1e-3)
    assert _group_epsilon(0.9, 0.1, 1e-300, 5) == pytest.approx(math.log(9) / 5, rel=1e-12)


def test_exactly_the_required_gap() -> None:
    assert _group_epsilon(0.5, 0.3, 0.1, 2) == 0.0
    assert _group_epsilon(0.3, 0.3, 0.0, 1) == 0.0
    assert _group_epsilon(0.2, 0.3, 0.0, 1) == 0.0
    result = _bound(60, 40, 100, delta=0.5)
    assert result.value == 0.0
    assert result.proved_by is None


@cache
def _value(a: int, b: int, n: int, confidence: float, delta: float, k: int, direction: str) -> float:
    return float(_bound(a, b, n, confidence=confidence, delta=delta, k=k, direction=direction).value)


@pytest.mark.full(keep=1)
@pytest.mark.full(keep=2)
@pytest.mark.parametrize("direction", ["in", "out", "both"])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_null_audits(direction: str, p: float) -> None:
    # 5,000 audits of a mechanism that leaks nothing, at 95%. The count of false positives is Bin(5000, ≤ .05); it fails
    # this test with probability at most 1e-4 for each of the nine cases.
    rng = np.random.default_rng(20240501)
    audits, n = 5000, 200
    counts = rng.binomial(n, p, size=(audits, 2))
    positive = sum(_value(int(a), int(b), n, 0.95, 0.0, 1, direction) > 0 for a, b in counts)
    assert positive <= stats.binom.ppf(1 - 1e-4, audits, 0.05)


@pytest.mark.full
def test_negative_control_of_null_audits() -> None:
    # Choosing the direction on the counting trials at α/2 each is the mistake that published tools make: twice the
    # error. At 50% confidence the fixed direction stays below its promise and the chosen one goes far above it.
    rng = np.random.default_rng(7)
    audits, n, level = 5000, 400, 0.5
    counts = [(int(a), int(b)) for a, b in rng.binomial(n, 0.5, size=(audits, 2))]
    honest = sum(_value(a, b, n, level, 0.0, 1, "both") > 0 for a, b in counts)
    greedy = sum(max(_value(a, b, n, level, 0.0, 1, d) for d in ("in", "out")) > 0 for a, b in counts)
    fixed = sum(_value(a, b, n, level, 0.0, 1, "in") > 0 for a, b in counts)
    assert max(honest, fixed) <= stats.binom.ppf(1 - 1e-4, audits, 1 - level)
    assert greedy > 1.8 * fixed


@pytest.mark.full(keep=2)
@pytest.mark.full(keep=4)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("direction", ["in", "both"])
def test_coverage_on_randomised_response(epsilon: float, direction: str) -> None:
    # Randomised response meets its ε with equality, so the bound exceeds it exactly when a limit misses. At most 10% of
    # 4,000 audits may; p-value 1e-4 for each case.
    rng = np.random.default_rng(11)
    audits, n, level = 4000, 250, 0.9
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    a, b = rng.binomial(n, p, audits), rng.binomial(n, 1 - p, audits)
    values = [_value(int(i), int(o), n, level, 0.0, 1, direction) for i, o in zip(a, b, strict=True)]
    assert sum(v > epsilon for v in values) <= stats.binom.ppf(1 - 1e-4, audits, 1 - level)
    # Not vacuous either: half of the bounds come within half of the truth.
    assert np.median(values) > 0.3 * epsilon


def test_group_of_two_on_the_laplace_mechanism() -> None:
    # f changes by 2 when two rows change, noise Lap(1/ε): P(x ≥ 2) is 1/2 against e^{−2ε}/2, k = 2 with equality.
    rng = np.random.default_rng(5)
    epsilon, n, audits = 0.8, 300, 3000
    a = rng.binomial(n, 0.5, audits)
    b = rng.binomial(n, 0.5 * math.exp(-2 * epsilon), audits)
    values = np.array([_value(int(i), int(o), n, 0.9, 0.0, 2, "in") for i, o in zip(a, b, strict=True)])
    assert (values > epsilon).sum() <= stats.binom.ppf(1 - 1e-4, audits, 0.1)
    assert np.median(values) > 0.7 * epsilon
    # Forgetting the group would claim twice that.
    assert np.median([_value(int(i), int(o), n, 0.9, 0.0, 1, "in") for i, o in zip(a, b, strict=True)]) > epsilon


@pytest.mark.parametrize("k", [1, 2])
def test_coverage_with_delta(k: int) -> None:
    # N(kμ, 1) against N(0, 1) is k steps of a mechanism with profile δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) per row.
    mu, epsilon = 1.0, 1.0
    delta = float(stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu))
    rng = np.random.default_rng(13)
    n, audits = 400, 3000
    threshold = mu / 2 + epsilon / mu  # the optimal event of one row
    a = rng.binomial(n, stats.norm.sf(threshold - k * mu), audits)
    b = rng.binomial(n, stats.norm.sf(threshold), audits)
    values = [_value(int(i), int(o), n, 0.9, delta, k, "in") for i, o in zip(a, b, strict=True)]
    assert sum(v > epsilon for v in values) <= stats.binom.ppf(1 - 1e-4, audits, 0.1)


def test_gdp_counts() -> None:
    result = _bound(400, 100, 500, family="gdp", delta=1e-5)
    i, o = (stats.binomtest(h, 500).proportion_ci(0.99) for h in (400, 100))
    mu = stats.norm.ppf(i.low) - stats.norm.ppf(o.high)
    assert result.mu == pytest.approx(mu, rel=1e-10)
    assert result.value == pytest.approx(numerics.gaussian_pair_epsilon(mu, delta=1e-5), rel=1e-9)
    assert any("μ-GDP" in note for note in result.assumptions.notes)
    pair = _bound(400, 100, 500, family="gdp", delta=1e-5, k=2)
    assert pair.mu == pytest.approx(mu / 2, rel=1e-10)
    assert _bound(250, 250, 500, family="gdp", delta=1e-5).value == 0
    with pytest.raises(ValueError, match=r"`delta` must be in \(0, 1\) with family='gdp'"):
        _bound(4, 1, 5, family="gdp")


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("mu", "k"), [(0.0, 1), (0.5, 1), (2.0, 1), (0.5, 4)])
def test_coverage_of_gdp_on_the_gaussian_mechanism(mu: float, k: int) -> None:
    # N(kμ, 1) against N(0, 1) meets μ-GDP with equality at every threshold. At most 10% of 1,500 audits may exceed μ;
    # p-value 1e-4 for each case.
    rng = np.random.default_rng(17)
    n, audits = 300, 1500
    a = rng.binomial(n, stats.norm.sf(0.3 - k * mu), audits)
    b = rng.binomial(n, stats.norm.sf(0.3), audits)
    values = [
        _bound(int(i), int(o), n, confidence=0.9, delta=1e-5, k=k, family="gdp").mu for i, o in zip(a, b, strict=True)
    ]
    assert sum(m > mu for m in values) <= stats.binom.ppf(1 - 1e-4, audits, 0.1)
    assert np.median(values) >= 0.4 * mu


def test_directions() -> None:
    forward = _bound(90, 10, 100)
    assert _bound(90, 10, 100, direction="out").value == 0.0
    backward = _bound(10, 90, 100, direction="out")
    assert backward.value == forward.value
    both = _bound(10, 90, 100, direction="both")
    assert 0 < both.value < forward.value
    assert both.value == _bound(90, 10, 100, confidence=0.995).value


def test_unequal_trials() -> None:
    result = _bound(90, 100, (100, 1000))
    i = stats.binomtest(90, 100).proportion_ci(0.99)
    o = stats.binomtest(100, 1000).proportion_ci(0.99)
    assert result.value == pytest.approx(max(math.log(i.low / o.high), math.log((1 - o.high) / (1 - i.low))), rel=1e-10)
    assert result.trials == (100, 1000)


def test_monotone_in_confidence_delta_and_k() -> None:
    values = [_bound(90, 10, 100, confidence=c).value for c in (0.5, 0.9, 0.99, 0.9999)]
    assert values == sorted(values, reverse=True)
    values = [_bound(90, 10, 100, delta=d).value for d in (0.0, 1e-9, 1e-3, 0.1, 0.5)]
    assert values == sorted(values, reverse=True)
    values = [_bound(90, 10, 100, delta=0.01, k=k).value for k in (1, 2, 3, 8)]
    assert values == sorted(values, reverse=True)


def test_adjacency_of_audits() -> None:
    wanted = r"`adjacency` must be given to {}: was a row left out \('add-remove'\), or replaced by another one"
    with pytest.raises(TypeError, match=wanted.format("epsilon_lower_bound")):
        bounds.epsilon_lower_bound(90, 10, 100)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=wanted.format("epsilon_lower_bound_from_scores")):
        bounds.epsilon_lower_bound_from_scores([1.0, 2.0], [0.0, 1.0])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=wanted.format("epsilon_lower_bound_best")):
        bounds.epsilon_lower_bound_best({"a": ([1.0, 2.0], [0.0, 1.0], 1)})  # type: ignore[call-arg]
    for function in (bounds.epsilon_lower_bound, bounds.epsilon_lower_bound_best):
        assert inspect.signature(function).parameters["adjacency"].default is inspect.Parameter.empty
    # The ceiling is one number for both; it states what it was told.
    assert bounds.epsilon_opt(20, confidence=0.9).adjacency is None
    assert bounds.epsilon_opt(20, confidence=0.9, adjacency="replacement").adjacency == "replace"


@pytest.mark.parametrize(("family", "delta"), [("dp", 0.0), ("dp", 1e-3), ("gdp", 1e-3)])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_proved_elementwise(family: str, delta: float, k: int) -> None:
    claim = RefutableClaim.parse(0.99, delta, k, "replace", bounds.Hypothesis(family=family))
    high, low = np.array([0.9, 0.5, 0.2, 0.6]), np.array([0.1, 0.499, 0.4, 0.0])
    wanted = [claim.proved(a, b) if b > 0 else 0.0 for a, b in zip(high, low, strict=True)]
    np.testing.assert_allclose(claim.proved_each(high, low), wanted, rtol=1e-12, atol=0)
    assert wanted[0] > 0 == wanted[2] == wanted[3]


def test_bad_input_and_the_result() -> None:
    with pytest.raises(ValueError, match=r"`hits_in` must be in \[0, 10\], got 11"):
        _bound(11, 0, 10)
    with pytest.raises(ValueError, match="`trials` must be at least 1, got 0"):
        _bound(0, 0, 0)
    with pytest.raises(ValueError, match=r"`trials` must be an integer or a pair"):
        _bound(0, 0, (1, 2, 3))
    with pytest.raises(ValueError, match="`adjacency` must be 'add-remove' or 'replace', got 'substitute'"):
        bounds.epsilon_lower_bound(1, 0, 10, adjacency="substitute")
    with pytest.raises(ValueError, match="`family` must be 'dp' or 'gdp', got 'rdp'"):
        bounds.Hypothesis("rdp")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`hypothesis` must be of type Hypothesis, got str"):
        bounds.epsilon_lower_bound(1, 0, 10, hypothesis="gdp", adjacency="replace")  # type: ignore[arg-type]
    result = bounds.epsilon_lower_bound(90, 10, 100, adjacency="add/remove", confidence=0.9)
    assert (result.kind, result.confidence, result.adjacency) == ("lower", 0.9, "add-remove")
    assert json.loads(result.to_json())["hits"] == [90, 10]
