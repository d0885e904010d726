"""Membership: coins, models trained by them, two attacks, and what their guesses prove."""

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import attacks, bounds, datasets
from leakcore.attacks import membership
from tests.dpsgd.ensemble import flat_arguments as flat

DATA = datasets.breast_cancer()
X, Y = DATA.features[:40].copy(), DATA.labels[:40].copy()


def _ensemble(noise=0.0, **more):
    settings = {"max_grad_norm": 100.0, "learning_rate": 0.5, "steps": 60, "initialisation": "fixed", "seed": 3, **more}
    return flat.ensemble((30, 2), noise_multiplier=noise, **settings)


def test_coins_are_fair_and_a_runs_own():
    tossed = membership.coins(400, 100, seed=1)
    assert stats.binomtest(int(tossed.sum()), tossed.size, 0.5).pvalue > 0.001
    np.testing.assert_array_equal(membership.coins(range(30, 35), 100, seed=1), tossed[30:35])
    assert not np.array_equal(membership.coins(range(30, 35), 100, seed=2), tossed[30:35])


def test_a_model_is_trained_on_the_rows_that_its_coins_include():
    play = membership.play(_ensemble(dtype="float64", expected_batch_size=20), X, Y, runs=range(7, 10))
    there = play.included[1]
    alone = _ensemble(dtype="float64", expected_batch_size=20).run(X[there], Y[there], runs=range(8, 9))
    with torch.no_grad():
        logits = alone.module(8)(torch.from_numpy(X))
    wanted = -torch.log_softmax(logits, 1).numpy()[np.arange(40), Y]
    np.testing.assert_allclose(play.losses[1], wanted, rtol=1e-9)
    assert play.mean_training_loss[1] == pytest.approx(wanted[there].mean(), rel=1e-9)


def test_with_poisson_batches_rows_that_are_out_never_count():
    ensemble = _ensemble(sample_rate=0.5, steps=5, dtype="float64", expected_batch_size=10)
    play = membership.play(ensemble, X, Y, runs=2)
    changed = X.copy()
    changed[~play.included[0]] += 1.0
    again = membership.play(ensemble, changed, Y, runs=1)
    there = play.included[0]
    np.testing.assert_array_equal(again.losses[0, there], play.losses[0, there])


def test_overfitted_models_give_their_rows_away_and_the_likelihood_ratio_knows_better():
    reference = membership.play(_ensemble(), X, Y, runs=64)
    play = membership.play(_ensemble(), X, Y, runs=range(64, 128))
    yeom = membership.guess(membership.loss_threshold(play.losses, threshold=reference.mean_training_loss.mean()))
    ratio = membership.likelihood_ratio(play.losses, reference.losses, reference.included)
    right, number = membership.guess(ratio).tally(play.included)
    plain, _ = yeom.tally(play.included)
    assert number == 64 * 40
    assert right > plain > 0.5 * number
    own = membership.likelihood_ratio(play.losses, reference.losses, reference.included, spread="row")
    assert membership.guess(own).tally(play.included)[0] > plain
    clearest = membership.guess(ratio, share=0.2)
    hits, guesses = clearest.tally(play.included)
    assert guesses == 64 * 8
    assert hits / guesses > right / number
    proof = bounds.epsilon_from_membership(hits, guesses, coins="rows", rows=number, confidence=0.95)
    assert proof.value > 0


def test_the_scores_match_two_gaussians():
    rng = np.random.default_rng(0)
    reference, there = rng.exponential(size=(50, 4)), rng.random((50, 4)) < 0.5
    losses = rng.exponential(size=(3, 4))
    result = membership.likelihood_ratio(losses, reference, there, spread="row")
    phi = lambda v: np.log(np.exp(-v) / (1 - np.exp(-v)))  # noqa: E731
    for i in range(4):
        inside, outside = phi(reference[there[:, i], i]), phi(reference[~there[:, i], i])
        wanted = stats.norm.logpdf(phi(losses[:, i]), inside.mean(), inside.std(ddof=1)) - stats.norm.logpdf(
            phi(losses[:, i]), outside.mean(), outside.std(ddof=1)
        )
        np.testing.assert_allclose(result[:, i], wanted, rtol=1e-9)


