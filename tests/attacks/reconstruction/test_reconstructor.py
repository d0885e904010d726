from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from leakcore import attacks, datasets, dpsgd
from leakcore.attacks.reconstruction.reconstructor import principal

DATA = datasets.digits()
KNOWN, REST = DATA.split(60, seed=0)
SHADOW, TARGETS = REST.split(700, seed=1)


def _ensemble(noise: float) -> dpsgd.Ensemble:
    return dpsgd.Ensemble(
        dpsgd.Network((64, 10), initialisation="fixed"),
        noise_multiplier=noise,
        max_grad_norm=0.1,
        learning_rate=20,
        steps=10,
        seed=0,
    )


def _attack(noise: float, **more) -> tuple[attacks.Reconstructor, np.ndarray]:
    ensemble = _ensemble(noise)
    shadows = attacks.shadow_models(ensemble, KNOWN.features, KNOWN.labels, SHADOW.features, SHADOW.labels)
    result = attacks.reconstructor(
        shadows, SHADOW.features, training=attacks.ReconstructorTraining(**{"hidden": (128,), "epochs": 20} | more)
    )
    error = attacks.mean_squared_error(result.reconstruct(shadows[630:]), SHADOW.features[630:]).mean()
    assert result.held_out == pytest.approx(error, rel=1e-5)
    shadow = attacks.shadow_models(
        ensemble, KNOWN.features, KNOWN.labels, TARGETS.features[:200], TARGETS.labels[:200], first_run=10_000
    )
    return result, shadow


@pytest.mark.full
def test_accuracy_by_noise() -> None:
    blind = np.square(TARGETS.features[:200] - SHADOW.features.mean(axis=0)).mean()
    attack, shadow = _attack(0.0)
    error = attacks.mean_squared_error(attack.reconstruct(shadow), TARGETS.features[:200]).mean()
    assert error < blind / 2
    assert attack.losses[-1] < attack.losses[0]
    drowned, shadow = _attack(20.0)
    assert attacks.mean_squared_error(drowned.reconstruct(shadow), TARGETS.features[:200]).mean() > blind * 0.9


@pytest.fixture(scope="module")
def short_steps() -> tuple[dpsgd.Ensemble, np.ndarray, np.ndarray]:
    """An ensemble without noise whose final parameters are nearly linear in the gradients, and its models."""
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((64, 6, 10), initialisation="fixed"),
        noise_multiplier=0.0, max_grad_norm=0.1, learning_rate=0.5, steps=10, seed=0,
    )  # fmt: skip
    shadows = attacks.shadow_models(ensemble, KNOWN.features, KNOWN.labels, SHADOW.features, SHADOW.labels)
    targets = attacks.shadow_models(
        ensemble, KNOWN.features, KNOWN.labels, TARGETS.features[:200], TARGETS.labels[:200], first_run=10_000
    )
    return ensemble, shadows, targets


def _error(training: attacks.ReconstructorTraining, shadows: np.ndarray, released: np.ndarray) -> float:
    network = attacks.reconstructor(shadows, SHADOW.features, training=training)
    return float(attacks.mean_squared_error(network.reconstruct(released), TARGETS.features[:200]).mean())


@pytest.mark.full
def test_mixed_rows_against_components(short_steps) -> None:
    _, shadows, targets = short_steps
    how = {"hidden": (32,), "epochs": 15, "batch_size": 32, "learning_rate": 3e-3, "components": 30}
    plain = _error(attacks.ReconstructorTraining(**how), shadows, targets)
    mixed = _error(attacks.ReconstructorTraining(**how, first_layer=(6, 64)), shadows, targets)
    blind = np.square(TARGETS.features[:200] - SHADOW.features.mean(axis=0)).mean()
    assert mixed < 0.7 * plain < blind


