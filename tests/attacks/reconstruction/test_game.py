"""The reconstruction game: the papers' setting, merging, and batches that are shuffled, fixed in size or allocated."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import attacks, bounds, datasets, dpsgd, mechanisms
from leakcore.attacks.reconstruction import game as _game
from leakcore.attacks.reconstruction import prior_aware
from tests.dpsgd.ensemble import flat_arguments as flat

KNOWN, CANDIDATES, BATCHES, EPOCHS, RUNS = 23, 4, 4, 6, 512
SCHEME_STEPS = BATCHES * EPOCHS
X, Y = 15 * np.eye(KNOWN + 40), np.arange(KNOWN + 40) % 2


def _rows(data: datasets.Dataset) -> dpsgd.Rows:
    return dpsgd.Rows(data.features, data.labels)


def _play_scheme(batches: Any, sigma: float, runs: int = RUNS, **how: Any) -> attacks.ReconstructionGame:
    ensemble = dpsgd.Ensemble(
        (KNOWN + 40, 2), noise_multiplier=sigma, max_grad_norm=0.1, learning_rate=1e-3, steps=SCHEME_STEPS,
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


def test_shuffled_batches() -> None:
    """The optimum for orthogonal candidates over E steps; fixed seed, two-sided p = 0.001. Poisson would claim less."""
    sigma = 1.6
    game = _play_scheme(dpsgd.ShuffledBatches((KNOWN + 1) // BATCHES), sigma)
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


@pytest.mark.full
def test_allocated_batches() -> None:
    """Against 20,000 draws without a training: fixed seeds, two-sided p = 0.001; better than Algorithm 3."""
    sigma = 0.7
    game = _play_scheme(dpsgd.AllocatedBatches(BATCHES, expected_batch_size=6.0), sigma)
    assert game.settings["method"] == "likelihood"
    best = _best_of_allocated(sigma)
    assert abs(game.value - best) < stats.norm.isf(0.0005) * np.sqrt(best * (1 - best) * (1 / RUNS + 1 / 20_000))
    _not_above(game, mechanisms.RandomAllocation(sigma, BATCHES, EPOCHS))
    top = _play_scheme(dpsgd.AllocatedBatches(BATCHES, expected_batch_size=6.0), sigma, method="top")
    assert top.value < game.value
    assert "one batch of each epoch" in game.provenance


def test_likelihood_of_allocated_batches() -> None:
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


@pytest.mark.full
def test_batches_of_a_fixed_size() -> None:
    """Better than guessing (p = 1e-6), and not above the bound under replacement."""
    sigma, size = 0.5, 6
    game = _play_scheme(dpsgd.FixedBatches(size), sigma)
    assert game.settings["method"] == "top"
    assert stats.binomtest(game.hits, game.trials, 1 / CANDIDATES, alternative="greater").pvalue < 1e-6
    _not_above(game, mechanisms.FixedSize(sigma, size, KNOWN + 1, SCHEME_STEPS))
    assert "but not which of them were in a batch, subtracts the average" in game.assumptions.attacker


@pytest.mark.parametrize(
    "batches", [dpsgd.ShuffledBatches(6), dpsgd.FixedBatches(6), dpsgd.AllocatedBatches(4, expected_batch_size=6.0)]
)
@pytest.mark.parametrize("subtract_known", [True, False])
def test_merged_ranges_of_runs(batches: Any, subtract_known: bool) -> None:
    how: dict[str, Any] = {"runs": 48, "subtract_known": subtract_known}
    whole = _play_scheme(batches, 1.0, **how)
    parts = [_play_scheme(batches, 1.0, **{**how, "runs": part}) for part in (range(20), range(20, 48))]  # type: ignore[arg-type]
    merged = parts[0].merge(parts[1])
    assert (merged.hits, merged.settings) == (whole.hits, whole.settings)
    assert ("does not subtract" in whole.assumptions.attacker) is not subtract_known
    assert attacks.ReconstructionGame.from_dict(whole.to_dict()) == whole


COUNTS = ("hits", "trials", "undecided", "clipped", "gradients", "cosine_units", "run_ranges", "value", "interval")
# For ε = 1, 4, 10 at δ = 1e-5 (add/remove), T = 100: σ calibrated by PLD, B_{1/10} = Φ(Φ⁻¹(.1) + √T/σ), and the success
# rate that a trial implementation of this setting gave, with the half-width it stated.
DIGITS = {
    1.0: (37.30635919, 0.155411, 0.165, 0.02),
    4.0: (10.8, 0.361, 0.284, 0.03),
    10.0: (4.998886302, 0.763897, 0.603, 0.03),
}


def _ensemble(noise_multiplier: float, **change) -> dpsgd.Ensemble:
    settings = {"max_grad_norm": 0.1, "learning_rate": 5.0, "steps": 100, "seed": 0} | change
    return flat.ensemble((64, 10, 10), "elu", noise_multiplier=noise_multiplier, **settings)


def _play(noise_multiplier: float, *, known: int = 999, runs: int, game=None, **change) -> attacks.ReconstructionGame:
    first, rest = datasets.digits().split(known, seed=0)
    ensemble = _ensemble(noise_multiplier, **change)
    return flat.game(attacks.reconstruction_game, ensemble, first, rest, runs=runs, **(game or {}))


def _same(a: attacks.ReconstructionGame, b: attacks.ReconstructionGame) -> bool:
    return all(getattr(a, name) == getattr(b, name) for name in COUNTS) and a.settings == b.settings


@pytest.mark.full
def test_setting_on_digits() -> None:
    """ε = 10: not significantly above the bound (p = 0.001, one-sided), and its interval meets the trial's."""
    sigma, bound, trial, half = DIGITS[10.0]
    game = _play(sigma, runs=256)
    assert stats.binomtest(game.hits, game.trials, bound, alternative="greater").pvalue > 0.001
    assert game.interval[0] <= trial + half
    assert game.interval[1] >= trial - half
    assert stats.binomtest(game.hits, game.trials, 0.1, alternative="greater").pvalue < 1e-12
    assert game.clipped_share > 0.99
    assert 0.3 < game.nearest_cosine < 0.95
    assert game.kind == "estimate"
    assert game.adjacency == "add-remove"
    assert game.confidence == 0.95
    assert game.interval[0] < game.value < game.interval[1]


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", DIGITS)
def test_longer_setting_on_digits(epsilon) -> None:
    sigma, bound, trial, half = DIGITS[epsilon]
    game = _play(sigma, runs=1504, seed=17)
    assert stats.binomtest(game.hits, game.trials, bound, alternative="greater").pvalue > 0.001
    assert game.interval[0] <= trial + half
    assert game.interval[1] >= trial - half


