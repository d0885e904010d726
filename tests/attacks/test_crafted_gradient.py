"""A gradient of the attacker's own: what the mechanism does with it, and what the final model shows of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import accounting, bounds, dpsgd
from leakcore.attacks import poisoning

X, Y = np.random.default_rng(0).standard_normal((30, 12)), np.arange(30) % 3
X[:, 4] = 0.0  # no row has a gradient there


def _ensemble(**more: Any) -> dpsgd.Ensemble:
    settings: dict[str, Any] = {
        "sample_rate": dpsgd.PoissonBatches(1.0, expected_batch_size=30), "noise_multiplier": 2.0,
        "max_grad_norm": 1.0, "learning_rate": 0.5, "steps": 16, "seed": 0,
    }  # fmt: skip
    return dpsgd.Ensemble((12, 3), **settings | more)


def _difference(ensemble: dpsgd.Ensemble, gradient: np.ndarray, batches: np.ndarray) -> np.ndarray:
    """What the crafted gradient changes in the parameters, where no gradient depends on them: without rows' noise."""
    run = {"runs": len(batches), "per_run": dpsgd.PerRun(initial=np.zeros(39))}
    crafted = {"runs": len(batches), "per_run": dpsgd.PerRun(
        initial=np.zeros(39), crafted=dpsgd.CraftedGradient(gradient, batches))}  # fmt: skip
    zeros, labels = np.zeros((4, 12)), np.arange(4) % 3
    with_it = ensemble.run(zeros, labels, **crafted).parameters
    return np.asarray(with_it - ensemble.run(zeros, labels, **run).parameters)


def test_it_is_clipped_and_taken_in_its_batches():
    """Three steps, a gradient of norm 5 on a weight that rows of zeros do not touch."""
    ensemble = _ensemble(steps=3)
    gradient = np.zeros(39)
    gradient[7] = 5.0
    batches = np.array([[True, True, False], [False, False, False], [True, True, True]])
    moved = _difference(ensemble, gradient, batches)
    assert moved[:, 7] == pytest.approx(np.array([-2, 0, -3]) * 0.5 / 30, abs=1e-6)
    assert np.abs(np.delete(moved, 7, axis=1)).max() < 1e-6


def test_each_step_may_have_its_own():
    steps = np.zeros((3, 39))
    steps[0, 1], steps[1, 2], steps[2, 3] = 0.5, -0.25, 2.0
    moved = _difference(_ensemble(steps=3), steps, np.ones((1, 3), bool))
    assert moved[0, 1:4] == pytest.approx(np.array([-0.5, 0.25, -1.0]) * 0.5 / 30, abs=1e-6)


def test_the_fault_of_clipping_batches_takes_it_whole():
    gradient = np.zeros(39)
    gradient[7] = 50.0
    moved = _difference(_ensemble(steps=1, fault=dpsgd.Fault(clip="batch")), gradient, np.ones((1, 1), bool))
    assert moved[0, 7] < -5 * 0.5 / 30  # 50 where the mechanism allows 1; the mean is clipped to C·30


def test_the_same_bits_by_threads_and_ranges():
    ensemble = _ensemble(sample_rate=dpsgd.PoissonBatches(0.3, expected_batch_size=9))
    whole = poisoning.crafted_gradient_scores(ensemble, X, Y, trials=40, references=2)
    part = poisoning.crafted_gradient_scores(
        ensemble, X, Y, trials=range(20, 40), references=2, execution=dpsgd.Execution(num_threads=2)
    )
    assert np.array_equal(whole.scores_in[20:], part.scores_in)
    assert np.array_equal(whole.scores_out[20:], part.scores_out)


def test_full_batches_show_all_that_the_releases_show():
    """μ = √16/2 = 2; the means of 2,000 trials a side differ by 2 standard deviations ± 4·√(2/2000) (p < 1e-4)."""
    scores = poisoning.crafted_gradient_scores(_ensemble(), X, Y, trials=2000)
    apart = (scores.scores_in.mean() - scores.scores_out.mean()) / scores.scores_out.std()
    assert apart == pytest.approx(2.0, abs=4 * (np.sqrt(2 / 2000) + 2 / np.sqrt(4000)))
    proof = bounds.epsilon_lower_bound_from_scores(
        scores.scores_in, scores.scores_out, threshold=bounds.SimultaneousThreshold(), adjacency="add-remove",
        confidence=0.95, delta=1e-5, hypothesis=bounds.Hypothesis("gdp"),
    )  # fmt: skip
    assert 0.85 * float(accounting.epsilon(2.0, 1.0, 16, delta=1e-5)) < float(proof) < 10.0


def test_poisson_batches_show_the_binomial_mixture():
    """Kolmogorov–Smirnov at p > 1e-4: the scores are the two laws of `accounting.last_iterate_epsilon`."""
    ensemble = _ensemble(sample_rate=dpsgd.PoissonBatches(0.25, expected_batch_size=7.5), noise_multiplier=0.5)
    scores = poisoning.crafted_gradient_scores(ensemble, X, Y, trials=2000)
    unit, count = 0.5 / 7.5, np.arange(17)
    weight = stats.binom.pmf(count, 16, 0.25)

    def with_it(x: np.ndarray) -> np.ndarray:
        return np.asarray((weight * stats.norm.cdf(np.asarray(x)[:, None], count, 4 * 0.5)).sum(axis=1))

    assert stats.kstest(scores.scores_out / unit, stats.norm(0, 4 * 0.5).cdf).pvalue > 1e-4
    assert stats.kstest(scores.scores_in / unit, with_it).pvalue > 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"sample_rate": dpsgd.ShuffledBatches(10)},
            "`ensemble` must have Poisson or full batches, because a gradient",
        ),
        ({"sample_rate": 0.5}, "`ensemble` must have an expected_batch_size where a gradient is added"),
    ],
)
def test_ensembles_whose_batches_give_it_away_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        poisoning.crafted_gradient_scores(_ensemble(**change), X, Y, trials=4)


@pytest.mark.parametrize(
    ("gradient", "batches", "message"),
    [
        (np.zeros(38), np.ones((2, 16), bool), r"`gradient` must have shape \(39,\), got \(38,\)"),
        (np.zeros((3, 39)), np.ones((2, 16), bool), r"`gradient` must have shape \(16, 39\), got \(3, 39\)"),
        (np.full(39, np.nan), np.ones((2, 16), bool), "`gradient.*` must be finite"),
        (np.zeros(39), np.ones((2, 3), bool), r"`batches` must have shape \(2, 16\), got \(2, 3\)"),
    ],
)
def test_bad_gradients_are_named(gradient, batches, message):
    crafted = dpsgd.PerRun(crafted=dpsgd.CraftedGradient(gradient, batches))
    with pytest.raises(ValueError, match=message):
        _ensemble().run(X, Y, runs=2, per_run=crafted)


def test_another_type_is_refused():
    with pytest.raises(TypeError, match="`crafted` must be of type CraftedGradient"):
        dpsgd.PerRun(crafted=np.zeros(39))
