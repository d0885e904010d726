from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from leakcore import attacks, dpsgd

STEPS, SIGMA, RUNS = 16, 2.0, 20_000


def orthogonal_success(n: int, separation: float) -> float:
    """E_z[Φ(z + separation)^{n−1}], z ~ N(0, 1): n mutually orthogonal candidates, the best guess."""
    value, _ = integrate.quad(lambda z: stats.norm.pdf(z) * stats.norm.cdf(z + separation) ** (n - 1), -12, 12)
    return value


def _scores(n: int, *, target: np.ndarray, gradients: np.ndarray, seed: int = 1) -> np.ndarray:
    """s_{t,i} with fixed unit candidate gradients (n, d); every step shows the target's plus N(0, σ²I)."""
    noise = np.random.default_rng(seed).normal(scale=SIGMA, size=(len(target), STEPS, gradients.shape[1]))
    return (gradients[target][:, None] + noise) @ gradients.T


def test_sum_is_algorithm_2_and_top_is_algorithm_3() -> None:
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


def test_scores_of_a_clipped_target_have_mean_one_per_step() -> None:
    c = 0.1
    dots = c**2 * _scores(3, target=np.zeros(RUNS, dtype=int), gradients=np.eye(3))
    scores = attacks.prior_aware(dots, max_grad_norm=c).scores
    # Standard error of a mean over runs: √T·σ/√RUNS = 0.057; limit at five of them.
    np.testing.assert_allclose(scores.mean(axis=0), [STEPS, 0, 0], atol=0.29)


@pytest.mark.parametrize("n", [2, 10])
def test_orthogonal_gradients_meet_their_curve(n) -> None:
    """p = 0.001, two-sided binomial, fixed seed."""
    target = np.random.default_rng(0).integers(0, n, RUNS)
    guess = attacks.prior_aware(_scores(n, target=target, gradients=np.eye(n)), max_grad_norm=1)
    hits = int((guess.index == target).sum())
    assert stats.binomtest(hits, RUNS, orthogonal_success(n, STEPS**0.5 / SIGMA)).pvalue > 0.001
    assert stats.binomtest(hits, RUNS, orthogonal_success(n, STEPS**0.5 / SIGMA * 1.1)).pvalue < 1e-6


def test_an_antipodal_pair_meets_the_bound() -> None:
    """Φ(√T/σ) is B_{1/2} of full-batch DP-SGD (Hayes et al. 2023, Corollary 4 at q = 1); p = 0.001, fixed seed."""
    target = np.random.default_rng(0).integers(0, 2, RUNS)
    pair = np.array([[1.0, 0.0], [-1.0, 0.0]])
    hits = int((attacks.prior_aware(_scores(2, target=target, gradients=pair), max_grad_norm=1).index == target).sum())
    assert stats.binomtest(hits, RUNS, stats.norm.cdf(STEPS**0.5 / SIGMA)).pvalue > 0.001


@pytest.mark.parametrize("antipodal", [False, True])
def test_the_ensembles_own_scores_meet_the_curves(antipodal) -> None:
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


def test_algorithm_3_beats_algorithm_2_when_the_target_is_rarely_sampled() -> None:
    rng = np.random.default_rng(3)
    runs, steps, n, rate, sigma = 4000, 100, 10, 0.05, 0.4
    target = rng.integers(0, n, runs)
    dots = rng.normal(scale=sigma, size=(runs, steps, n))
    dots[np.arange(runs), :, target] += rng.random((runs, steps)) < rate
    improved = (attacks.prior_aware(dots, max_grad_norm=1, sample_rate=rate).index == target).mean()
    plain = (attacks.prior_aware(dots, max_grad_norm=1, sample_rate=rate, method="sum").index == target).mean()
    assert improved > plain + 0.1


@pytest.mark.parametrize("shape", [(5, 0, 3), (5, 4, 3)])
def test_nothing_observed_is_undecided_not_candidate_zero(shape) -> None:
    guess = attacks.prior_aware(np.zeros(shape), max_grad_norm=1)
    assert (guess.index == -1).all()
    assert guess.undecided.all()
    assert (guess.scores == 0).all()


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_equal_candidates_tie_exactly_wherever_they_stand(rate) -> None:
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


def test_permuting_the_candidates_permutes_the_guess() -> None:
    dots = np.random.default_rng(0).normal(size=(50, 20, 6))
    order = np.array([3, 0, 5, 1, 4, 2])
    first = attacks.prior_aware(dots, max_grad_norm=1)
    second = attacks.prior_aware(dots[..., order], max_grad_norm=1)
    assert (order[second.index] == first.index).all()


def test_leading_axes_are_kept() -> None:
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
def test_norms_that_no_clipping_leaves_are_refused(wrong) -> None:
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