def test_no_noise() -> None:
    game = _play(0.0, runs=48, steps=5)
    assert (game.value, game.hits, game.undecided) == (1.0, 48, 0)
    assert game.interval[1] == 1.0


@pytest.mark.full
def test_much_noise() -> None:
    """p = 0.001, two-sided binomial, fixed seed."""
    game = _play(1e5, known=99, runs=2000, steps=4, learning_rate=1e-3)
    assert stats.binomtest(game.hits, game.trials, 0.1).pvalue > 0.001


def test_no_steps() -> None:
    game = _play(1.0, known=99, runs=20, steps=0)
    assert (game.hits, game.undecided, game.trials) == (0, 20, 20)
    assert np.isnan(game.clipped_share)
    assert np.isnan(game.nearest_cosine)


def test_algorithm_3() -> None:
    game = _play(0.0, known=50, runs=16, steps=20, sample_rate=0.5)
    assert game.provenance.endswith("Algorithm 3")
    assert game.hits == 16
    plain = _play(0.0, known=50, runs=16, steps=20, sample_rate=0.5, game={"method": "sum"})
    assert plain.provenance.endswith("Algorithm 2")


@pytest.mark.full
def test_no_subtraction() -> None:
    """Hayes et al. 2023, Figure 10: with 128 known rows and no subtraction the attack is at chance."""
    strong = _play(1.0, known=128, runs=208)
    weak = _play(1.0, known=128, runs=208, game={"subtract_known": False})
    assert strong.value > 0.95
    assert weak.value < 0.25
    assert "does not subtract" in weak.assumptions.attacker


