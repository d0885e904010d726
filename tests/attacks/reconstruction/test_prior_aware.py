"""The prior-aware attacks: against their definitions, against Bayes, and against the curves that they must meet."""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from leakcore import attacks, datasets, dpsgd, kernels
from leakcore.attacks.reconstruction import prior_aware
from tests.dpsgd.ensemble import flat_arguments as flat

RNG = np.random.default_rng(7)
DOTS = RNG.normal(size=(6, 30, 5)) * 0.01
NORMS = 0.1 * RNG.random((6, 30, 5))
C, NOISE, Q = 0.1, 0.7, 0.2


def _rows(data: datasets.Dataset) -> dpsgd.Rows:
    return dpsgd.Rows(data.features, data.labels)


def _plain(method: str) -> np.ndarray:
    """Σ over steps, one number at a time, as the paper writes it (App. G with ‖ḡ−g‖² − ‖ḡ‖² = n² − 2s)."""
    out = np.zeros((6, 5))
    for run, i in itertools.product(range(6), range(5)):
        s, n = DOTS[run, :, i], NORMS[run, :, i]
        if method == "sum":
            out[run, i] = sum(s) / C**2
        elif method == "top":
            out[run, i] = sum(sorted(s, reverse=True)[:6]) / C**2
        else:
            out[run, i] = sum(np.log(1 - Q + Q * np.exp(-(n**2 - 2 * s) / (2 * NOISE**2 * C**2))))
    return out


@pytest.mark.parametrize("method", prior_aware.METHODS)
def test_scores(method) -> None:
    guess = attacks.prior_aware(
        DOTS, NORMS, max_grad_norm=C, sample_rate=Q, noise_multiplier=NOISE, method=method
    )  # fmt: skip
    np.testing.assert_allclose(guess.scores, _plain(method), rtol=1e-12, atol=1e-12)
    assert guess.index.tolist() == _plain(method).argmax(axis=1).tolist()
    assert guess.method == method


def test_dependence_on_clip_scores() -> None:
    """App. G from gradients, ‖ḡ − g‖² − ‖ḡ‖² computed as such, against the route over `clip_scores`; float64, 1e-10."""
    rng = np.random.default_rng(1)
    gradients, observed = rng.normal(size=(4, 5, 50)), rng.normal(size=(4, 50))
    expected, dots, norms = np.zeros(5), [], []
    for g, release in zip(gradients, observed, strict=True):
        clipped = g / np.maximum(1, np.linalg.norm(g, axis=1, keepdims=True) / C)
        gap = np.square(release - clipped).sum(axis=1) - np.square(release).sum()
        expected += np.log(1 - Q + Q * np.exp(-gap / (2 * NOISE**2 * C**2)))
        result = kernels.clip_scores(g, release, C)
        dots.append(result.dots)
        norms.append(result.clipped_norms)
    guess = attacks.prior_aware(
        np.array(dots), np.array(norms), max_grad_norm=C, sample_rate=Q, noise_multiplier=NOISE, method="likelihood"
    )
    np.testing.assert_allclose(guess.scores, expected, rtol=1e-10, atol=1e-10)


def test_prior() -> None:
    """E3: the posterior is s + log p, not s·p; with no evidence the guess is the likeliest candidate."""
    prior = np.array([0.1, 0.0, 0.4, 0.3, 0.2])
    plain = attacks.prior_aware(
        DOTS, NORMS, max_grad_norm=C, sample_rate=Q, noise_multiplier=NOISE, method="likelihood"
    )
    weighted = attacks.prior_aware(DOTS, NORMS, max_grad_norm=C, sample_rate=Q, noise_multiplier=NOISE, prior=prior)
    assert weighted.method == "likelihood"
    keep = prior > 0
    np.testing.assert_allclose(weighted.scores[:, keep], plain.scores[:, keep] + np.log(prior[keep]), rtol=1e-14)
    assert (weighted.scores[:, 1] == -np.inf).all()
    nothing = np.zeros((3, 0, 5))
    assert attacks.prior_aware(
        nothing, nothing, max_grad_norm=C, noise_multiplier=1, prior=prior
    ).index.tolist() == [2, 2, 2]  # fmt: skip


