"""The game where batches are shuffled, of a fixed size or allocated: what the attacker knows, and how well he does.

Candidates are nearly orthogonal and clipped, so that the best attack's success can be computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import attacks, bounds, dpsgd, mechanisms
from leakcore.attacks.reconstruction import prior_aware

KNOWN, CANDIDATES, BATCHES, EPOCHS, RUNS = 23, 4, 4, 6, 512
STEPS = BATCHES * EPOCHS
X, Y = 15 * np.eye(KNOWN + 40), np.arange(KNOWN + 40) % 2


def _play(batches: Any, sigma: float, runs: int = RUNS, **how: Any) -> attacks.ReconstructionGame:
    ensemble = dpsgd.Ensemble(
        (KNOWN + 40, 2), noise_multiplier=sigma, max_grad_norm=0.1, learning_rate=1e-3, steps=STEPS,
        sample_rate=batches, seed=8,
    )  # fmt: skip
    rules = attacks.GameRules(CANDIDATES, subtract_known=how.pop("subtract_known", True))
    known, pool = dpsgd.Rows(X[:KNOWN], Y[:KNOWN]), dpsgd.Rows(X[KNOWN:], Y[KNOWN:])
    return attacks.reconstruction_game(ensemble, known, pool, rules, runs=runs, **how)


def _not_above(game: attacks.ReconstructionGame, mechanism: mechanisms.Mechanism) -> None:
    """One-sided, p = 0.001; under one adjacency."""
    bound = bounds.reconstruction(mechanism, kappa=1 / CANDIDATES)
    assert game.adjacency == bound.adjacency
    assert stats.binomtest(game.hits, game.trials, float(bound.value), alternative="greater").pvalue > 0.001


def test_shuffled_batches_whose_order_is_known_are_one_gaussian_step_an_epoch() -> None:
    """The optimum for orthogonal candidates over E steps; fixed seed, two-sided p = 0.001. Poisson would claim less."""
    sigma = 1.6
    game = _play(dpsgd.ShuffledBatches((KNOWN + 1) // BATCHES), sigma)
    assert game.settings["method"] == "sum"
    assert game.nearest_cosine < 0.01
    assert game.clipped_share == 1
    best = bounds.orthogonal_success(sigma, EPOCHS, CANDIDATES)
    assert stats.binomtest(game.hits, game.trials, float(best.value)).pvalue > 0.001
    mechanism = mechanisms.Shuffled(sigma, BATCHES, EPOCHS)
    _not_above(game, mechanism)
    claimed = bounds.reconstruction(mechanism, kappa=1 / CANDIDATES).poisson_claim
    assert stats.binomtest(game.hits, game.trials, float(claimed), alternative="greater").pvalue < 1e-6  # type: ignore[arg-type]
    assert "and the order of every epoch" in game.assumptions.attacker


def _best_of_allocated(sigma: float, sims: int = 20_000) -> float:
    """Success of the likelihood on orthogonal candidates, drawn without any training."""
    rng = np.random.default_rng(1)
    noise = sigma * rng.normal(size=(sims, CANDIDATES, EPOCHS, BATCHES))
    where = rng.integers(BATCHES, size=(sims, EPOCHS))
    np.put_along_axis(noise[:, 0], where[..., None], np.take_along_axis(noise[:, 0], where[..., None], -1) + 1, -1)
    score = np.logaddexp.reduce((noise - 0.5) / sigma**2, axis=-1).sum(axis=-1)
    return float((score.argmax(axis=1) == 0).mean())


def test_allocated_batches_are_attacked_by_their_likelihood() -> None:
    """Against 20,000 draws without a training: fixed seeds, two-sided p = 0.001; better than Algorithm 3."""
    sigma = 0.7
    game = _play(dpsgd.AllocatedBatches(BATCHES, expected_batch_size=6.0), sigma)
    assert game.settings["method"] == "likelihood"
    best = _best_of_allocated(sigma)
    assert abs(game.value - best) < stats.norm.isf(0.0005) * np.sqrt(best * (1 - best) * (1 / RUNS + 1 / 20_000))
    _not_above(game, mechanisms.RandomAllocation(sigma, BATCHES, EPOCHS))
    top = _play(dpsgd.AllocatedBatches(BATCHES, expected_batch_size=6.0), sigma, method="top")
    assert top.value < game.value
    assert "one batch of each epoch" in game.provenance


def test_the_likelihood_of_allocated_batches_is_the_sum_over_epochs() -> None:
    rng = np.random.default_rng(0)
    dots, norms = rng.normal(size=(7, 2, 3)), rng.uniform(0.2, 1, size=(7, 2, 3))
    running = prior_aware.rule(
        "likelihood", max_grad_norm=1.5, sample_rate=1 / 3, steps=7, noise_multiplier=0.8, batches=3
    ).start((2, 3))
    ratios = np.exp((2 * dots - norms**2) / (2 * (0.8 * 1.5) ** 2))
    expected = np.zeros((2, 3))
    for step in range(7):
        running.add(dots[step], norms[step])
        first = step - step % 3
        partial = ratios[first : step + 1].sum(axis=0) + (2 - step % 3)
        np.testing.assert_allclose(running.scores(), expected + np.log(partial / 3), rtol=1e-12)
        if step % 3 == 2:
            expected = expected + np.log(partial / 3)


def test_batches_of_a_fixed_size_are_attacked_without_knowing_them() -> None:
    """Better than guessing (p = 1e-6), and not above the bound under replacement."""
    sigma, size = 0.5, 6
    game = _play(dpsgd.FixedBatches(size), sigma)
    assert game.settings["method"] == "top"
    assert stats.binomtest(game.hits, game.trials, 1 / CANDIDATES, alternative="greater").pvalue < 1e-6
    _not_above(game, mechanisms.FixedSize(sigma, size, KNOWN + 1, STEPS))
    assert "but not which of them were in a batch, subtracts the average" in game.assumptions.attacker


@pytest.mark.parametrize(
    "batches", [dpsgd.ShuffledBatches(6), dpsgd.FixedBatches(6), dpsgd.AllocatedBatches(4, expected_batch_size=6.0)]
)
@pytest.mark.parametrize("subtract_known", [True, False])
def test_games_over_ranges_of_runs_merge(batches: Any, subtract_known: bool) -> None:
    how: dict[str, Any] = {"runs": 48, "subtract_known": subtract_known}
    whole = _play(batches, 1.0, **how)
    parts = [_play(batches, 1.0, **{**how, "runs": part}) for part in (range(20), range(20, 48))]  # type: ignore[arg-type]
    merged = parts[0].merge(parts[1])
    assert (merged.hits, merged.settings) == (whole.hits, whole.settings)
    assert ("does not subtract" in whole.assumptions.attacker) is not subtract_known
    assert attacks.ReconstructionGame.from_dict(whole.to_dict()) == whole
