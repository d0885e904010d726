"""A claim tested while trials arrive: valid at every look, whatever the rule that stops, and quick on a false claim."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds
from leakcore.bounds.audited_epsilon.ranks import allowed
from leakcore.bounds.audited_epsilon.sequential import Curve, bet_on
from leakcore.numerics import gaussian_pair_epsilon

DELTA = 1e-5
MU = 0.9302
EPSILON = float(gaussian_pair_epsilon(MU, delta=DELTA))  # 4.00


def _test(epsilon: float, family: Any = "gdp", **more: Any) -> bounds.SequentialTest:
    asked: dict[str, Any] = {"adjacency": "add-remove", "delta": DELTA, "confidence": 0.9, "family": family, **more}
    return bounds.SequentialTest(epsilon, **asked)


def _gauss(rng: np.random.Generator, mu: float, n: int) -> tuple[np.ndarray, np.ndarray, int]:
    return rng.normal(mu, size=n), rng.normal(size=n), 1


@pytest.mark.parametrize("family", ["dp", "gdp"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("parameter", [0.05, 1.0, 5.0])
def test_mean_of_bets(family: Any, k: int, parameter: float) -> None:
    """The mean of a pair's factor, summed exactly over events of probability q and T(q), and over Gaussian cells."""
    rng = np.random.default_rng(5)
    curve = Curve(family, DELTA, k)
    for past in (_gauss(rng, 3.0, 64), _gauss(rng, 0.1, 20), (np.ones(30), np.zeros(30), 1)):
        bet = bet_on(past[0], past[1], curve, parameter)
        cells = len(bet.inside)
        q = np.concatenate([np.geomspace(1e-12, 0.5, 60), np.linspace(0.5, 1, 40)])
        p = allowed(q, parameter, family, DELTA, k)
        low, high = np.meshgrid(np.arange(cells), np.arange(cells))
        for i, j in zip(low[low < high], high[low < high], strict=True):  # scores in two cells
            inside = bet.inside[i] + p * (bet.inside[j] - bet.inside[i])
            outside = bet.outside[i] + q * (bet.outside[j] - bet.outside[i])
            assert (inside * outside).max() <= 1 + 1e-12
        edges = np.concatenate([[-np.inf], bet.thresholds, [np.inf]])
        apart = k * parameter if family == "gdp" else 0.0
        means = [np.diff(stats.norm.cdf(edges - shift)) for shift in (apart, 0.0)]
        assert means[0] @ bet.inside * (means[1] @ bet.outside) <= 1 + 1e-12
        assert bet.inside.max() * bet.outside.max() <= curve.most(parameter) * (1 + 1e-9)


def _refuted(test: bounds.SequentialTest, draw: Any, looks: int) -> bool:
    """Whether the claim falls at any of the looks: the sizes depend on how the bets went."""
    size = 24
    for _ in range(looks):
        test.add({"k = 1": draw(size)})
        if test.refuted:
            return True
        size = 12 if test.p_value < 0.5 else 36
    return False


@pytest.mark.full
@pytest.mark.parametrize(
    "audits", [150, pytest.param(2000, marks=pytest.mark.slow)]
)  # P(Bin(150, .1) > 29) = 2e-4, P(Bin(2000, .1) > 248) = 3e-4
@pytest.mark.parametrize("family", ["dp", "gdp"])
def test_rate_of_refuted_true_claims(family: Any, audits: int) -> None:
    """The true curve is the claim's own, and chunks are smaller where the bets went well: nominal 10%."""
    rng = np.random.default_rng(31)
    p = math.exp(1.0) / (1 + math.exp(1.0))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray, int]:
        if family == "gdp":
            return _gauss(rng, MU, n)
        return (rng.random(n) < p).astype(float), (rng.random(n) < 1 - p).astype(float), 1

    claim = {"epsilon": EPSILON} if family == "gdp" else {"epsilon": 1.0, "delta": 0.0}
    fell = sum(_refuted(_test(**claim, family=family), draw, 6) for _ in range(audits))
    assert fell <= (29 if audits == 150 else 248)