def test_merged_shards() -> None:
    whole = _play(3.0, known=60, runs=50, steps=8)
    shards = [
        _play(3.0, known=60, runs=runs, steps=8, game={"first_run": first, "num_threads": threads})
        for first, runs, threads in [(33, 17, 1), (0, 5, 2), (5, 28, 1)]
    ]
    merged = shards[0].merge(shards[1])
    assert merged.run_ranges == ((0, 5), (33, 50))
    merged = shards[2].merge(merged)
    assert merged.run_ranges == ((0, 50),)
    assert _same(merged, whole)
    other_seed = _play(3.0, known=60, runs=50, steps=8, seed=1)
    assert not all(getattr(other_seed, name) == getattr(whole, name) for name in COUNTS)


def test_portions(monkeypatch) -> None:
    whole = _play(3.0, known=60, runs=50, steps=8)
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(_game, "_PORTION", 16)
    pieces = _play(3.0, known=60, runs=50, steps=8, game={"progress": lambda *at: calls.append(at)})
    assert _same(pieces, whole)
    assert calls == [(16, 50), (32, 50), (48, 50), (50, 50)]


class _Counting(ThreadPoolExecutor):
    """How many tasks were ever out at once."""

    most = out = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.out += 1
        self.most = max(self.most, self.out)
        future = super().submit(*args, **kwargs)
        future.add_done_callback(lambda _: setattr(self, "out", self.out - 1))
        return future


def test_rows_sent_to_a_scheduler(monkeypatch) -> None:
    whole = _play(3.0, known=60, runs=50, steps=8)
    monkeypatch.setattr(_game, "_TASK", 5)
    monkeypatch.setattr(_game, "_LEAST_AHEAD", 2)
    rows = 1797 * (64 * 4 + 8)
    # Of ten tasks some may be done before the last one is out.
    for copies, least, most in ((100, 3, 10), (3, 3, 3), (1, 2, 2)):
        monkeypatch.setattr(_game, "_BYTES_AHEAD", copies * rows)
        with _Counting(1) as executor:
            assert _same(_play(3.0, known=60, runs=50, steps=8, game={"executor": executor}), whole)
        assert least <= executor.most <= most


def test_bad_merges() -> None:
    game = _play(3.0, known=60, runs=16, steps=3)
    with pytest.raises(ValueError, match="run 8 is in both games and would count twice"):
        game.merge(_play(3.0, known=60, runs=16, steps=3, game={"first_run": 8}))
    with pytest.raises(ValueError, match=r"`other` must be of an equal game, got noise_multiplier=2.0 there"):
        game.merge(_play(2.0, known=60, runs=16, steps=3, game={"first_run": 16}))
    first, rest = datasets.digits().split(60, seed=1)
    elsewhere = attacks.reconstruction_game(_ensemble(3.0, steps=3), _rows(first), _rows(rest), runs=range(16, 32))
    with pytest.raises(ValueError, match="data='"):
        game.merge(elsewhere)
    with pytest.raises(TypeError, match=r"`other` must be a ReconstructionGame, got int"):
        game.merge(3)


def test_json() -> None:
    game = _play(3.0, known=60, runs=16, steps=3)
    back = attacks.ReconstructionGame.from_dict(json.loads(json.dumps(game.to_dict())))
    assert back == game
    assert _same(back, game)
    assert back.merge(_play(3.0, known=60, runs=16, steps=3, game={"first_run": 16})).trials == 32
    assert json.loads(game.to_json())["hits"] == game.hits
    with pytest.raises(ValueError, match=r"`schema` must be 'leakcore.reconstruction_game/3', got 'other'"):
        attacks.ReconstructionGame.from_dict(game.to_dict() | {"schema": "other"})
    with pytest.raises(ValueError, match=r"`hits` and `undecided` must be at least 0 and add.*, got 17 and 0"):
        attacks.ReconstructionGame.from_dict(game.to_dict() | {"hits": 17})
    with pytest.raises(ValueError, match=r"`value` must be hits/trials, 1/16, got 0.99"):
        attacks.ReconstructionGame.from_dict(game.to_dict() | {"value": 0.99})
    with pytest.raises(ValueError, match="must be among the gradients"):
        attacks.ReconstructionGame.from_dict(game.to_dict() | {"clipped": -5})
    with pytest.raises(ValueError, match="it lacks quantity, value, kind, confidence, interval, method,"):
        attacks.ReconstructionGame.from_dict({"schema": attacks.ReconstructionGame.schema})


@pytest.mark.parametrize("name", ["subtract_known", "nearest_cosines"])
def test_switches(name) -> None:
    with pytest.raises(TypeError, match=f"`{name}` must be True(,| or) False.*, got 'no'"):
        _play(3.0, known=60, runs=16, steps=3, game={name: "no"})