def test_likelihood_of_full_batches() -> None:
    norms = np.full_like(DOTS, C)
    by_sum = attacks.prior_aware(DOTS, max_grad_norm=C)
    by_likelihood = attacks.prior_aware(DOTS, norms, max_grad_norm=C, noise_multiplier=NOISE, method="likelihood")
    expected = by_sum.scores / NOISE**2 - 30 / (2 * NOISE**2)
    np.testing.assert_allclose(by_likelihood.scores, expected, rtol=1e-12, atol=1e-12)


def _subsampled(runs: int, prior: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of orthogonal unit gradients under Poisson sampling: target in the batch with probability q."""
    rng = np.random.default_rng(seed)
    target = rng.choice(len(prior), size=runs, p=prior)
    dots = rng.normal(scale=NOISE, size=(runs, 60, len(prior)))
    dots[np.arange(runs), :, target] += rng.random((runs, 60)) < Q
    return target, dots


@pytest.mark.full
def test_calibrated_posterior() -> None:
    """Success equals the mean of the largest posterior probability, as for any Bayes rule; and beats Algorithms 2, 3.

    p = 0.001: a normal limit of 3.29 standard errors on hits minus stated probability over 20,000 runs; fixed seed.
    """
    prior = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    target, dots = _subsampled(20_000, prior, seed=3)
    how = {"max_grad_norm": 1.0, "sample_rate": Q}
    guess = attacks.prior_aware(dots, np.ones_like(dots), noise_multiplier=NOISE, prior=prior, **how)
    posterior = np.exp(guess.scores - np.logaddexp.reduce(guess.scores, axis=1, keepdims=True))
    surplus = (guess.index == target) - posterior.max(axis=1)
    assert abs(surplus.mean()) < 3.29 * surplus.std() / len(surplus) ** 0.5
    hits = {m: (attacks.prior_aware(dots, method=m, **how).index == target).mean() for m in ("sum", "top")}
    assert (guess.index == target).mean() > max(hits.values()) + 0.03


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"clipped_norms": None}, ValueError, "`clipped_norms` is required with method='likelihood'"),
        (
            {"clipped_norms": NORMS[:2]},
            ValueError,
            r"`clipped_norms` must have the shape of `dots`, \(6, 30, 5\), got \(2, 30, 5\)",
        ),
        (
            {"noise_multiplier": None},
            ValueError,
            "`noise_multiplier` must be above 0 and finite for method='likelihood', got None",
        ),
        (
            {"noise_multiplier": 0},
            ValueError,
            r"`noise_multiplier` must be above 0 and finite for method='likelihood', got 0.0",
        ),
        ({"prior": [1.0]}, ValueError, r"`prior` must give one probability to each of 5 candidates, got shape \(1,\)"),
        ({"prior": [0.5, 0.5, 0.5, -0.5, 0]}, ValueError, r"`prior\[3\]` must be in \[0, 1\], got -0.5"),
        ({"prior": [0.2, 0.2, 0.2, 0.2, 0.1]}, ValueError, r"`prior` must sum to 1, got 0\.9"),
        (
            {"prior": [0.2] * 5, "method": "top"},
            ValueError,
            r"`prior` must be None with method='top', which takes all candidates as equally likely; use 'likelihood'",
        ),
    ],
)
def test_likelihood_errors(change, error, message) -> None:
    good = {"clipped_norms": NORMS, "noise_multiplier": 1.0, "method": "likelihood"} | change
    with pytest.raises(error, match=message):
        attacks.prior_aware(DOTS, good.pop("clipped_norms"), max_grad_norm=C, sample_rate=Q, **good)


def _digit_games(runs: int, **more) -> dict[str, attacks.ReconstructionGame]:
    first, rest = datasets.digits().split(120, seed=0)
    ensemble = dpsgd.Ensemble(
        (64, 10, 10), noise_multiplier=0.8, max_grad_norm=0.1, learning_rate=5.0, steps=40, sample_rate=0.05, seed=2
    )
    return flat.game(attacks.reconstruction_games, ensemble, first, rest, runs=runs, **more)


def test_games_against_stored_steps() -> None:
    first, rest = datasets.digits().split(120, seed=0)
    ensemble = dpsgd.Ensemble(
        (64, 10, 10), noise_multiplier=0.8, max_grad_norm=0.1, learning_rate=5.0, steps=40, sample_rate=0.05, seed=2
    )
    index = np.random.default_rng(0).integers(0, len(rest), (40, 4))
    rules = {m: prior_aware.rule(m, max_grad_norm=0.1, sample_rate=0.05, steps=40, noise_multiplier=0.8)
             for m in prior_aware.METHODS}  # fmt: skip
    out = ensemble.run(
        first.features,
        first.labels,
        runs=40,
        per_run=dpsgd.PerRun(dpsgd.Rows(rest.features, rest.labels, index[:, :1])),
        observer=dpsgd.Observer(dpsgd.Rows(rest.features, rest.labels, index), scorers=rules),
    )
    for method, scores in out.scores.items():
        guess = attacks.prior_aware(
            out.dots, out.clipped_norms, max_grad_norm=0.1, sample_rate=0.05, noise_multiplier=0.8, method=method
        )
        assert (guess.scores == scores).all()
    assert out.clipped.tolist() == (out.clipped_norms >= np.float32(0.1)).sum(axis=(1, 2)).tolist()
    lean = ensemble.run(
        first.features,
        first.labels,
        runs=40,
        per_run=dpsgd.PerRun(dpsgd.Rows(rest.features[index[:, :1]], rest.labels[index[:, :1]])),
        observer=dpsgd.Observer(dpsgd.Rows(rest.features[index], rest.labels[index]), scorers=rules, keep_steps=False),
    )
    assert lean.dots is None
    assert lean.clipped_norms is None
    assert all((lean.scores[m] == out.scores[m]).all() for m in rules)


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, pytest.param(ProcessPoolExecutor, marks=pytest.mark.slow)])
def test_independence_of_workers(pool) -> None:
    calls: list[tuple[int, int]] = []
    whole = _digit_games(150)
    how = {} if pool is ThreadPoolExecutor else {"mp_context": __import__("multiprocessing").get_context("spawn")}
    with pool(2, **how) as executor:
        shared = _digit_games(150, executor=executor, progress=lambda *at: calls.append(at))
    assert whole.keys() == shared.keys() == set(prior_aware.METHODS)
    assert all(whole[m] == shared[m] for m in whole)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (150, 150)


@pytest.mark.slow
def test_order_of_power() -> None:
    """Hayes et al. 2023, Section 4.3; 512 runs; differences exceed 3.29 standard errors (p = 0.001)."""
    first, rest = datasets.digits().split(499, seed=0)
    ensemble = dpsgd.Ensemble(
        (64, 10, 10), noise_multiplier=0.5, max_grad_norm=0.1, learning_rate=1.0, steps=200, sample_rate=0.02, seed=0
    )
    runs = 512
    games = attacks.reconstruction_games(
        ensemble, _rows(first), _rows(rest), attacks.GameRules(nearest_cosines=False), runs=runs
    )
    error = 3.29 * (0.5 / runs) ** 0.5
    assert games["top"].value > games["sum"].value + error
    assert games["likelihood"].value > games["sum"].value + error
    assert games["likelihood"].hits >= games["top"].hits - 10
    assert np.isnan(games["top"].nearest_cosine)


def test_game_with_a_prior() -> None:
    first, rest = datasets.digits().split(60, seed=0)
    ensemble = dpsgd.Ensemble(
        (64, 10), noise_multiplier=1e6, max_grad_norm=0.1, learning_rate=1e-9, steps=2, seed=4
    )  # fmt: skip
    prior = [0.0, 0.7, 0.3]
    game = attacks.reconstruction_game(
        ensemble, _rows(first), _rows(rest), attacks.GameRules(3, prior=prior), runs=1000
    )
    # Drowned in noise, the guess is candidate 1, and right as often as it is the target; p = 0.001, two-sided binomial.
    assert stats.binomtest(game.hits, game.trials, 0.7).pvalue > 0.001
    assert game.chance == 0.7
    assert game.provenance.endswith("Appendix G")
    assert "how likely each is" in game.assumptions.attacker
    assert attacks.ReconstructionGame.from_dict(game.to_dict()) == game


STEPS, SIGMA, RUNS = 16, 2.0, 20_000


def orthogonal_success(n: int, separation: float) -> float:
    """E_z[Φ(z + separation)^{n−1}], z ~ N(0, 1): n mutually orthogonal candidates, the best guess."""
    value, _ = integrate.quad(lambda z: stats.norm.pdf(z) * stats.norm.cdf(z + separation) ** (n - 1), -12, 12)
    return value


def _scores(n: int, *, target: np.ndarray, gradients: np.ndarray, seed: int = 1) -> np.ndarray:
    """s_{t,i} with fixed unit candidate gradients (n, d); every step shows the target's plus N(0, σ²I)."""
    noise = np.random.default_rng(seed).normal(scale=SIGMA, size=(len(target), STEPS, gradients.shape[1]))
    return (gradients[target][:, None] + noise) @ gradients.T


def test_algorithms_2_and_3() -> None:
    dots = np.array([[[1.0, 5.0], [4.0, -3.0], [2.0, 1.5], [3.0, 1.0]]])
    both = attacks.prior_aware(dots, max_grad_norm=2.0)
    assert both.scores.tolist() == [[10 / 4, 4.5 / 4]]
    assert (both.method, both.top, both.index.tolist()) == ("sum", 4, [0])
    best = attacks.prior_aware(dots, max_grad_norm=2.0, sample_rate=0.25)
    assert best.scores.tolist() == [[4 / 4, 5 / 4]]
    assert (best.method, best.top, best.index.tolist()) == ("top", 1, [1])
    assert attacks.prior_aware(dots, max_grad_norm=1, sample_rate=0.25, method="sum").index.tolist() == [0]
    assert attacks.prior_aware(dots, max_grad_norm=1, sample_rate=0.5).scores.tolist() == [[7.0, 6.5]]
    assert attacks.prior_aware(dots, max_grad_norm=1, sample_rate=1e-9).top == 1


def test_mean_score_of_the_target() -> None:
    c = 0.1
    dots = c**2 * _scores(3, target=np.zeros(RUNS, dtype=int), gradients=np.eye(3))
    scores = attacks.prior_aware(dots, max_grad_norm=c).scores
    # Standard error of a mean over runs: √T·σ/√RUNS = 0.057; limit at five of them.
    np.testing.assert_allclose(scores.mean(axis=0), [STEPS, 0, 0], atol=0.29)


@pytest.mark.parametrize("n", [2, 10])
def test_orthogonal_gradients(n) -> None:
    """p = 0.001, two-sided binomial, fixed seed."""
    target = np.random.default_rng(0).integers(0, n, RUNS)
    guess = attacks.prior_aware(_scores(n, target=target, gradients=np.eye(n)), max_grad_norm=1)
    hits = int((guess.index == target).sum())
    assert stats.binomtest(hits, RUNS, orthogonal_success(n, STEPS**0.5 / SIGMA)).pvalue > 0.001
    assert stats.binomtest(hits, RUNS, orthogonal_success(n, STEPS**0.5 / SIGMA * 1.1)).pvalue < 1e-6


def test_antipodal_pair() -> None:
    """Φ(√T/σ) is B_{1/2} of full-batch DP-SGD (Hayes et al. 2023, Corollary 4 at q = 1); p = 0.001, fixed seed."""
    target = np.random.default_rng(0).integers(0, 2, RUNS)
    pair = np.array([[1.0, 0.0], [-1.0, 0.0]])
    hits = int((attacks.prior_aware(_scores(2, target=target, gradients=pair), max_grad_norm=1).index == target).sum())
    assert stats.binomtest(hits, RUNS, stats.norm.cdf(STEPS**0.5 / SIGMA)).pvalue > 0.001


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("antipodal", [False, True])
def test_scores_of_the_ensemble(antipodal) -> None:
    """The whole path, no synthetic scores: one logit, inputs 10³·e_i, whose gradients are orthogonal up to the bias's
    10⁻⁶ and clipped throughout (a tiny learning rate keeps the residuals at ±½). p = 0.001, fixed seed.
    """
    runs = 4000
    points = 1e3 * (np.array([[1.0], [-1.0]]) if antipodal else np.eye(8))
    n, d = points.shape
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((d, 1), dtype="float64"),
        noise_multiplier=4.0,
        max_grad_norm=0.1,
        learning_rate=1e-9,
        steps=STEPS,
        seed=5,
    )
    target = np.random.default_rng(2).integers(0, n, runs)
    out = ensemble.run(
        np.zeros((0, d)),
        np.zeros(0, dtype=int),
        runs=runs,
        per_run=dpsgd.PerRun(
            dpsgd.Rows(points[target][:, None], np.ones((runs, 1), dtype=int)), initial=np.zeros(d + 1)
        ),
        observer=dpsgd.Observer(dpsgd.Rows(points, np.ones(n, dtype=int))),
    )
    assert (out.clipped_norms == 0.1).all()
    hits = int((attacks.prior_aware(out.dots, max_grad_norm=0.1).index == target).sum())
    expected = stats.norm.cdf(1.0) if antipodal else orthogonal_success(n, 1.0)
    assert stats.binomtest(hits, runs, expected).pvalue > 0.001