@pytest.mark.full
@pytest.mark.parametrize("audits", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_proof_of_a_false_claim(audits: int) -> None:
    """ε at the stop, for a claim of half the truth: nominal 10%. P(Bin(20, .1) > 8) = 6e-5; of
    1,000 more than 136: 1e-4."""
    rng = np.random.default_rng(8)
    above = []
    for _ in range(audits):
        test = _test(EPSILON / 2)
        for _ in range(6):
            test.add({"k = 1": _gauss(rng, MU, 40)})
            if test.refuted:
                break
        above.append(float(test.proof().value) > EPSILON)
    assert sum(above) <= (8 if audits == 20 else 136)


@pytest.mark.full
def test_adaptive_adversary() -> None:
    """In each chunk the event that the bets trusted most changes its place: 100 audits, nominal 10%, as above."""
    rng = np.random.default_rng(77)
    fell = 0
    for _ in range(100):
        test = _test(1.0, "dp", delta=0.0)
        for look in range(6):
            q = (0.02, 0.27, 0.6)[look % 3] if test.p_value > 0.3 or not look else 0.27
            p = float(allowed(np.array([q]), 1.0, "dp", 0.0, 1)[0])
            test.add({"k = 1": ((rng.random(30) < p) * 1.0 + q, (rng.random(30) < q) * 1.0 + q, 1)})
            if test.refuted:
                fell += 1
                break
    assert fell <= 22


@pytest.mark.full
def test_power_against_a_false_claim() -> None:
    """Half of the noise, 1,000 trials planned: 10 audits at 99.5% stop before half of them."""
    rng = np.random.default_rng(2)
    for _ in range(10):
        test = _test(EPSILON, confidence=0.995)
        while not test.refuted:
            test.add({"k = 1": _gauss(rng, 2 * MU, 64)})
        assert test.trials < 500
        proof = test.proof()
        assert proof.refuted
        assert float(proof.value) > EPSILON
        assert proof.p_value <= 0.005
        assert (proof.kind, proof.confidence, proof.adjacency) == ("lower", 0.995, "add-remove")


@pytest.mark.full
def test_evidence_of_several_audits() -> None:
    """Of four audits one separates all: the average is at least a quarter of its capital."""
    rng = np.random.default_rng(4)
    alone, together = _test(1.0, "dp"), _test(1.0, "dp")
    for _ in range(4):
        clear = (rng.normal(4.0, size=40), rng.normal(size=40), 1)
        alone.add({"k = 1": clear})
        together.add({"k = 1": clear} | {f"k = {k}": (rng.normal(size=40), clear[1], k) for k in (2, 4, 8)})
    assert together.proof().p_value <= 4 * alone.proof().p_value * (1 + 1e-9)
    assert together.proof().considered == ("k = 1", "k = 2", "k = 4", "k = 8")


@pytest.mark.parametrize("family", ["dp", "gdp"])
def test_hopeless(family: Any) -> None:
    rng = np.random.default_rng(3)
    test = _test(EPSILON, family)
    test.add({"k = 1": _gauss(rng, MU, 32)})
    left = next(n for n in range(10**6) if not test.hopeless(n)) - 1
    assert left > 0
    assert test.ceiling(32 + left) <= EPSILON * (1 + 1e-3)
    done = 0
    while done < left:
        n = min(32, left - done)
        test.add({"k = 1": (np.full(n, 99.0), np.full(n, -99.0), 1)})
        done += n
        assert not test.refuted


@pytest.mark.parametrize("family", ["dp", "gdp"])
def test_perfect_scores(family: Any) -> None:
    test = _test(1.0, family)
    for _ in range(6):
        test.add({"k = 1": (np.ones(32), np.zeros(32), 1)})
    proved = float(test.proof().value)
    assert 1.0 < proved <= test.ceiling(192)
    assert proved > 0.5 * test.ceiling(192)


def test_refuted_agrees_with_proof() -> None:
    """Infinite scores, ties, the mean at 1 before anything came, and no more than one number for both."""
    test = _test(2.0, "dp")
    assert (test.trials, test.refuted, float(test.proof().value), test.proof().p_value) == (0, False, 0.0, 1.0)
    for _ in range(9):
        test.add({"k = 1": (np.full(50, np.inf), np.full(50, -np.inf), 1)})
        proof = test.proof()
        assert test.refuted == proof.refuted == (proof.value > 2.0)
    assert test.refuted
    assert proof.looks == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "`epsilon` must be above 0, got 0"),
        ({"family": "rdp"}, "`family` must be 'dp' or 'gdp', got 'rdp'"),
        ({"delta": 0.0, "family": "gdp"}, "`delta` must be in \\(0, 1\\) with family='gdp'"),
        ({"confidence": 1.0}, "`confidence` must be"),
        ({"adjacency": "both"}, "`adjacency` must be"),
    ],
)
def test_bad_tests(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _test(**{"epsilon": 1.0, **change})


@pytest.mark.parametrize(
    ("audits", "message"),
    [
        ({}, "`audits` must be a mapping of at least one name"),
        ({"a": ([1.0, 2.0], [1.0], 1)}, "`audits` must have equally many scores on all sides, got 1 and 2"),
        ({"a": ([np.nan], [1.0], 1)}, "`audits\\['a'\\] scores_in\\[0\\]` must be a number, got nan"),
        ({"b": ([1.0], [1.0], 1)}, "`audits` must have the names and k of the first look, {'a': 1}, got {'b': 1}"),
        ({"a": ([1.0], [1.0], 2)}, "`audits` must have the names and k of the first look, {'a': 1}, got {'a': 2}"),
    ],
)
def test_bad_chunks(audits: Any, message: str) -> None:
    test = _test(1.0)
    test.add({"a": ([1.0], [0.0], 1)})
    with pytest.raises(ValueError, match=message):
        test.add(audits)
    assert (test.trials, test.proof().looks) == (1, 1)
