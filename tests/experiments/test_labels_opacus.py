"""The label figures' networks trained by Opacus: the ensemble's, when noise and batches are the same."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from leakcore import dpsgd, experiments, kernels
from leakcore.experiments.labels import opacus_training
from tests.dpsgd.ensemble import flat_arguments as flat

LAYERS, ROWS, RUNS, STEPS, RATE = (7, 12, 12, 1), 60, 2, 15, 0.3


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, LAYERS[0])), rng.integers(0, 2, ROWS)
    for array in (x, y):
        array.setflags(write=False)  # as a data set's
    return x, y


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "max_grad_norm",
    [pytest.param(0.05, marks=pytest.mark.slow), 1.0, pytest.param(100.0, marks=pytest.mark.slow)],
)
def test_opacus_and_the_ensemble_train_the_same_networks(monkeypatch: pytest.MonkeyPatch, max_grad_norm: float) -> None:
    pytest.importorskip("opacus")
    from opacus.optimizers import optimizer as opacus_optimizer

    x, y = _data()
    settings: dict[str, Any] = {"noise_multiplier": 0.8, "max_grad_norm": max_grad_norm, "steps": STEPS}
    settings |= {"learning_rate": 0.5 / max_grad_norm, "sample_rate": RATE, "expected_batch_size": 18, "seed": 3}
    ensemble = flat.ensemble(LAYERS, "relu", clip_slack=1e-6, **settings)
    start = flat.ensemble(LAYERS, "relu", **{**settings, "steps": 0}).run(x, y, runs=RUNS).parameters
    noise = np.stack(
        [
            kernels.standard_normal((RUNS, start.shape[1]), seed=9, purpose=kernels.Stream.CLIP_NOISE, step=t)
            for t in range(STEPS)
        ],
        axis=1,
    ).astype(np.float32)
    ours = ensemble.run(x, y, runs=RUNS, per_run=dpsgd.PerRun(noise=noise)).parameters
    left = [noise.reshape(-1)]

    def given(std: float, reference: Any, **_: Any) -> Any:
        import torch

        flat = left[0][: reference.numel()]
        left[0] = left[0][reference.numel() :]
        return std * torch.as_tensor(flat.copy()).reshape(reference.shape)

    monkeypatch.setattr(opacus_optimizer, "_generate_noise", given)
    theirs = opacus_training.train(ensemble, x, y, initial=start)
    assert len(left[0]) == 0
    moved = np.abs(ours - start).max()
    assert moved > 0.1
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-5 * moved)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_without_injection_runs_differ_and_repeat() -> None:
    pytest.importorskip("opacus")
    x, y = _data()
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.1, "steps": 3}
    settings |= {"sample_rate": RATE, "expected_batch_size": 18, "seed": 3}
    ensemble = flat.ensemble(LAYERS, "relu", **settings)
    initial = flat.ensemble(LAYERS, "relu", **{**settings, "steps": 0, "seed": 0}).run(x, y, runs=1).parameters
    start = np.repeat(initial, 2, axis=0)
    first, again = (opacus_training.train(ensemble, x, y, initial=start) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(start[0], start[1])
    assert (first[0] != first[1]).mean() > 0.9


def test_without_opacus_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    x, y = _data()
    ensemble = dpsgd.Ensemble(
        dpsgd.Network(LAYERS, "relu"), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=1, seed=0
    )
    with pytest.raises(ImportError, match=r"`trainer='opacus'` needs Opacus: pip install 'leakcore\[opacus\]'"):
        opacus_training.train(ensemble, x, y, initial=np.zeros((1, 10)))


def test_the_trainer_is_checked_before_any_work() -> None:
    with pytest.raises(ValueError, match="`trainer` must be 'ensemble' for reconstruction-fig15, got 'opacus'"):
        experiments.run("reconstruction-fig15", trainer="opacus")
    with pytest.raises(ValueError, match="`trainer` must be 'ensemble' or 'opacus', got 'jax'"):
        experiments.run("labels-fig1", trainer="jax")