def test_rarely_sampled_target() -> None:
    rng = np.random.default_rng(3)
    runs, steps, n, rate, sigma = 4000, 100, 10, 0.05, 0.4
    target = rng.integers(0, n, runs)
    dots = rng.normal(scale=sigma, size=(runs, steps, n))
    dots[np.arange(runs), :, target] += rng.random((runs, steps)) < rate
    improved = (attacks.prior_aware(dots, max_grad_norm=1, sample_rate=rate).index == target).mean()
    plain = (attacks.prior_aware(dots, max_grad_norm=1, sample_rate=rate, method="sum").index == target).mean()
    assert improved > plain + 0.1


@pytest.mark.parametrize("shape", [(5, 0, 3), (5, 4, 3)])
def test_nothing_observed(shape) -> None:
    guess = attacks.prior_aware(np.zeros(shape), max_grad_norm=1)
    assert (guess.index == -1).all()
    assert guess.undecided.all()
    assert (guess.scores == 0).all()


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_ties(rate) -> None:
    rng = np.random.default_rng(0)
    dots = rng.normal(size=(200, 37, 4))
    dots[..., 3] = dots[..., 1] = rng.normal(size=(200, 37)) + 2
    guess = attacks.prior_aware(dots, max_grad_norm=0.3, sample_rate=rate)
    best = guess.scores.argmax(axis=-1) == 1
    assert best.any()
    assert (guess.undecided == best).all()
    assert (guess.index[best] == -1).all()
    # Algorithm 3 sums values, not places: the same values in another order of steps tie as well.
    shuffled = dots.copy()
    shuffled[..., 3] = shuffled[:, ::-1, 1]
    if rate < 1:
        assert attacks.prior_aware(shuffled, max_grad_norm=0.3, sample_rate=rate).undecided[best].all()