@pytest.mark.full
def test_noise_in_training(short_steps) -> None:
    """With short steps the final parameters' noise is that of the sum: ησC√T/B."""
    quiet, shadows, targets = short_steps
    loud = dpsgd.Ensemble(
        quiet.network, noise_multiplier=0.05, max_grad_norm=0.1, learning_rate=0.5, steps=10, seed=0
    )  # fmt: skip
    released = attacks.shadow_models(
        loud, KNOWN.features, KNOWN.labels, TARGETS.features[:200], TARGETS.labels[:200], first_run=10_000
    )
    spread = 0.5 * 0.05 * 0.1 * 10**0.5 / 61
    assert np.std(released - targets) == pytest.approx(spread, rel=0.02)
    how = {
        "hidden": (32,), "epochs": 15, "batch_size": 32, "learning_rate": 3e-3, "components": 30,
        "first_layer": (6, 64),
    }  # fmt: skip
    unprepared = _error(attacks.ReconstructorTraining(**how), shadows, released)
    prepared = _error(attacks.ReconstructorTraining(**how, noise=spread), shadows, released)
    assert prepared < 0.8 * unprepared


@pytest.mark.parametrize("first_layer", [None, (6, 64)])
def test_file_with_components(first_layer, short_steps, tmp_path) -> None:
    _, shadows, targets = short_steps
    training = attacks.ReconstructorTraining(
        hidden=(8,), epochs=1, components=5, first_layer=first_layer, noise=1e-4, held_out=0.5
    )
    network = attacks.reconstructor(shadows, SHADOW.features, training=training, seed=3)
    assert network.layers == (5 if first_layer is None else 5 + 6 * 5, 8, 64)
    assert network == attacks.reconstructor(shadows, SHADOW.features, training=training, seed=3)
    network.save(tmp_path / "kept.npz")
    loaded = attacks.Reconstructor.load(tmp_path / "kept.npz")
    assert loaded == network
    assert (loaded.reconstruct(targets) == network.reconstruct(targets)).all()
    with pytest.raises(ValueError, match=r"`basis` must have shape"):
        dataclasses.replace(network, basis=network.basis[:2])


def test_principal_components() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 6)) * np.array([9, 7, 5, 3, 2, 1.0])
    for matrix in (rows, rows.T):
        expected = np.linalg.svd(matrix, full_matrices=False)[2][:3]
        basis = principal(matrix, 3)
        np.testing.assert_allclose(np.abs(np.sum(basis * expected, axis=1)), 1.0, atol=1e-9)
        np.testing.assert_allclose(basis @ basis.T, np.eye(3), atol=1e-12)
    assert principal(rows, 100).shape == (6, 6)


def test_shadow_models() -> None:
    ensemble = _ensemble(1.0)
    whole = attacks.shadow_models(ensemble, KNOWN.features, KNOWN.labels, SHADOW.features[:50], SHADOW.labels[:50])
    part = attacks.shadow_models(
        ensemble, KNOWN.features, KNOWN.labels, SHADOW.features[33:50], SHADOW.labels[33:50], first_run=33
    )
    assert (whole[33:] == part).all()
    assert whole.shape == (50, 650)


