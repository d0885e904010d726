"""One run with many canaries, and guesses at membership."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, sparse, stats

from leakcore import accounting, bounds, mechanisms, numerics
from leakcore.bounds.audited_epsilon.families import GaussianFamily, MechanismFamily, ScaledMechanism, Tangents
from leakcore.bounds.audited_epsilon.one_run import GuessTail


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


@pytest.mark.parametrize(("m", "r", "v"), [(1, 1, 1), (100, 100, 70), (1000, 200, 200), (1000, 500, 340)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 9.0])
def test_binomial_tail(m: int, r: int, v: int, epsilon: float) -> None:
    tail = GuessTail(v, r, m).chance(Tangents(np.array([epsilon]), np.zeros(1)))
    assert tail == pytest.approx(_published(m, r, v, epsilon, 0.0), rel=1e-6)


def test_published_bounds() -> None:
    # 60 random counts and (ε, δ): Steinke, Nasr and Jagielski (2023), Appendix D.
    rng = np.random.default_rng(5)
    for _ in range(60):
        m = int(rng.integers(1, 400))
        r = int(rng.integers(1, m + 1))
        v = int(rng.integers(1, r + 1))
        epsilon, delta = float(rng.uniform(0, 5)), float(10 ** rng.uniform(-8, -2))
        ours = GuessTail(v, r, m).chance(Tangents(np.array([epsilon]), np.array([delta])))
        published = _published(m, r, v, epsilon, delta)
        assert published > 0.9 or ours <= published * (1 + 1e-6)


def _recursion(v: int, r: int, m: int, mu: float) -> float:
    """Mahloujifar, Melis and Chaudhuri (2025), Algorithm 3 with abstentions: the largest chance that is not refuted."""

    def refuted(chance: float) -> bool:
        right, wrong = chance * v / m, chance * (r - v) / m
        for i in range(v - 1, -1, -1):
            demanded = max(wrong, float(stats.norm.cdf(stats.norm.ppf(min(right, 1.0)) - mu)))
            right, wrong = right + i / (r - i) * (demanded - wrong), demanded
        return right + wrong > r / m

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


@pytest.mark.parametrize(("v", "r", "m", "mu"), [(36, 40, 200, 0.7), (55, 60, 60, 1.5), (30, 30, 100, 1.0)])
def test_gaussian_tail(v: int, r: int, m: int, mu: float) -> None:
    # A linear program over all laws of the number of right guesses is the exact answer for these lines.
    lines = GaussianFamily(1e-5).lines(mu)
    ours = GuessTail(v, r, m).chance(lines)
    exact = _most_likely(v, r, m, lines)
    assert exact <= ours * (1 + 1e-6)
    assert ours <= 1.12 * exact
    assert ours <= _recursion(v, r, m, mu) * 1.005  # lines touch the curve at 48 points


def _most_likely(v: int, r: int, m: int, lines: Tangents) -> float:
    """max P(W ≥ v) subject to Σ_c (c p_c − e^ε (r − c + 1) p_(c−1))_+ ≤ mδ for every line."""
    c, number = np.arange(1.0, r + 1), len(lines.epsilons)
    index = np.arange(number * r)
    gains = np.tile(c, number)
    losses = (np.exp(lines.epsilons)[:, None] * (r - c + 1)).ravel()
    column = np.tile(np.arange(1, r + 1), number)
    values = np.concatenate([gains, -losses, -np.ones(number * r)])
    places = (np.tile(index, 3), np.concatenate([column, column - 1, r + 1 + index]))
    wide = r + 1 + number * r
    each = sparse.csr_matrix((values, places), shape=(number * r, wide))
    sums = sparse.csr_matrix(
        (np.ones(number * r), (np.repeat(np.arange(number), r), r + 1 + index)), shape=(number, wide)
    )
    objective = np.zeros(wide)
    objective[v : r + 1] = -1.0
    whole = np.zeros((1, wide))
    whole[0, : r + 1] = 1.0
    solved = optimize.linprog(
        objective,
        A_ub=sparse.vstack([each, sums]),
        b_ub=np.concatenate([np.zeros(number * r), m * lines.deltas]),
        A_eq=whole,
        b_eq=[1.0],
        method="highs",
    )
    assert solved.status == 0
    return -float(solved.fun)


def test_inverse_of_the_tail() -> None:
    result = bounds.epsilon_lower_bound_one_run(180, 200, 1000, confidence=0.95, delta=1e-6)
    assert (result.kind, result.confidence, result.adjacency) == ("lower", 0.95, "add-remove")
    lines = Tangents(np.array([float(result.value)]), np.array([1e-6]))
    assert GuessTail(180, 200, 1000).chance(lines) == pytest.approx(0.05, rel=1e-6)
    exact = stats.binomtest(180, 200).proportion_ci(0.9).low  # one-sided at 95%
    pure = bounds.epsilon_lower_bound_one_run(180, 200, 1000, confidence=0.95)
    assert pure.value == pytest.approx(math.log(exact / (1 - exact)), rel=1e-6)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("mechanism", [mechanisms.FullBatch(1.0, 1), mechanisms.Poisson(0.6, 0.3, 2)])
def test_rate_of_refuted_true_claims(mechanism: mechanisms.Mechanism) -> None:
    # 1,000 runs, 60 canaries each with its own release, the likeliest 20 guessed. At most 5% of p-values may lie below
    # 5%, at most 20% below 20%; p-value 1e-4 for each.
    rng = np.random.default_rng(17)
    runs, canaries, guesses = 1000, 60, 20
    ratios = {
        side: mechanism.sample_log_ratio(runs * canaries, side, seed=3, first_sample=0).reshape(runs, canaries)
        for side in ("null", "alternative")
    }
    coins = rng.random((runs, canaries)) < 0.5
    scores = np.where(coins, ratios["alternative"], ratios["null"])
    order = np.argsort(scores, axis=1)
    low = ~np.take_along_axis(coins, order[:, : guesses // 2], axis=1)
    high = np.take_along_axis(coins, order[:, canaries - guesses // 2 :], axis=1)
    correct = low.sum(axis=1) + high.sum(axis=1)
    lines = MechanismFamily(ScaledMechanism(mechanism, "add-remove", 1e-5), np.linspace(0.0, 6.0, 12)).lines(1.0)
    p_values = {int(v): GuessTail(int(v), guesses, canaries).chance(lines) for v in set(correct)}
    for level in (0.05, 0.2):
        refuted = sum(p_values[int(v)] <= level for v in correct)
        assert refuted <= stats.binom.ppf(1 - 1e-4, runs, level)


def test_too_much_claimed_noise() -> None:
    claimed = mechanisms.FullBatch(4.0, 1)
    proof = bounds.epsilon_lower_bound_one_run(20, 20, 60, delta=1e-5, confidence=0.9, family=claimed)
    assert proof.p_value < 0.01
    assert proof.noise_multiplier < 4.0
    assert 0 < proof.value <= accounting.epsilon(mechanisms.FullBatch(proof.noise_multiplier, 1), delta=1e-5).value


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_coverage_on_gaussian_canaries(mu: float) -> None:
    # 500 runs of 200 canaries, 40 guessed: at most 5% may exceed μ; p-value 1e-4 for each μ.
    rng = np.random.default_rng(23)
    runs, m, r = 500, 200, 40
    coins = rng.random((runs, m)) < 0.5
    order = np.argsort(mu * coins + rng.normal(size=(runs, m)), axis=1)
    right = np.take_along_axis(coins, order, axis=1)
    correct = (~right[:, : r // 2]).sum(axis=1) + right[:, m - r // 2 :].sum(axis=1)
    proofs = {
        int(v): bounds.epsilon_lower_bound_one_run(int(v), r, m, confidence=0.95, delta=1e-5, family="gdp")
        for v in set(correct)
    }
    assert sum(proofs[int(v)].mu > mu for v in correct) <= stats.binom.ppf(1 - 1e-4, runs, 0.05)
    truth = float(numerics.gaussian_pair_epsilon(mu, delta=1e-5))
    assert 0.2 * truth < np.mean([proofs[int(v)].value for v in correct]) < truth


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
def test_coverage_on_randomised_response_canaries(epsilon: float) -> None:
    # Every coin is released truthfully with probability e^ε/(1 + e^ε): the theorem holds with equality. At most 5% of
    # 4,000 audits may exceed ε; p-value 1e-4 for each case.
    rng = np.random.default_rng(31)
    m, audits = 300, 4000
    counts = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), audits)
    bound = {int(c): bounds.epsilon_lower_bound_one_run(int(c), m, m, confidence=0.95).value for c in set(counts)}
    misses = sum(bound[int(c)] > epsilon for c in counts)
    assert misses <= stats.binom.ppf(1 - 1e-4, audits, 0.05)
    assert misses >= stats.binom.ppf(1e-4, audits, 0.02)  # and the test can fail


def test_chance_guesses() -> None:
    assert bounds.epsilon_lower_bound_one_run(50, 100, 100).value == 0
    assert bounds.epsilon_lower_bound_one_run(0, 0, 100).value == 0
    assert bounds.epsilon_lower_bound_one_run(100, 100, 100, delta=0.9).value == 0


def test_monotone_in_guesses() -> None:
    values = [bounds.epsilon_lower_bound_one_run(v, 100, 200, delta=1e-5).value for v in (60, 70, 80, 90, 100)]
    assert values == sorted(values)
    assert values[-1] > values[0]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"`correct` must be in \[0, 10\], got 11"):
        bounds.epsilon_lower_bound_one_run(11, 10, 20)
    with pytest.raises(ValueError, match=r"`guesses` must be in \[0, 20\], got 21"):
        bounds.epsilon_lower_bound_one_run(1, 21, 20)
    with pytest.raises(ValueError, match=r"`delta` must be in \[0, 1\), got 1"):
        bounds.epsilon_lower_bound_one_run(1, 2, 20, delta=1)
    with pytest.raises(ValueError, match=r"`family` must be 'dp' or 'gdp', got 'gaussian'"):
        bounds.epsilon_lower_bound_one_run(1, 2, 20, family="gaussian")
    with pytest.raises(TypeError, match=r"`family` must be 'dp', 'gdp' or a mechanism of leakcore.mechanisms, got 1"):
        bounds.epsilon_lower_bound_one_run(1, 2, 20, family=1)
    with pytest.raises(ValueError, match=r"`delta` must be positive with family='gdp', got 0.0"):
        bounds.epsilon_lower_bound_one_run(1, 2, 20, family="gdp")
    with pytest.raises(TypeError, match=r"`mechanism` must have a noise_multiplier that can be changed"):
        bounds.epsilon_lower_bound_one_run(1, 2, 20, delta=1e-5, family=mechanisms.ZCDP(1.0))


def test_families_of_bare_claims() -> None:
    counts = {"correct": 174, "guesses": 200, "canaries": 1000, "delta": 1e-5, "confidence": 0.95}
    gaussian = bounds.epsilon_lower_bound_one_run(**counts, family=mechanisms.GDP(0.3))
    assert gaussian.value == bounds.epsilon_lower_bound_one_run(**counts, family="gdp").value
    assert gaussian.p_value < 0.001
    plain = bounds.epsilon_lower_bound_one_run(**counts, family=mechanisms.ApproximateDP(4.0, 1e-5))
    assert plain.value == bounds.epsilon_lower_bound_one_run(**counts).value
    assert plain.p_value == pytest.approx(1.0)
    # The proof is at the δ that is asked for, whatever δ the claim has.
    other = bounds.epsilon_lower_bound_one_run(**counts, family=mechanisms.ApproximateDP(4.0, 0.0))
    assert other.value == plain.value


def test_accuracy_text() -> None:
    result = bounds.epsilon_from_membership(750, 1000)
    assert result.value == pytest.approx(math.log(3))
    assert (result.kind, result.confidence, result.accuracy) == ("estimate", None, 0.75)
    assert bounds.epsilon_from_membership(400, 1000).value == 0
    assert bounds.epsilon_from_membership(5, 5).value == math.inf


def test_coins() -> None:
    models = bounds.epsilon_from_membership(750, 1000, coins="models", confidence=0.95)
    rows = bounds.epsilon_from_membership(750, 1000, coins="rows", confidence=0.95)
    assert models.kind == rows.kind == "lower"
    assert 0.9 * math.log(3) > rows.value > 0.8 * math.log(3)
    # Without δ both are the same binomial tail.
    assert models.value == pytest.approx(rows.value, rel=1e-9)
    wide = bounds.epsilon_from_membership(750, 1000, coins="rows", rows=5000, confidence=0.95, delta=1e-3)
    assert 0 <= wide.value < rows.value
    assert bounds.epsilon_from_membership(750, 1000, coins="models", confidence=0.95, delta=0.01).value < models.value


@pytest.mark.parametrize("coins", ["models", "rows"])
def test_null_audits(coins: str) -> None:
    """5,000 null audits at 95%: more than 290 positive ones have probability below 1e-3 if the level is kept."""
    hits = np.random.default_rng(5).binomial(400, 0.5, size=5000)
    values = {
        int(h): float(bounds.epsilon_from_membership(int(h), 400, coins=coins, confidence=0.95).value)
        for h in np.unique(hits)
    }
    assert sum(values[int(h)] > 0 for h in hits) <= 297


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("coins", ["models", "rows"])
def test_coverage_on_randomised_response(epsilon: float, coins: str) -> None:
    hits = np.random.default_rng(6).binomial(300, 1 / (1 + math.exp(-epsilon)), size=3000)
    above = {
        int(h): bounds.epsilon_from_membership(int(h), 300, coins=coins, confidence=0.95).value > epsilon
        for h in np.unique(hits)
    }
    # P(Bin(3000, .05) > 188) < 1e-3.
    assert sum(above[int(h)] for h in hits) <= 188


def test_bad_membership_guesses() -> None:
    with pytest.raises(ValueError, match="`coins` must be 'models', 'rows' or 'none', got 'some'"):
        bounds.epsilon_from_membership(1, 2, coins="some")
    with pytest.raises(ValueError, match=r"`correct` must be in \[0, 2\], got 3"):
        bounds.epsilon_from_membership(3, 2)
    with pytest.raises(ValueError, match="`rows` must be None with coins='none', got 5"):
        bounds.epsilon_from_membership(1, 2, rows=5)
    with pytest.raises(ValueError, match="`guesses` must be at least 1, got 0"):
        bounds.epsilon_from_membership(0, 0)