def test_permutation() -> None:
    dots = np.random.default_rng(0).normal(size=(50, 20, 6))
    order = np.array([3, 0, 5, 1, 4, 2])
    first = attacks.prior_aware(dots, max_grad_norm=1)
    second = attacks.prior_aware(dots[..., order], max_grad_norm=1)
    assert (order[second.index] == first.index).all()


def test_leading_axes() -> None:
    dots = np.random.default_rng(0).normal(size=(2, 3, 20, 6))
    guess = attacks.prior_aware(dots, max_grad_norm=1)
    assert guess.index.shape == guess.undecided.shape == (2, 3)
    assert guess.scores.shape == (2, 3, 6)
    one = attacks.prior_aware(dots[1, 2], max_grad_norm=1)
    assert one.index.shape == ()
    assert int(one.index) == guess.index[1, 2]
    assert int(attacks.prior_aware(np.zeros((4, 1)), max_grad_norm=1).index) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_grad_norm": 0}, ValueError, "`max_grad_norm` must be above 0, got 0"),
        ({"sample_rate": 0}, ValueError, r"`sample_rate` must be in \(0, 1\], got 0"),
        ({"sample_rate": 1.5}, ValueError, r"`sample_rate` must be in \[0, 1\], got 1.5"),
        ({"method": "best"}, ValueError, "`method` must be 'auto', 'sum', 'top' or 'likelihood', got 'best'"),
        (
            {"dots": np.zeros(3)},
            ValueError,
            r"`dots` must have shape \(\.\.\., steps, candidates\) with at least one candidate, got \(3,\)",
        ),
        (
            {"dots": np.zeros((3, 0))},
            ValueError,
            r"`dots` must have shape \(\.\.\., steps, candidates\) with at least one candidate, got \(3, 0\)",
        ),
        ({"dots": np.array([[0.0, np.inf]])}, ValueError, r"`dots\[0, 1\]` must be finite, got inf"),
        (
            {
                "dots": np.zeros((2, 4, 3)),
                "clipped_norms": np.ones((2, 4, 3)),
                "noise_multiplier": 1.0,
                "prior": np.full((4, 3), 1 / 3),
            },
            ValueError,
            r"`prior` must have shape \(3,\), or one that broadcasts to \(2, 3\), got \(4, 3\)",
        ),
        ({"dots": np.array([["a"]])}, TypeError, r"`dots` must be of a real floating or integer type, got <U1"),
    ],
)
def test_errors(arguments, error, message) -> None:
    good = {"dots": np.zeros((2, 3)), "max_grad_norm": 1.0} | arguments
    with pytest.raises(error, match=message):
        attacks.prior_aware(good.pop("dots"), **good)


@pytest.mark.parametrize("wrong", [-0.5, 2.00001, 5.0])
def test_bad_norms(wrong) -> None:
    norms = np.full((1, 2, 3), 2.0)
    settings = {"max_grad_norm": 2.0, "noise_multiplier": 1.0, "method": "likelihood"}
    attacks.prior_aware(norms, norms * (1 + 1e-7), **settings)
    norms[0, 1, 2] = wrong
    with pytest.raises(ValueError, match=r"`clipped_norms` must lie in \[0, max_grad_norm=2\.0\].*got values in \["):
        attacks.prior_aware(norms, norms, **settings)


def test_tensors() -> None:
    dots = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    with pytest.raises(ValueError, match=r"`dots` must not require grad: pass dots.detach\(\)"):
        attacks.prior_aware(dots, max_grad_norm=1.0)
    got = attacks.prior_aware(dots.detach().bfloat16(), max_grad_norm=1.0)
    np.testing.assert_array_equal(got.scores, [1.0, 2.0, 0.5])