def test_priors() -> None:
    """Uniform candidates and target places: chi-square, p = 0.001, fixed seed."""
    candidates, target = _game.draw_candidates(seed=3, first_run=0, runs=5000, num_candidates=4, pool=20)
    assert all(len(set(row)) == 4 for row in candidates.tolist())
    assert stats.chisquare(np.bincount(target, minlength=4)).pvalue > 0.001
    assert stats.chisquare(np.bincount(candidates[:, 0], minlength=20)).pvalue > 0.001
    later, later_target = _game.draw_candidates(seed=3, first_run=40, runs=7, num_candidates=4, pool=20)
    assert (later == candidates[40:47]).all()
    assert (later_target == target[40:47]).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_candidates": 1}, ValueError, "`num_candidates` must be at least 2, got 1"),
        ({"num_candidates": 7}, ValueError, r"`num_candidates` must be at most the 6 rows of the pool, got 7"),
        ({"runs": 0}, ValueError, "`runs` must be at least 1, got 0"),
        ({"first_run": -1}, ValueError, r"`runs` must start in \[0, 4611686018427387904\], got range\(-1, 1\)"),
        ({"method": "best"}, ValueError, "`method` must be 'auto', 'sum', 'top' or 'likelihood', got 'best'"),
        (
            {"prior": [0.5, 0.5]},
            ValueError,
            r"`prior` must give one probability to each of 3 candidates, got shape \(2,\)",
        ),
        (
            {"prior": [[0.5, 0.25, 0.25]] * 2},
            ValueError,
            r"`prior` must have shape \(3,\), one prior for all runs, got \(2, 3\)",
        ),
        ({"progress": 1}, TypeError, "`progress` must be callable or None, got 1"),
        ({"prior": [0.5, 0.2, 0.2]}, ValueError, r"`prior` must sum to 1, got 0\.8\d*"),
        (
            {"prior": [0.5, 0.25, 0.25], "method": "sum"},
            ValueError,
            r"`prior` must be None with method='sum', which takes all candidates as equally likely",
        ),
        ({"confidence": 1.0}, ValueError, r"`confidence` must be in \(0, 1 - 1e-12\], got 1.0"),
        ({"pool_features": np.zeros((6, 3))}, ValueError, r"`pool.features` must have shape \(rows,.*, got \(6, 3\)"),
        ({"pool_labels": np.zeros(6)}, TypeError, r"`pool.labels` must be of an integer type, got float64"),
        ({"known_labels": np.full(4, 2)}, ValueError, r"`known.labels` must be in \[0, 1\] \(last of.*, got 2"),
    ],
)
def test_errors(change, error, message) -> None:
    good = {
        "known_features": np.zeros((4, 2)), "known_labels": np.zeros(4, dtype=int), "pool_features": np.zeros((6, 2)),
        "pool_labels": np.zeros(6, dtype=int), "num_candidates": 3, "runs": 2,
    } | change  # fmt: skip
    ensemble = dpsgd.Ensemble((2, 2), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=1, seed=0)
    known, pool = (dpsgd.Rows(good.pop(f"{n}_features"), good.pop(f"{n}_labels")) for n in ("known", "pool"))
    with pytest.raises(error, match=message):
        flat.game(attacks.reconstruction_game, ensemble, known, pool, **good)


def test_likelihood_without_clipping() -> None:
    """Algorithm 2 favours the candidate with the longest gradient; Appendix G corrects by n². 512 runs on the same
    gradients; the difference exceeds 3.29 standard errors of unpaired ones (p < 0.001). Fixed seed."""
    first, rest = datasets.digits().split(99, seed=0)
    ensemble = dpsgd.Ensemble(
        (64, 10), noise_multiplier=1.5, max_grad_norm=4.0, learning_rate=0.2, steps=60, seed=1
    )  # fmt: skip
    games = attacks.reconstruction_games(ensemble, _rows(first), _rows(rest), methods=("sum", "likelihood"), runs=512)
    plain, best = games["sum"], games["likelihood"]
    assert plain.clipped_share < 0.2
    spread = (plain.value * (1 - plain.value) + best.value * (1 - best.value)) / 512
    assert best.value - plain.value > 3.29 * spread**0.5
