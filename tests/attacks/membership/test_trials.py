"""Membership: coins, models trained by them, what is observed of them, and what guesses prove."""

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import bounds, datasets
from leakcore.attacks import membership
from tests.dpsgd.ensemble import flat_arguments as flat

DATA = datasets.breast_cancer()
X, Y = DATA.features[:40].copy(), DATA.labels[:40].copy()


def _ensemble(noise=0.0, **more):
    settings = {"max_grad_norm": 100.0, "learning_rate": 0.5, "steps": 60, "initialisation": "fixed", "seed": 3, **more}
    return flat.ensemble((30, 2), noise_multiplier=noise, **settings)


def test_coins():
    tossed = membership.coins(400, 100, seed=1)
    assert stats.binomtest(int(tossed.sum()), tossed.size, 0.5).pvalue > 0.001
    np.testing.assert_array_equal(membership.coins(range(30, 35), 100, seed=1), tossed[30:35])
    assert not np.array_equal(membership.coins(range(30, 35), 100, seed=2), tossed[30:35])


def test_included_rows():
    play = membership.play(_ensemble(dtype="float64", expected_batch_size=20), X, Y, runs=range(7, 10))
    there = play.included[1]
    alone = _ensemble(dtype="float64", expected_batch_size=20).run(X[there], Y[there], runs=range(8, 9))
    with torch.no_grad():
        logits = alone.module(8)(torch.from_numpy(X))
    wanted = -torch.log_softmax(logits, 1).numpy()[np.arange(40), Y]
    np.testing.assert_allclose(play.losses[1], wanted, rtol=1e-9)
    assert play.mean_training_loss[1] == pytest.approx(wanted[there].mean(), rel=1e-9)


def test_poisson_batches():
    ensemble = _ensemble(sample_rate=0.5, steps=5, dtype="float64", expected_batch_size=10)
    play = membership.play(ensemble, X, Y, runs=2)
    changed = X.copy()
    changed[~play.included[0]] += 1.0
    again = membership.play(ensemble, changed, Y, runs=1)
    there = play.included[0]
    np.testing.assert_array_equal(again.losses[0, there], play.losses[0, there])


def test_overfitted_models():
    reference = membership.play(_ensemble(), X, Y, runs=64)
    play = membership.play(_ensemble(), X, Y, runs=range(64, 128))
    yeom = membership.guess(membership.scores("loss", play, references=reference))
    ratio = membership.scores("lira", play, references=reference)
    right, number = membership.guess(ratio).tally(play.included)
    plain, _ = yeom.tally(play.included)
    assert number == 64 * 40
    assert right > plain > 0.5 * number
    own = membership.scores(membership.LiRA(spread="row"), play, references=reference)
    assert membership.guess(own).tally(play.included)[0] > plain
    clearest = membership.guess(ratio, share=0.2)
    hits, guesses = clearest.tally(play.included)
    assert guesses == 64 * 8
    assert hits / guesses > right / number
    proof = bounds.epsilon_from_membership(hits, guesses, coins="rows", rows=number, confidence=0.95)
    assert proof.value > 0


@pytest.mark.full
def test_no_trials():
    """Coins that had no effect: 400 audits at 95%, P(Bin(400, .05) > 35) < 1e-3."""
    rng = np.random.default_rng(4)
    positive = 0
    for _ in range(400):
        there = rng.random((4, 25)) < 0.5
        hits, number = membership.guess(rng.normal(size=(4, 25)), share=0.4).tally(there)
        positive += bounds.epsilon_from_membership(hits, number, coins="rows", rows=100, confidence=0.95).value > 0
    assert positive <= 35


def test_bad_input():
    with pytest.raises(ValueError, match=r"`share` must be in \(0, 1\], got 0"):
        membership.guess(np.ones((1, 2)), share=0)
    with pytest.raises(ValueError, match=r"`included` must be bool of shape \(1, 2\), got bool of shape \(3,\)"):
        membership.guess(np.ones((1, 2))).tally(np.ones(3, bool))
    with pytest.raises(ValueError, match="`runs` must be at least 1, got 0"):
        membership.play(_ensemble(), X, Y, runs=0)


def test_rounding_of_shares():
    scores = np.random.default_rng(1).normal(size=(1, 100))
    for hundredths in range(1, 101):
        assert (membership.guess(scores, share=hundredths / 100).guess != 0).sum() == hundredths
    assert (membership.guess(scores[:, :10], share=0.29).guess != 0).sum() == 2


def test_requested_observations():
    """Losses at checkpoints, at a population and answers on copies, against modules of the same runs."""
    ensemble = _ensemble(dtype="float64", expected_batch_size=20)
    others, copies = (DATA.features[40:55], DATA.labels[40:55]), X + np.zeros((3, 1, 1))
    copies[1:] *= np.array([0.5, -1.0])[:, None, None]
    queries = membership.Queries(population=others, copies=copies)
    play = membership.play(ensemble, X, Y, runs=range(2, 4), queries=queries, checkpoints=(10, 30))
    shorter = membership.play(ensemble.replace(steps=30), X, Y, runs=range(2, 4))
    np.testing.assert_array_equal(play.checkpoint_losses[:, 1], shorter.losses)
    np.testing.assert_array_equal(play.checkpoint_losses[:, 2], play.losses)
    there = play.included[1]
    module = ensemble.run(X[there], Y[there], runs=range(3, 4)).module(3)
    observed = membership.observe([module], X, Y, queries=queries)
    np.testing.assert_allclose(play.losses[1:], observed.losses, rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(play.population_losses[1:], observed.population_losses, rtol=1e-8, atol=1e-14)
    np.testing.assert_array_equal(play.copies_right[1:], observed.copies_right)
    assert len(np.unique(play.copies_right)) > 1
    np.testing.assert_array_equal(play.features, observed.features)
    np.testing.assert_array_equal(play.population_features, observed.population_features)
    plain = membership.play(ensemble, X, Y, runs=range(2, 4))
    np.testing.assert_allclose(plain.losses, play.losses, rtol=1e-12)


def test_parts_of_the_runs():
    play = membership.play(_ensemble(steps=2), X, Y, runs=range(5, 10))
    part = play[2:]
    assert (len(part), part.first_run) == (3, 7)
    np.testing.assert_array_equal(part.included, play.included[2:])
    np.testing.assert_array_equal(part.losses, membership.play(_ensemble(steps=2), X, Y, runs=range(7, 10)).losses)


def test_bad_checkpoints():
    for steps in ((5, 60), (5, 5), (9, 4)):
        with pytest.raises(ValueError, match="`checkpoints` must be rising and below the ensemble's 60 steps, got"):
            membership.play(_ensemble(), X, Y, runs=1, checkpoints=steps)
