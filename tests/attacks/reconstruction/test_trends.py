"""The reconstruction paper's trends on its own data and network: fixed seeds, and p-values that are stated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scipy import stats

from leakcore import accounting, attacks, datasets, dpsgd
from leakcore.bounds import orthogonal_success, reconstruction
from leakcore.numerics.limits import clopper_pearson

LOCAL = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[3].parent / "shared" / "data")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (LOCAL / "mnist").is_dir(), reason="no folder of data sets: set LEAKCORE_DATA"),
]


def _play(
    epsilon: float, *, rate: float, clip: float = 0.1, rows: int = 999, q: float = 1.0, steps: int = 100,
    runs: int, methods: tuple[str, ...] = ("sum",), subtract: bool = True,
) -> dict[str, attacks.ReconstructionGame]:  # fmt: skip
    first, rest = datasets.mnist("test", path=LOCAL, download=False).split(rows, seed=0)
    sigma = float(accounting.noise_multiplier(epsilon=epsilon, delta=1e-5, sample_rate=q, steps=steps).value)
    ensemble = dpsgd.Ensemble(
        (784, 10, 10),
        noise_multiplier=sigma,
        max_grad_norm=clip,
        learning_rate=rate,
        steps=steps,
        sample_rate=dpsgd.PoissonBatches(q, expected_batch_size=q * (rows + 1)),
        seed=0,
    )
    return attacks.reconstruction_games(
        ensemble,
        dpsgd.Rows(first.features, first.labels),
        dpsgd.Rows(rest.features, rest.labels),
        attacks.GameRules(subtract_known=subtract),
        methods=methods,
        runs=runs,
    )


def _above(better: attacks.ReconstructionGame, worse: attacks.ReconstructionGame) -> float:
    """One-sided p-value of Fisher's exact test that `better` succeeds no more often. On the same runs the two are
    positively dependent, which makes it conservative."""
    table = [[g.hits, g.trials - g.hits] for g in (better, worse)]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)


def test_known_rows_without_subtraction() -> None:
    """|D₋| = 128, ε = 10: of what the attack wins over guessing with subtraction, less than half is left without it
    (two 99.9% limits); with |D₋| = 999 nothing is: not above guessing at p = 0.001, and below 0.17 at 99.9%."""
    few = {s: _play(10.0, rate=1.29, rows=128, runs=512, subtract=s)["sum"] for s in (True, False)}
    with_it, _ = clopper_pearson(few[True].hits, 512, confidence=0.998)
    _, without = clopper_pearson(few[False].hits, 512, confidence=0.998)
    assert without - 0.1 < 0.5 * (with_it - 0.1)
    many = _play(10.0, rate=10.0, runs=256, subtract=False)["sum"]
    assert stats.binomtest(many.hits, 256, 0.1, alternative="greater").pvalue > 0.001
    assert clopper_pearson(many.hits, 256, confidence=0.998)[1] < 0.17


def test_gap_without_clipping() -> None:
    """ε = 40, where the bound is 1: at C = 0.1 with short steps all gradients are clipped and the attack is within 0.05
    of it (99.9%); with steps that teach it falls significantly (p < 0.001), and knowing the norms helps (p < 0.001)."""
    short = _play(40.0, rate=3.0, runs=256)["sum"]
    assert short.clipped_share > 0.98
    assert clopper_pearson(short.hits, 256, confidence=0.998)[0] > 0.95
    taught = _play(40.0, rate=30.0, runs=256, methods=("sum", "likelihood"))
    assert taught["sum"].clipped_share < 0.9
    assert _above(short, taught["sum"]) < 0.001
    assert _above(taught["likelihood"], taught["sum"]) < 0.001


def test_initial_parameters() -> None:
    """(4, 1e-5)-DP, q = 0.99, all gradients clipped: within 99.9% limits of the paper's 0.32, below the bound, and not
    above the optimum of ten orthogonal candidates in full batches (p > 0.001)."""
    game = _play(4.0, rate=1e-4, rows=4, q=0.99, runs=1024, methods=("top",))["top"]
    low, high = clopper_pearson(game.hits, game.trials, confidence=0.999)
    sigma = float(game.settings["noise_multiplier"])
    assert game.clipped_share > 0.999
    assert low < 0.32 < high
    assert high < reconstruction(sigma, 0.99, 100, kappa=0.1).value + 0.05
    optimum = float(orthogonal_success(sigma, 100, 10).value)
    assert stats.binomtest(game.hits, game.trials, optimum, alternative="greater").pvalue > 0.001
