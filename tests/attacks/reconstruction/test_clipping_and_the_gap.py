"""Where attack and bound part: gradients that are not clipped, and (slow) the paper's own MNIST setting."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from leakcore import attacks, datasets, dpsgd

LOCAL = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[3].parent / "shared" / "data")


def test_where_gradients_are_not_clipped_the_likelihood_beats_algorithm_2() -> None:
    """Algorithm 2 favours the candidate with the longest gradient; Appendix G corrects by n². 512 runs on the same
    gradients; the difference exceeds 3.29 standard errors of unpaired ones (p < 0.001). Fixed seed."""
    first, rest = datasets.digits().split(99, seed=0)
    ensemble = dpsgd.Ensemble(
        (64, 10), noise_multiplier=1.5, max_grad_norm=4.0, learning_rate=0.2, steps=60, seed=1
    )  # fmt: skip
    games = attacks.reconstruction_games(
        ensemble,
        dpsgd.Rows(first.features, first.labels),
        dpsgd.Rows(rest.features, rest.labels),
        methods=("sum", "likelihood"),
        runs=512,
    )
    plain, best = games["sum"], games["likelihood"]
    assert plain.clipped_share < 0.2
    spread = (plain.value * (1 - plain.value) + best.value * (1 - best.value)) / 512
    assert best.value - plain.value > 3.29 * spread**0.5


@pytest.mark.slow
@pytest.mark.skipif(not (LOCAL / "mnist").is_dir(), reason="no folder of data sets: set LEAKCORE_DATA")
def test_the_papers_mnist_setting() -> None:
    """784–10–10, |D| = 1,000, T = 100, C = 0.1, prior 10, ε = 10 (σ by PLD): below the n-candidate optimum for
    orthogonal gradients (p = 0.001, one-sided), far above chance; the digits' gradients are correlated."""
    sigma = 4.998886302
    first, rest = datasets.mnist("test", path=LOCAL).split(999, seed=0)
    ensemble = dpsgd.Ensemble(
        (784, 10, 10), noise_multiplier=sigma, max_grad_norm=0.1, learning_rate=5.0, steps=100, seed=0
    )  # fmt: skip
    game = attacks.reconstruction_game(
        ensemble, dpsgd.Rows(first.features, first.labels), dpsgd.Rows(rest.features, rest.labels), runs=1024
    )
    shift = 100**0.5 / sigma
    optimum, _ = integrate.quad(lambda z: stats.norm.pdf(z) * stats.norm.cdf(z + shift) ** 9, -12, 12)
    assert stats.binomtest(game.hits, game.trials, optimum, alternative="greater").pvalue > 0.001
    assert game.value > 0.55
    assert game.clipped_share > 0.9
    assert np.isfinite(game.nearest_cosine)
