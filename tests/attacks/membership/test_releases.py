"""Scores from releases: literal sums, the recorder's own numbers, and federated updates."""

from __future__ import annotations

import numpy as np
import pytest

from leakcore import dpsgd
from leakcore.attacks import membership
from leakcore.attacks.membership import Releases
from tests.audit.samples import orthogonal

_RNG = np.random.default_rng(0)


def _clipped(gradients: np.ndarray, norm: float) -> np.ndarray:
    return gradients * np.minimum(1, norm / np.linalg.norm(gradients, axis=-1, keepdims=True))


def test_literal_sums():
    gradients, updates = _RNG.normal(size=(6, 9, 20)), _RNG.normal(size=(6, 20))
    releases = Releases.of(gradients, updates, max_grad_norm=3.0, sample_rate=0.2, noise_multiplier=1.5)
    clipped = _clipped(gradients, 3.0)
    dots = np.einsum("trp,tp->tr", clipped, updates)
    np.testing.assert_allclose(membership.scores("sum", releases), dots.sum(axis=0)[None] / 9)
    norms = np.linalg.norm(clipped, axis=-1)
    ratio = np.log(0.8 + 0.2 * np.exp((2 * dots - norms**2) / (2 * (1.5 * 3) ** 2))).sum(axis=0)
    np.testing.assert_allclose(membership.scores("likelihood", releases), ratio[None], rtol=1e-9)


def test_ensemble_products():
    rows, labels = _RNG.normal(size=(30, 6)), _RNG.integers(0, 3, 30)
    ensemble = dpsgd.Ensemble(
        (6, 3), noise_multiplier=0.5, max_grad_norm=1.0, learning_rate=0.5, steps=8, seed=0,
        sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=30.0),
    )  # fmt: skip
    trials = membership.play_canaries(ensemble, rows[:20], labels[:20], rows[20:], labels[20:], runs=3)
    included = np.concatenate([np.ones((3, 20), bool), trials.included], axis=1)
    run = ensemble.run(
        rows[:20], labels[:20], runs=3, observer=dpsgd.Observer(dpsgd.Rows(rows[20:], labels[20:])),
        per_run=dpsgd.PerRun(
            dpsgd.Rows(rows[20:], labels[20:]), batches=np.broadcast_to(included[:, None], (3, 8, 30))
        ),
    )  # fmt: skip
    releases = Releases(dots=run.dots, clipped_norms=run.clipped_norms, max_grad_norm=1.0, noise_multiplier=0.5)
    np.testing.assert_allclose(membership.scores("sum", releases), trials.scores, rtol=1e-5)
    likely = membership.scores("likelihood", releases)
    assert likely[trials.included].mean() > 3 > -3 > likely[~trials.included].mean()


def test_trace_scores():
    trace = orthogonal(12)
    np.testing.assert_array_equal(membership.scores("sum", trace), trace.membership_sum[None])
    np.testing.assert_array_equal(membership.scores("likelihood", trace), trace.membership_likelihood[None])


def test_federated_clients():
    """FedSGD without noise: 12 of 24 clients' gradients are summed in each of 10 rounds."""
    members = np.arange(24) < 12
    gradients = _RNG.normal(size=(10, 24, 400))
    updates = np.einsum("trp,r->tp", _clipped(gradients, 1.0), members)
    scores = membership.scores("sum", Releases.of(iter(gradients), updates, max_grad_norm=1.0))
    assert scores.shape == (1, 24)
    assert scores[0, members].min() > scores[0, ~members].max()


def test_bad_releases():
    gradients, updates = np.ones((2, 3, 4)), np.ones((2, 4))
    with pytest.raises(ValueError, match=r"`gradients` must be of 2 steps, as `updates`, got 1"):
        Releases.of(gradients[:1], updates, max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"`gradients` must be of 2 steps, as `updates`, got more"):
        Releases.of(np.ones((3, 3, 4)), updates, max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"`updates` must have shape \(steps, parameters\), .*, got \(4,\)"):
        Releases.of(gradients, updates[0], max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"`dots` must have shape \(models, steps, rows\), .*, got \(2, 3\)"):
        Releases(dots=np.ones((2, 3)), max_grad_norm=1.0)
    releases = Releases(dots=np.ones((1, 2, 3)), max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"`clipped_norms` is required with method='likelihood'"):
        membership.scores("likelihood", releases)
    with pytest.raises(TypeError, match="`target` must be of type Releases or Trace, got Observations"):
        membership.scores("sum", membership.Observations(losses=np.ones((1, 2))))
    references = membership.References(losses=np.ones((1, 3)), included=np.ones((1, 3), bool))
    with pytest.raises(ValueError, match="`references` must be None for ReleasedProducts"):
        membership.scores("sum", releases, references=references)
