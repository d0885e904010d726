"""Poisoning for audits: which rows it makes, scores of trained models in two worlds, and crafted gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import accounting, bounds, datasets, dpsgd, models
from leakcore.attacks import poisoning
from tests.dpsgd.ensemble import flat_arguments as flat

DIGITS = datasets.digits()
TWO = DIGITS.labels < 2
X, Y = DIGITS.features[TWO][:200], DIGITS.labels[TWO][:200]
TX, TY = DIGITS.features[TWO][200:260], DIGITS.labels[TWO][200:260]


def _ensemble(**more):
    settings = {
        "noise_multiplier": 0.0, "max_grad_norm": 1.0, "learning_rate": 2.0, "steps": 20, "initialisation": "fixed",
        "seed": 5,
    }  # fmt: skip
    return flat.ensemble((64, 8, 2), "relu", **{**settings, **more})


def test_backdoor_corner():
    attack = poisoning.Backdoor((3, 4, 5), label=0, patch=2, value=0.75)
    rows = np.random.default_rng(0).random((2, 60))
    before = rows.copy()
    image = attack.perturb(rows).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(rows, before)
    assert (image[:, :, :2, :2] == 0.75).all()
    image[:, :, :2, :2] = before.reshape(image.shape)[:, :, :2, :2]
    np.testing.assert_array_equal(image.reshape(2, 60), before)


def test_backdoor_rows():
    attack = poisoning.Backdoor((1, 8, 8), label=1, patch=3)
    poisoned = attack.poison(X, Y, TX, TY, k=4, seed=2, adjacency="replace")
    assert (poisoned.k, len(poisoned.common_labels)) == (4, len(Y) - 4)
    assert (poisoned.clean_labels != 1).all()
    assert (poisoned.poison_labels == 1).all()
    np.testing.assert_array_equal(poisoned.poison_features, attack.perturb(poisoned.clean_features))
    np.testing.assert_array_equal(poisoned.test_features, attack.perturb(TX[TY != 1]))
    whole = np.concatenate([poisoned.common_features, poisoned.clean_features])
    np.testing.assert_array_equal(np.sort(whole, axis=0), np.sort(X, axis=0))
    again = attack.poison(X, Y, TX, TY, k=4, seed=2, adjacency="replace")
    np.testing.assert_array_equal(again.clean_features, poisoned.clean_features)
    assert not np.array_equal(
        attack.poison(X, Y, TX, TY, k=4, seed=3, adjacency="replace").clean_features, poisoned.clean_features
    )


def test_clipbkd_direction():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 6)) * np.array([3, 2, 1, 0.01, 1, 2])
    point = poisoning.ClipBKD().direction(x)
    _, _, vt = np.linalg.svd(x)
    assert abs(point @ vt[-1]) == pytest.approx(np.linalg.norm(x, axis=1).mean(), rel=1e-9)
    assert point[np.abs(point).argmax()] > 0


def test_clipbkd_tied_directions():
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(2)
    constant = rng.normal(size=(50, 6)) * np.array([3, 2, 0, 1, 0, 2])
    point = poisoning.ClipBKD().direction(constant)
    np.testing.assert_allclose(point / np.linalg.norm(point), np.eye(6)[2], atol=1e-12)
    few = rng.normal(size=(300, 400)) @ np.diag(np.linspace(1, 2, 400))
    values = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            values.append(poisoning.ClipBKD().direction(few))
    np.testing.assert_array_equal(*values)
    assert np.abs(few @ values[0]).max() < 1e-9 * np.linalg.norm(few)
    # Whichever basis of the null space a decomposition returns: rows in another order have the same one.
    np.testing.assert_allclose(poisoning.ClipBKD().direction(few[::-1]), values[0], atol=1e-9 * np.abs(values[0]).max())


def test_clipbkd_label():
    poisoned = poisoning.ClipBKD(lambda rows: np.array([[0.2, 0.1, 0.7]])).poison(X, Y, k=3, adjacency="replace")
    assert (poisoned.poison_labels == 1).all()
    assert poisoned.poison_features.shape == (3, 64)
    assert (poisoned.poison_features == poisoned.poison_features[0]).all()
    np.testing.assert_array_equal(poisoned.test_features, poisoned.poison_features[:1])
    fitted = poisoning.ClipBKD().poison(X, Y, adjacency="replace")
    assert fitted.poison_labels[0] in (0, 1)


@pytest.mark.parametrize("layers", [(64, 8, 2), (64, 1)])
def test_losses(layers):
    ensemble = dpsgd.Ensemble(
        dpsgd.Network(layers, "relu", dtype="float64"),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        learning_rate=1.0,
        steps=3,
        seed=1,
    )
    run = ensemble.run(X, Y, runs=range(4, 7))
    result = poisoning.losses(run, TX, TY)
    with torch.no_grad():
        logits = run.module(5)(torch.from_numpy(TX))
    if layers[-1] == 1:
        p = torch.sigmoid(logits[:, 0]).numpy()
        wanted = -np.log(np.where(TY == 1, p, 1 - p))
    else:
        wanted = -torch.log_softmax(logits, 1).numpy()[np.arange(len(TY)), TY]
    np.testing.assert_allclose(result[1], wanted, rtol=1e-9)


def test_scores_against_training():
    poisoned = poisoning.ClipBKD().poison(X, Y, k=2, adjacency="replace")
    ensemble = _ensemble(noise_multiplier=1.0, initialisation="per-run", sample_rate=0.5)
    scores = poisoning.poisoning_scores(ensemble, poisoned, trials=range(30, 35))
    run = ensemble.run(
        poisoned.common_features,
        poisoned.common_labels,
        runs=range(30, 35),
        per_run=dpsgd.PerRun(dpsgd.Rows(poisoned.clean_features, poisoned.clean_labels)),
    )
    # float32: the same models, their losses from a product of another shape.
    np.testing.assert_allclose(scores.scores_out, poisoned.statistic(run), rtol=1e-5)
    assert (scores.k, scores.name, scores.first_trial) == (2, "clipbkd", 30)
    part = poisoning.poisoning_scores(ensemble, poisoned, trials=range(32, 34))
    np.testing.assert_array_equal(part.scores_in, scores.scores_in[2:4])
    assert not np.isin(scores.scores_in, scores.scores_out).any()


def test_no_noise():
    poisoned = poisoning.ClipBKD().poison(X, Y, adjacency="replace")
    scores = poisoning.poisoning_scores(_ensemble(sample_rate=0.2, steps=60), poisoned, trials=40)
    proof = bounds.epsilon_lower_bound_from_scores(
        scores.scores_in, scores.scores_out, confidence=0.95, adjacency="replace"
    )
    assert proof.value == pytest.approx(bounds.epsilon_opt(20, confidence=0.95).value)


def test_private_mechanism():
    # Full batches, T = 20, σ = 20: μ = 2√T/σ under replacement. The bound holds with 99.9%.
    poisoned = poisoning.ClipBKD().poison(X, Y, adjacency="replace")
    scores = poisoning.poisoning_scores(_ensemble(noise_multiplier=20.0), poisoned, trials=100)
    proof = bounds.epsilon_lower_bound_from_scores(
        scores.scores_in,
        scores.scores_out,
        hypothesis=bounds.Hypothesis("gdp"),
        delta=1e-5,
        confidence=0.999,
        adjacency="replace",
    )
    assert proof.mu <= 2 * 20**0.5 / 20


def test_progress():
    calls = []
    poisoned = poisoning.ClipBKD().poison(X, Y, adjacency="replace")
    how = dpsgd.Execution(progress=lambda *a: calls.append(a))
    poisoning.poisoning_scores(_ensemble(steps=1), poisoned, trials=40, execution=how)
    assert calls[-1] == (80, 80)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_bad_input():
    with pytest.raises(ValueError, match=r"`shape` must be \(channels, height, width\), got \(8, 8\)"):
        poisoning.Backdoor((8, 8), label=1)
    with pytest.raises(ValueError, match=r"`patch` must be in \[1, 8\], got 9"):
        poisoning.Backdoor((1, 8, 8), label=1, patch=9)
    with pytest.raises(
        ValueError, match=r"`features` must have shape \(rows, 64\), images of \(1, 8, 8\), got \(2, 5\)"
    ):
        poisoning.Backdoor((1, 8, 8), label=1).perturb(np.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"`features` must be floating, got uint8; `value` is in their units"):
        poisoning.Backdoor((1, 8, 8), label=1).perturb(np.zeros((2, 64), np.uint8))
    with pytest.raises(ValueError, match=r"`labels` must be classes from 0 on, got -1"):
        poisoning.ClipBKD().poison(X, np.where(Y == 0, -1, Y), adjacency="replace")
    with pytest.raises(ValueError, match="`test_labels` must have rows of other labels than 1, or none is"):
        poisoning.Backdoor((1, 8, 8), label=1).poison(X, Y, TX[TY == 1], TY[TY == 1], adjacency="replace")
    with pytest.raises(ValueError, match=r"`k` must be in \[1, 200\], got 0"):
        poisoning.ClipBKD().poison(X, Y, k=0, adjacency="replace")
    with pytest.raises(TypeError, match="`adjacency` must be given to poison: was a row left out"):
        poisoning.ClipBKD().poison(X, Y)
    with pytest.raises(
        ValueError, match=r"`labels` must hold one integer for each of 200 rows, got int64 of shape \(3,\)"
    ):
        poisoning.ClipBKD().poison(X, Y[:3], adjacency="replace")
    with pytest.raises(
        TypeError, match=r"`probabilities` must be a function from features to class probabilities, got 3"
    ):
        poisoning.ClipBKD(3)
    with pytest.raises(ValueError, match=r"`probabilities` must return finite numbers of shape .*got"):
        poisoning.ClipBKD(lambda rows: [0.1]).poison(X, Y, adjacency="replace")
    with pytest.raises(
        TypeError, match=r"`poisoning` must be a result of Backdoor\.poison or ClipBKD\.poison, got None"
    ):
        poisoning.poisoning_scores(_ensemble(), None, trials=2)
    poisoned = poisoning.ClipBKD().poison(X, Y, adjacency="replace")
    for trials, message in (
        (range(3, 3), r"`trials` must be a range of consecutive numbers, at least one, got range\(3, 3\)"),
        (range(2**40, 2**40 + 1), r"`trials` must start in \[0,.*, got range\(1099511627776, 1099511627777\)"),
        (0, "`trials` must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            poisoning.poisoning_scores(_ensemble(), poisoned, trials=trials)


def test_add_remove():
    for poisoned in (
        poisoning.ClipBKD().poison(X, Y, k=3, adjacency="add-remove"),
        poisoning.ZeroInput().poison(X, Y, k=3, adjacency="add-remove"),
        poisoning.Backdoor((1, 8, 8), label=1).poison(X, Y, TX, TY, k=3, adjacency="add/remove"),
    ):
        assert (poisoned.adjacency, poisoned.k, len(poisoned.clean_labels)) == ("add-remove", 3, 0)
        np.testing.assert_array_equal(poisoned.common_features, X)
    with pytest.raises(ValueError, match="`ensemble` must have an expected_batch_size"):
        poisoning.poisoning_scores(_ensemble(), poisoned, trials=2)
    scores = poisoning.poisoning_scores(_ensemble(expected_batch_size=200, steps=2), poisoned, trials=3)
    assert scores.adjacency == "add-remove"
    assert len(scores.scores_in) == len(scores.scores_out) == 3


def test_row_of_zeros():
    poisoned = poisoning.ZeroInput(1).poison(X, Y, adjacency="replace")
    assert not poisoned.poison_features.any()
    assert poisoned.poison_labels.tolist() == poisoned.test_labels.tolist() == [1]
    assert poisoning.ZeroInput().poison(X, Y, adjacency="replace").poison_labels[0] in (0, 1)
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((64, 2), dtype="float64"),
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        learning_rate=1.0,
        steps=1,
        sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=1.0),
        seed=2,
    )
    none, one = (
        ensemble.run(np.zeros((0, 64)), np.zeros(0, int), runs=1, per_run=dpsgd.PerRun(dpsgd.Rows(f, y))).parameters[0]
        for f, y in ((np.zeros((1, 64)), np.array([0])), (np.zeros((1, 64)), np.array([1])))
    )
    assert (none[:128] == one[:128]).all()
    assert (none[128:] != one[128:]).all()


def test_frozen_features():
    torch.manual_seed(0)
    frozen = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.Tanh())
    images = X.astype(np.float32)
    attack = poisoning.FrozenClipBKD(frozen, (1, 8, 8), steps=200)
    poisoned = attack.poison(images, Y, k=2, adjacency="replace")
    assert poisoned.spread[1] < poisoned.spread[0] / 4
    assert poisoned.image.shape == (1, 8, 8)
    assert 0 <= poisoned.image.min() <= poisoned.image.max() <= 1
    with torch.no_grad():
        wanted = frozen(torch.from_numpy(poisoned.image)[None]).numpy()
    np.testing.assert_allclose(poisoned.poison_features, np.repeat(wanted, 2, axis=0), rtol=1e-6)
    with torch.no_grad():
        clean = frozen(torch.from_numpy(images).reshape(-1, 1, 8, 8)).numpy()
    np.testing.assert_allclose(
        np.sort(np.concatenate([poisoned.common_features, poisoned.clean_features]), 0), np.sort(clean, 0)
    )
    with pytest.raises(
        ValueError, match=r"`images` must have shape \(rows, 64\), images of \(1, 8, 8\), got \(200, 63\)"
    ):
        attack.poison(images[:, :63], Y, adjacency="replace")
    # Of no row are the features as short along the poison's, and the spread is what it says.
    direction = wanted[0] / np.linalg.norm(wanted[0])
    assert np.sqrt(np.mean((clean @ direction) ** 2)) == pytest.approx(poisoned.spread[1], rel=1e-4)
    lengths = np.linalg.norm(clean, axis=1, keepdims=True)
    assert np.sqrt(((clean @ (clean / lengths).T) ** 2).mean(axis=0)).min() > 2 * poisoned.spread[1]


def test_mean_image_without_features():
    """Features that are all zero have no direction, so the descent could not start."""
    dead = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU(), torch.nn.Threshold(2.0, 0.0))
    images = X.astype(np.float32)
    with pytest.raises(ValueError, match="`extractor` must give the mean image features that are not all zero"):
        poisoning.FrozenClipBKD(dead, (1, 8, 8), steps=3).poison(images, Y, adjacency="replace")


def test_contrast():
    for attack in (poisoning.ClipBKD(contrast=True), poisoning.ZeroInput(contrast=True)):
        poisoned = attack.poison(X, Y, k=2, adjacency="replace")
        np.testing.assert_array_equal(poisoned.clean_features, poisoned.poison_features)
        assert (poisoned.clean_labels != poisoned.poison_labels).all()
        assert poisoned.adjacency == "replace"
        added = attack.poison(X, Y, k=2, adjacency="add-remove")
        assert len(added.clean_labels) == 0
    # Two classes: the clipped gradients point apart, 2C.
    poisoned = poisoning.ClipBKD(contrast=True).poison(X, Y, adjacency="replace")
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((64, 2), initialisation="fixed", dtype="float64"),
        noise_multiplier=0.0,
        max_grad_norm=0.01,
        learning_rate=1.0,
        steps=1,
        sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=1.0),
        seed=2,
    )
    ends = [
        ensemble.run(X, Y, runs=1, per_run=dpsgd.PerRun(dpsgd.Rows(f, y))).parameters[0]
        for f, y in (
            (poisoned.clean_features, poisoned.clean_labels),
            (poisoned.poison_features, poisoned.poison_labels),
        )
    ]
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(0.02, rel=1e-9)


def test_sweep_over_k():
    poisoned = poisoning.ClipBKD().poison(X, Y, k=3, adjacency="replace")
    ensemble = _ensemble(noise_multiplier=1.0, steps=3)
    swept = poisoning.poisoning_sweep(ensemble, poisoned, (1, 3), trials=4)
    assert swept[1].scores_out is swept[3].scores_out
    alone = poisoning.poisoning_scores(ensemble, poisoned, trials=4)
    np.testing.assert_array_equal(alone.scores_in, swept[3].scores_in)
    assert not np.array_equal(swept[1].scores_in, swept[3].scores_in)
    with pytest.raises(ValueError, match=r"`ks` must be in \[1, 3\], got 4"):
        poisoning.poisoning_sweep(ensemble, poisoned, (4,), trials=4)
    with pytest.raises(ValueError, match=r"`ks` must hold at least one number, each once, got \(1, 1\)"):
        poisoning.poisoning_sweep(ensemble, poisoned, (1, 1), trials=4)


@pytest.mark.parametrize("adjacency", ["replace", "add-remove"])
def test_frozen_network(adjacency):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        extractor = models.conv_extractor(4)
    images = np.random.default_rng(0).random((12, 3 * 16 * 16)).astype(np.float32)
    labels = np.arange(12) % 2
    poisoned = poisoning.Backdoor((3, 16, 16), label=1).poison(images, labels, images, labels, k=2, adjacency=adjacency)
    deep = poisoning.through(poisoned, extractor, (3, 16, 16))
    assert (deep.adjacency, deep.k) == (adjacency, 2)
    wanted = models.extract_features(extractor, poisoned.poison_features.reshape(-1, 3, 16, 16))
    assert (deep.poison_features == wanted).all()
    assert deep.test_features.shape == (len(poisoned.test_features), wanted.shape[1])
    assert deep.clean_features.shape == (0 if adjacency == "add-remove" else 2, wanted.shape[1])
    assert len(deep.common_features) == len(poisoned.common_features)
    assert (deep.common_labels == poisoned.common_labels).all()


POINTS, CLASSES = np.random.default_rng(0).standard_normal((30, 12)), np.arange(30) % 3
POINTS[:, 4] = 0.0  # no row has a gradient there


def _crafted_ensemble(**more: Any) -> dpsgd.Ensemble:
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


def test_gradient_clipping_and_batches():
    """Three steps, a gradient of norm 5 on a weight that rows of zeros do not touch."""
    ensemble = _crafted_ensemble(steps=3)
    gradient = np.zeros(39)
    gradient[7] = 5.0
    batches = np.array([[True, True, False], [False, False, False], [True, True, True]])
    moved = _difference(ensemble, gradient, batches)
    assert moved[:, 7] == pytest.approx(np.array([-2, 0, -3]) * 0.5 / 30, abs=1e-6)
    assert np.abs(np.delete(moved, 7, axis=1)).max() < 1e-6


def test_gradients_by_step():
    steps = np.zeros((3, 39))
    steps[0, 1], steps[1, 2], steps[2, 3] = 0.5, -0.25, 2.0
    moved = _difference(_crafted_ensemble(steps=3), steps, np.ones((1, 3), bool))
    assert moved[0, 1:4] == pytest.approx(np.array([-0.5, 0.25, -1.0]) * 0.5 / 30, abs=1e-6)


def test_fault_of_clipping_batches():
    gradient = np.zeros(39)
    gradient[7] = 50.0
    moved = _difference(_crafted_ensemble(steps=1, fault=dpsgd.Fault(clip="batch")), gradient, np.ones((1, 1), bool))
    assert moved[0, 7] < -5 * 0.5 / 30  # 50 where the mechanism allows 1; the mean is clipped to C·30


def test_threads_and_ranges():
    ensemble = _crafted_ensemble(sample_rate=dpsgd.PoissonBatches(0.3, expected_batch_size=9))
    whole = poisoning.crafted_gradient_scores(ensemble, POINTS, CLASSES, trials=40, references=2)
    part = poisoning.crafted_gradient_scores(
        ensemble, POINTS, CLASSES, trials=range(20, 40), references=2, execution=dpsgd.Execution(num_threads=2)
    )
    assert np.array_equal(whole.scores_in[20:], part.scores_in)
    assert np.array_equal(whole.scores_out[20:], part.scores_out)


def test_full_batches():
    """μ = √16/2 = 2; the means of 2,000 trials a side differ by 2 standard deviations ± 4·√(2/2000) (p < 1e-4)."""
    scores = poisoning.crafted_gradient_scores(_crafted_ensemble(), POINTS, CLASSES, trials=2000)
    apart = (scores.scores_in.mean() - scores.scores_out.mean()) / scores.scores_out.std()
    assert apart == pytest.approx(2.0, abs=4 * (np.sqrt(2 / 2000) + 2 / np.sqrt(4000)))
    proof = bounds.epsilon_lower_bound_from_scores(
        scores.scores_in, scores.scores_out, threshold=bounds.SimultaneousThreshold(), adjacency="add-remove",
        confidence=0.95, delta=1e-5, hypothesis=bounds.Hypothesis("gdp"),
    )  # fmt: skip
    assert 0.85 * float(accounting.epsilon(2.0, 1.0, 16, delta=1e-5)) < float(proof) < 10.0


def test_poisson_batches():
    """Kolmogorov–Smirnov at p > 1e-4: the scores are the two laws of `accounting.last_iterate_epsilon`."""
    ensemble = _crafted_ensemble(sample_rate=dpsgd.PoissonBatches(0.25, expected_batch_size=7.5), noise_multiplier=0.5)
    scores = poisoning.crafted_gradient_scores(ensemble, POINTS, CLASSES, trials=2000)
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
def test_bad_ensembles(change, message):
    with pytest.raises(ValueError, match=message):
        poisoning.crafted_gradient_scores(_crafted_ensemble(**change), POINTS, CLASSES, trials=4)


@pytest.mark.parametrize(
    ("gradient", "batches", "message"),
    [
        (np.zeros(38), np.ones((2, 16), bool), r"`gradient` must have shape \(39,\), got \(38,\)"),
        (np.zeros((3, 39)), np.ones((2, 16), bool), r"`gradient` must have shape \(16, 39\), got \(3, 39\)"),
        (np.full(39, np.nan), np.ones((2, 16), bool), "`gradient.*` must be finite"),
        (np.zeros(39), np.ones((2, 3), bool), r"`batches` must have shape \(2, 16\), got \(2, 3\)"),
    ],
)
def test_bad_gradients(gradient, batches, message):
    crafted = dpsgd.PerRun(crafted=dpsgd.CraftedGradient(gradient, batches))
    with pytest.raises(ValueError, match=message):
        _crafted_ensemble().run(POINTS, CLASSES, runs=2, per_run=crafted)


def test_bad_types():
    with pytest.raises(TypeError, match="`crafted` must be of type CraftedGradient"):
        dpsgd.PerRun(crafted=np.zeros(39))