def test_losses_that_rounded_to_zero_do_not_drown_the_others():
    """Members' losses of e^-30 or so, some of them 0 in float64: nearly every guess is right."""
    rng = np.random.default_rng(5)
    there = rng.random((64, 40)) < 0.5
    losses = np.where(there, np.exp(rng.normal(-33, 2, (64, 40))), np.exp(rng.normal(-27, 2, (64, 40))))
    losses = -np.log1p(-losses)
    losses[losses < 2.0**-53] = 0
    assert (losses == 0).mean() > 0.01
    for spread in ("shared", "row"):
        ratio = membership.likelihood_ratio(losses[:16], losses[16:], there[16:], spread=spread)
        right, number = membership.guess(ratio, share=0.2).tally(there[:16])
        assert right > 0.9 * number


def test_no_model_no_proof():
    """Coins that had no effect: 400 audits at 95%, P(Bin(400, .05) > 35) < 1e-3."""
    rng = np.random.default_rng(4)
    positive = 0
    for _ in range(400):
        there = rng.random((4, 25)) < 0.5
        hits, number = membership.guess(rng.normal(size=(4, 25)), share=0.4).tally(there)
        positive += bounds.epsilon_from_membership(hits, number, coins="rows", rows=100, confidence=0.95).value > 0
    assert positive <= 35


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"`losses` must have shape \(runs, rows\), at least 1 each, got \(3,\)"):
        membership.loss_threshold(np.ones(3), threshold=1.0)
    with pytest.raises(ValueError, match=r"`threshold` must be a number or have shape \(3,\), got shape \(2,\)"):
        membership.loss_threshold(np.ones((3, 2)), threshold=np.ones(2))
    with pytest.raises(ValueError, match=r"`reference_included` must have each row in and.*, got row 0 in 0"):
        membership.likelihood_ratio(np.ones((1, 2)), np.ones((3, 2)), np.zeros((3, 2), bool))
    with pytest.raises(
        ValueError,
        match=r"`reference_included` must be bool of shape \(3, 2\), as the losses, got bool of shape \(2,\)",
    ):
        membership.likelihood_ratio(np.ones((1, 2)), np.ones((3, 2)), np.zeros(2, bool))
    with pytest.raises(ValueError, match=r"`share` must be in \(0, 1\], got 0"):
        membership.guess(np.ones((1, 2)), share=0)
    with pytest.raises(ValueError, match=r"`included` must be bool of shape \(1, 2\), got bool of shape \(3,\)"):
        membership.guess(np.ones((1, 2))).tally(np.ones(3, bool))
    with pytest.raises(ValueError, match="`runs` must be at least 1, got 0"):
        membership.play(_ensemble(), X, Y, runs=0)
    assert attacks.membership is membership


def test_one_reference_of_each_kind_tells_no_spread():
    """Its deviation came out as 0, and the score as ±10¹² by chance."""
    losses, coins = np.random.default_rng(0).random((3, 4)), np.arange(4) % 2 == 0
    with pytest.raises(ValueError, match="`reference_included` must have a row in two reference models,"):
        membership.likelihood_ratio(losses, losses[:2], np.array([coins, ~coins]))
    with pytest.raises(ValueError, match="`reference_included` must have a row out of two reference"):
        membership.likelihood_ratio(losses, losses, np.array([coins, ~coins, np.ones(4, bool)]))
    there = np.array([coins, ~coins, coins])
    assert np.isfinite(membership.likelihood_ratio(losses, losses, there)).all()


def test_a_share_is_not_rounded_down_by_its_last_bit():
    scores = np.random.default_rng(1).normal(size=(1, 100))
    for hundredths in range(1, 101):
        assert (membership.guess(scores, share=hundredths / 100).guess != 0).sum() == hundredths
    assert (membership.guess(scores[:, :10], share=0.29).guess != 0).sum() == 2


def test_tensors_that_require_grad_are_named():
    losses = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"`losses` must not require grad: pass losses.detach\(\)"):
        membership.loss_threshold(losses, threshold=1.0)
    np.testing.assert_array_equal(membership.loss_threshold(losses.detach().bfloat16(), threshold=1.0), 0)
