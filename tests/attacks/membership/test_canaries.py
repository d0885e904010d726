"""Canaries of one run: their coins decide, scores are the literal sums, and what they prove holds."""

from __future__ import annotations

import numpy as np
import pytest

from leakcore import bounds, dpsgd
from leakcore.attacks import membership
from tests.dpsgd.ensemble import flat_arguments as flat

_RNG = np.random.default_rng(3)
_ROWS, _LABELS = _RNG.normal(size=(50, 12)), _RNG.integers(0, 3, 50)


def _ensemble(noise: float = 1.0, **more) -> dpsgd.Ensemble:
    settings = {"expected_batch_size": 50.0, "sample_rate": 1.0, "steps": 6, "dtype": "float64"} | more
    return flat.ensemble(
        (12, 3), noise_multiplier=noise, max_grad_norm=1.0, learning_rate=0.5, initialisation="fixed-glorot", seed=5,
        **settings,
    )  # fmt: skip


def test_canary_vectors() -> None:
    wide = _RNG.normal(size=(30, 4000)).astype(np.float32)
    points, labels = membership.canaries(wide, 3, count=20, seed=1)
    assert (points.shape, points.dtype) == ((20, 4000), np.float32)
    lengths = np.linalg.norm(points, axis=1)
    assert lengths == pytest.approx(np.linalg.norm(wide, axis=1).mean(), rel=1e-5)
    cosines = points @ points.T / lengths[0] ** 2
    assert np.abs(cosines - np.eye(20)).max() < 6 / 4000**0.5
    assert set(labels) == {0, 1, 2}
    again, _ = membership.canaries(wide, 3, count=10, seed=1)
    assert (again == points[:10]).all()


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_scores_of_included_canaries(rate: float) -> None:
    points, labels = membership.canaries(_ROWS, 3, count=9, seed=2)
    ensemble = _ensemble(sample_rate=rate)
    play = membership.play_canaries(ensemble, _ROWS, _LABELS, points, labels, runs=range(4, 7))
    assert play.scores.shape == play.included.shape == (3, 9)
    assert 0 < play.included.sum() < 27
    for i in range(3):
        there = play.included[i]
        # The same run without the rows that never count: Poisson draws of the rows that stay are their own.
        run = ensemble.run(
            _ROWS,
            _LABELS,
            runs=range(4 + i, 4 + i + 1),
            per_run=dpsgd.PerRun(dpsgd.Rows(points, labels), batches=_batches(ensemble, 4 + i, there)),
            observer=dpsgd.Observer(record=True),
        )
        assert run.thetas is not None
        assert run.observed is not None
        literal = np.zeros(9)
        for theta, released in zip(run.thetas[0], run.observed[0], strict=True):
            literal += _clipped(theta, points, labels) @ released
        assert play.scores[i] == pytest.approx(literal, abs=1e-9)


def _batches(ensemble: dpsgd.Ensemble, run: int, there: np.ndarray) -> np.ndarray:
    from leakcore import kernels

    out = np.ones((1, ensemble.steps, 59), bool)
    for step in range(ensemble.steps):
        draws = kernels.uniform((1, 59), seed=5, purpose=kernels.Stream.BATCH, step=step, first_row=run)
        out[0, step] = draws[0] < ensemble.sample_rate
    out[0, :, 50:] &= there
    return out


def _clipped(theta: np.ndarray, points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    weights, bias = theta[:36].reshape(3, 12), theta[36:]
    logits = points @ weights.T + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    flat = np.concatenate([(p[:, :, None] * points[:, None, :]).reshape(len(points), -1), p], axis=1)
    return flat / np.maximum(1.0, np.linalg.norm(flat, axis=1, keepdims=True))


def test_scores_by_noise() -> None:
    points, labels = membership.canaries(_RNG.normal(size=(5, 400)), 3, count=40, seed=2)
    rows = _RNG.normal(size=(50, 400))

    def proved(noise: float) -> float:
        ensemble = dpsgd.Ensemble(
            (400, 3),
            noise_multiplier=noise,
            max_grad_norm=1.0,
            learning_rate=0.1,
            steps=10,
            sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=50.0),
            seed=1,
        )
        play = membership.play_canaries(ensemble, rows, _LABELS, points, labels, runs=4)
        scores, there = play.scores.ravel(), play.included.ravel()
        guessed = scores > np.median(scores)
        correct = int((guessed == there).sum())
        return float(bounds.epsilon_lower_bound_one_run(correct, there.size, there.size).value)

    assert proved(0.0) > 2
    assert proved(1000.0) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 10, "expected_batch_size": None}, r"`ensemble` must have Poisson or .*got ShuffledBatches"),
        ({"expected_batch_size": None}, "`ensemble` must have an expected_batch_size"),
    ],
)
def test_bad_ensembles(change: dict, message: str) -> None:
    points, labels = membership.canaries(_ROWS, 3, count=4, seed=0)
    with pytest.raises(ValueError, match=message):
        membership.play_canaries(_ensemble(**change), _ROWS, _LABELS, points, labels)


def test_bad_canaries() -> None:
    with pytest.raises(ValueError, match="`count` must be at least 1, got 0"):
        membership.canaries(_ROWS, 3, count=0, seed=0)
    with pytest.raises(ValueError, match="`classes` must be at least 2, got 1"):
        membership.canaries(_ROWS, 1, count=1, seed=0)
    with pytest.raises(ValueError, match=r"`features` must have shape \(rows, inputs\), at least 1 each, got \(12,\)"):
        membership.canaries(_ROWS[0], 3, count=1, seed=0)


def test_integer_rows() -> None:
    with pytest.raises(
        TypeError, match=r"`features` must be floating, got uint8: integers cannot hold a random direction"
    ):
        membership.canaries(np.ones((5, 4), np.uint8), 3, count=2, seed=0)