def test_repeatability(tmp_path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    attack, shadow = _attack(0.0, epochs=2)
    again, _ = _attack(0.0, epochs=2)
    assert torch.equal(before, torch.get_rng_state())
    assert (attack.weights == again.weights).all()
    attack.save(tmp_path / "kept.npz")
    loaded = attacks.Reconstructor.load(tmp_path / "kept.npz")
    assert loaded == attack
    assert attacks.Reconstructor.from_dict(json.loads(json.dumps(attack.to_dict()))) == attack
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    with pytest.raises(ValueError, match=r"other.npz: cannot be read as a reconstructor"):
        attacks.Reconstructor.load(tmp_path / "other.npz")
    assert (loaded.reconstruct(shadow) == attack.reconstruct(shadow)).all()
    assert loaded.layers == (650, 128, 64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: attacks.reconstructor(np.zeros((3, 2)), np.zeros((4, 2))),
            ValueError,
            "must have equally many rows, at least 2",
        ),
        (
            lambda: attacks.reconstructor(np.zeros(3), np.zeros((3, 2))),
            ValueError,
            r"`parameters` must have shape \(rows, columns\), got \(3,\)",
        ),
        (
            lambda: attacks.reconstructor([["a"]], [[1.0]]),
            TypeError,
            "`parameters` must be an array of real numbers, got <U1",
        ),
        (
            lambda: attacks.reconstructor(np.full((3, 2), np.nan), np.zeros((3, 2))),
            ValueError,
            r"`parameters` must be finite",
        ),
        (lambda: attacks.ReconstructorTraining(epochs=0), ValueError, "`epochs` must be at least 1, got 0"),
        (lambda: attacks.ReconstructorTraining(held_out=1), ValueError, r"`held_out` must be in \[0, 1\), got 1"),
        (lambda: attacks.ReconstructorTraining(epochs=10**13), ValueError, "epochs="),
        (
            lambda: attacks.ReconstructorTraining(first_layer=(2, 3)),
            ValueError,
            "`components` must be at least 1 with a first_layer, got 0",
        ),
        (
            lambda: attacks.ReconstructorTraining(first_layer=(2,), components=1),
            ValueError,
            r"`first_layer` must be \(units, inputs\) or None, got \(2,\)",
        ),
        (lambda: attacks.ReconstructorTraining(noise=-1.0), ValueError, "`noise` must be"),
        (
            lambda: attacks.reconstructor(
                np.ones((3, 5)),
                np.ones((3, 2)),
                training=attacks.ReconstructorTraining(first_layer=(2, 3), components=1),
            ),
            ValueError,
            r"`training.first_layer` must have at most the 5 weights of parameters, got \(2, 3\)",
        ),
        (
            lambda: attacks.reconstructor(
                np.ones((3, 2)), np.ones((3, 2)), training=attacks.ReconstructorTraining(hidden=(10**13,))
            ),
            ValueError,
            "hidden=",
        ),
        (
            lambda: attacks.reconstructor(np.ones((3, 2)), np.ones((3, 2)), box=(1, 0)),
            ValueError,
            "`box` must have low below high",
        ),
        (
            lambda: attacks.reconstructor(np.ones((3, 2)), np.ones((3, 2)), box=(0, 1e30)),
            ValueError,
            "`box` must hold numbers below 1e30",
        ),
        (
            lambda: attacks.reconstructor(np.ones((3, 2)), np.ones((3, 2)), training=4),
            TypeError,
            "`training` must be of type ReconstructorTraining, got int",
        ),
        (
            lambda: attacks.shadow_models(_ensemble(1), KNOWN.features, KNOWN.labels, np.zeros((2, 64)), [0]),
            ValueError,
            r"`points` and `labels` must have shapes .*got \(2, 64\) and \(1,\)",
        ),
    ],
)
def test_errors(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def test_array_layouts() -> None:
    rng = np.random.default_rng(0)
    releases, points = rng.random((12, 3), np.float32), rng.random((12, 2), np.float32)
    settings = {"training": attacks.ReconstructorTraining(hidden=(4,), epochs=1)}
    straight = attacks.reconstructor(releases[::-1].copy(), points[::-1].copy(), **settings)
    points.flags.writeable = False
    back = attacks.reconstructor(releases[::-1], points[::-1], **settings)
    np.testing.assert_array_equal(back.weights, straight.weights)
    np.testing.assert_array_equal(back.reconstruct(releases[::-1]), straight.reconstruct(releases[::-1].copy()))
    with pytest.raises(ValueError, match=r"`parameters` must not require grad: pass parameters.detach\(\)"):
        attacks.reconstructor(torch.ones(4, 3, requires_grad=True), points[:4], **settings)
    with pytest.raises(ValueError, match=r"`schema` must be 'leakcore.reconstructor/2', got None"):
        attacks.Reconstructor.from_dict({})
